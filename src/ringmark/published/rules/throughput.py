"""Is a printed throughput the reciprocal of the printed time?"""

from __future__ import annotations

from collections.abc import Iterator

from ringmark.published.corpus import Corpus
from ringmark.published.finding import Finding, contradiction
from ringmark.published.rows import span

TITLE = "throughput against latency"


def check(corpus: Corpus) -> Iterator[Finding]:
    for row in corpus.rows:
        claim = row.find("throughput")
        time = row.time_ms(row.first.phase or "fwd")
        if claim is None or time is None or claim.unit != "iters/s":
            continue
        rate = span(claim)
        if rate.high * time.high < 1e3 or rate.low * time.low > 1e3:
            yield contradiction(
                f"{row.name}, S = {row.seqlen_global}: throughput and latency are not reciprocal",
                row.where,
                f"{claim.printed} per s × {time.mid:g} ms = {rate.mid * time.mid:.1f} ms per s, not 1000",
            )
