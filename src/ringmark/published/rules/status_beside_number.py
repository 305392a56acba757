"""Does a row that reports a failure also report a result of the same run?"""

from __future__ import annotations

from collections.abc import Iterator

from ringmark.published.corpus import Corpus
from ringmark.published.finding import Finding, contradiction, note

TITLE = "a status word beside a number"


def check(corpus: Corpus) -> Iterator[Finding]:
    for row in corpus.rows:
        words = [claim for claim in row.claims if claim.status is not None]
        numbers = [claim for claim in row.claims if claim.value is not None]
        if words and numbers:
            yield contradiction(
                f"{row.name}, S = {row.seqlen_global}: {words[0].printed!r} stands beside results of the "
                "same run",
                row.where,
                ", ".join(f"{claim.column} = {claim.printed}" for claim in row.claims)
                + ": a run that ended so has no time, memory or rate; a run that has them did not end so",
            )
        for claim in numbers:
            if claim.value == 0 and claim.metric in ("time", "rate"):
                yield contradiction(
                    f"{row.name}, S = {row.seqlen_global}: {claim.column} is zero",
                    [claim.where],
                    f"{claim.printed} {claim.unit}: work was done, so neither its time nor its rate is zero",
                )
    for table in corpus.tables:
        marks = [c for row in table.rows for c in row.claims if c.status not in (None, "oom")]
        if marks:
            yield note(
                f"{table.name}: {marks[0].printed!r} stands where a number would, unexplained",
                [claim.where for claim in marks],
                "; ".join(f"S = {c.seqlen_global}: {c.column} = {c.printed}" for c in marks)
                + ": not run, out of memory and failed are not told apart",
            )
