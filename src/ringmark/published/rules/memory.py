"""Do different systems, degrees or phases print the very same memory?"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator

from ringmark.published.claim import Claim
from ringmark.published.corpus import Corpus
from ringmark.published.finding import Finding, note, suspect
from ringmark.published.rows import Series

TITLE = "identical memory"


def check(corpus: Corpus) -> Iterator[Finding]:
    groups: dict[tuple[str, ...], list[Series]] = defaultdict(list)
    for series in corpus.series:
        found = _memory(series)
        if len(found) > 1:
            groups[tuple(f"{c.seqlen_global}: {c.printed} {c.unit}" for c in found)].append(series)
    for printed, members in groups.items():
        systems = {series.rows[0].first.system for series in members}
        runs = {series.rows[0].run for series in members}
        phases = {claim.phase for series in members for claim in _memory(series)}
        where = [claim.where for series in members for claim in _memory(series)]
        text = f"{'; '.join(printed)}, in each of {', '.join(_name(series) for series in members)}"
        if len(systems) > 1:
            yield suspect(
                f"{len(systems)} different systems print the same memory to the last digit at every length",
                where,
                f"{text}; their buffers differ (rings hold blocks in flight, all-to-all holds whole "
                "sequences "
                "of fewer heads), so equal peaks may mean that the figure covers something else",
            )
        if len(phases) > 1:
            yield suspect(
                "forward alone and forward + backward print the same memory to the last digit",
                where,
                f"{text}; backward adds gradients of q, k, v and of the output to what forward holds",
            )
        if len(systems) == 1 and len(runs) > 1:
            yield note("different degrees print the same memory to the last digit", where, text)


def _memory(series: Series) -> list[Claim]:
    return [c for row in series.rows if (c := row.find("memory"))]


def _name(series: Series) -> str:
    phase = series.rows[0].claims[0].phase if series.rows[0].first.format == "markdown_table" else None
    return f"{series.name}{' ' + phase if phase else ''} ({series.table.where})"
