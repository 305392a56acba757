"""Which rows, logs and numbers are printed more than once, so that they must not count twice?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ringmark.published.claim import Claim
from ringmark.published.corpus import Corpus
from ringmark.published.finding import Finding, contradiction, note, suspect
from ringmark.published.rows import Row, degrees

TITLE = "repeated rows and logs"


def check(corpus: Corpus) -> Iterator[Finding]:
    for name in corpus.files:
        yield from _rows([row for row in corpus.rows if row.first.source_file == name])
        yield from _logs(corpus.settings(name, "log_name"))


def _rows(rows: list[Row]) -> Iterator[Finding]:
    groups: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[(*row.run, row.seqlen_global, tuple((c.column, c.phase) for c in row.claims))].append(row)
    same: dict[tuple[object, ...], list[list[Row]]] = defaultdict(list)
    for group in groups.values():
        contents = {tuple(c.printed for c in row.claims) for row in group}
        if len(group) > 1 and len(contents) == 1:
            same[(*group[0].run, len(group))].append(group)
        elif len(group) > 1:
            yield suspect(
                f"{group[0].name}, S = {group[0].seqlen_global}: one run printed with different numbers",
                [place for row in group for place in row.where],
                "; ".join(", ".join(c.printed for c in row.claims) for row in group),
            )
    for groups_of_run in same.values():
        repeated = [row for group in groups_of_run for row in group]
        lengths = sorted({row.seqlen_global for row in repeated})
        yield note(
            f"{repeated[0].name}{degrees(repeated[0])}: {len(groups_of_run)} rows are printed "
            f"{len(groups_of_run[0])} times, digit for digit",
            [row.where[0] for row in repeated],
            f"S = {', '.join(map(str, lengths))}: {len(repeated)} rows, {len(groups_of_run)} measurements",
        )


def _logs(logs: list[Claim]) -> Iterator[Finding]:
    groups: dict[str, list[Claim]] = defaultdict(list)
    for claim in logs:
        groups[claim.printed].append(claim)
    for name, claims in groups.items():
        owners = {claim.item for claim in claims}
        if len(claims) > 1:
            text = f"{name} is named {len(claims)} times, for {' and '.join(map(str, owners))}"
            if len(owners) > 1:
                yield contradiction(
                    "one log is named as the source of different systems", [c.where for c in claims], text
                )
            else:
                yield note(
                    "one log is named twice for one system; a second log may have been meant",
                    [c.where for c in claims],
                    text,
                )
