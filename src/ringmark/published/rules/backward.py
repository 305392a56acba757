"""Is forward + backward longer than forward by what a backward costs?

Backward has 2.5 times forward's products and at least 2 times its ring bytes (K, V, dK, dV against K, V), so
backward over forward belongs near 2 to 4. A backward that shortens as the sequence grows cannot be.
"""

from __future__ import annotations

from collections.abc import Iterator

from ringmark.published.corpus import Corpus
from ringmark.published.finding import Finding, contradiction, note, suspect
from ringmark.published.rows import Row, Series, Span

TITLE = "backward against forward"
_LOW, _HIGH = 1.8, 4.5


def check(corpus: Corpus) -> Iterator[Finding]:
    for series in corpus.series:
        yield from _alone(series)
        yield from _shrinking(series)
    yield from _across_rows(corpus)


def _alone(series: Series) -> Iterator[Finding]:
    for row in series.rows:
        forward, both = row.time_ms("fwd"), row.time_ms("fwd_bwd")
        if forward and both:
            yield from _ratio(f"{series.name}, S = {row.seqlen_global}", forward, both, row.where)


def _ratio(name: str, forward: Span, both: Span, where: list[str]) -> Iterator[Finding]:
    text = (
        f"({both.mid:g} − {forward.mid:g}) / {forward.mid:g} = {(both.mid - forward.mid) / forward.mid:.2f}"
    )
    low, high = (both.low - forward.high) / forward.high, (both.high - forward.low) / forward.low
    if high <= 0:
        yield contradiction(f"{name}: forward + backward is no longer than forward", where, text)
    elif low > _HIGH:
        yield suspect(
            f"{name}: backward takes more than {_HIGH} times forward",
            where,
            f"{text}, where the products ask for 2.5",
        )
    elif high < _LOW:
        yield note(
            f"{name}: backward takes less than {_LOW} times forward",
            where,
            f"{text}, where the products ask for 2.5 and the ring's bytes for 2 or more",
        )


def _shrinking(series: Series) -> Iterator[Finding]:
    for a, b in zip(series.rows, series.rows[1:]):
        first, second = a.time_ms("bwd"), b.time_ms("bwd")
        if first and second and a.find("time", "fwd") and second.high < first.low:
            yield suspect(
                f"{series.name}: backward alone gets shorter from S = {a.seqlen_global} to {b.seqlen_global}",
                [*a.where, *b.where],
                f"forward + backward less forward: {_less(a)} at {a.seqlen_global}, {_less(b)} at "
                f"{b.seqlen_global}, where the work is {(b.seqlen_global / a.seqlen_global) ** 2:.3g} "
                "times as much",
            )


def _less(row: Row) -> str:
    forward, both = row.find("time", "fwd"), row.find("time", "fwd_bwd")
    alone = row.time_ms("bwd")
    if forward is None or both is None or alone is None:
        return ""
    return f"{both.printed} − {forward.printed} = {alone.mid:.5g} ms"


def _across_rows(corpus: Corpus) -> Iterator[Finding]:
    """Pages that print forward, and forward + backward, on rows of their own."""
    seen = set()
    for table in corpus.tables:
        halves = {(row.run, row.seqlen_global, row.first.phase): row for row in table.rows}
        for (run, seqlen, phase), row in halves.items():
            other = halves.get((run, seqlen, "fwd_bwd"))
            if phase != "fwd" or other is None or (row.where[0], other.where[0]) in seen:
                continue
            seen.add((row.where[0], other.where[0]))
            forward, both = row.time_ms("fwd"), other.time_ms("fwd_bwd")
            if forward and both:
                yield from _ratio(f"{row.name}, S = {seqlen}", forward, both, [*row.where, *other.where])
