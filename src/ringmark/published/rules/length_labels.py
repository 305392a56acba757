"""Are the lengths of a table those that its document says it measured, and do they shift a series?"""

from __future__ import annotations

import math
from collections.abc import Iterator

from ringmark.published.corpus import Corpus
from ringmark.published.finding import Finding, contradiction, note, suspect
from ringmark.published.rows import Series
from ringmark.published.systems import by_name

TITLE = "labels of length"
_FACTORS = (2, 4, 8, 16, 0.5, 0.25, 0.125, 0.0625)


def check(corpus: Corpus) -> Iterator[Finding]:
    for series in corpus.series:
        said = corpus.settings(series.rows[0].first.source_file, "seqlen_global")
        if len(said) > 1:
            yield from _against_grid(series, {int(c.value or 0) for c in said}, said[0].where)
    yield from _shifted(corpus)


def _against_grid(series: Series, grid: set[int], where: str) -> Iterator[Finding]:
    lengths = [row.seqlen_global for row in series.rows]
    extra, missing = sorted(set(lengths) - grid), sorted(grid - set(lengths))
    text = f"said: {sorted(grid)}; table: {lengths}"
    if extra:
        shift = next((found for factor in _FACTORS if (found := _relabelled(lengths, grid, factor))), None)
        if shift:
            count, factor = shift
            text += f"; the first {count} labels times {factor:g} make the table exactly the lengths said"
        yield contradiction(
            f"{series.name}: lengths {extra} are not among those that the document says it measured",
            [where, *(row.where[0] for row in series.rows if row.seqlen_global in extra)],
            text,
        )
    elif missing:
        yield note(
            f"{series.name}: lengths {missing} were said and have no row", [where, series.table.where], text
        )


def _relabelled(lengths: list[int], grid: set[int], factor: float) -> tuple[int, float] | None:
    """How many of the first labels must be multiplied by `factor` to make the grid."""
    for count in range(1, len(lengths) + 1):
        if {int(n * factor) for n in lengths[:count]} | set(lengths[count:]) == grid:
            return count, factor
    return None


def _shifted(corpus: Corpus) -> Iterator[Finding]:
    """Two series of one system that lie on one another once the labels of one are multiplied."""
    for a in corpus.series:
        for b in corpus.series:
            first, second = by_name(a.rows[0].first.system), by_name(b.rows[0].first.system)
            if a.rows[0].first.source_file == b.rows[0].first.source_file or not first or not second:
                continue
            if first == second:
                yield from _compare(corpus, a, b)


def _compare(corpus: Corpus, a: Series, b: Series) -> Iterator[Finding]:
    ours, theirs = _rates(corpus, a), _rates(corpus, b)
    straight = _distance(ours, theirs, 1)
    if straight is None or straight[0] < 0.05 or min(ours) >= min(theirs):
        return
    for factor in _FACTORS[:4]:
        moved = _distance(ours, theirs, factor)
        if moved and moved[1] >= 3 and moved[1] > straight[1] and moved[0] < 0.75 * straight[0]:
            pairs = [
                f"{ours[n]:g} at {n} beside {theirs[n * factor]:g} at {n * factor}"
                for n in ours
                if n * factor in theirs
            ]
            yield suspect(
                f"{a.name}: its labels times {factor} lie on the series of {b.table.where} better than "
                "as printed",
                [a.table.where, b.table.where],
                f"as printed {straight[1]} lengths in common, apart by {100 * straight[0]:.0f}% on "
                "average; times "
                f"{factor}: {', '.join(pairs)}, apart by {100 * moved[0]:.0f}%",
            )
            return


def _rates(corpus: Corpus, series: Series) -> dict[int, float]:
    found = {}
    for row in series.rows:
        for claim in row.claims:
            if claim.metric == "rate" and claim.value and corpus.phase(claim)[0] == "fwd_bwd":
                found[row.seqlen_global] = claim.value
    return found


def _distance(
    ours: dict[int, float], theirs: dict[int, float], factor: int | float
) -> tuple[float, int] | None:
    apart = [abs(math.log(ours[n] / theirs[int(n * factor)])) for n in ours if int(n * factor) in theirs]
    return (math.expm1(sum(apart) / len(apart)), len(apart)) if apart else None
