"""Does time grow with the length as attention's can: by a power from 0 to 2 that never falls again?

Time is a sum, or a maximum, of a constant (launches), a part in S (bytes on the ring) and a part in S^2 (the
two products). On logarithmic axes such a curve only bends upward and its slope stays between 0 and 2. A slope
above 2 means that the rate falls while the work per byte grows. Slopes are taken at the edges that rounding
leaves, so that a coarse print cannot make a finding.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import NamedTuple

from ringmark.published.claim import Claim
from ringmark.published.corpus import Corpus
from ringmark.published.finding import Finding, note, suspect
from ringmark.published.rows import Row, Series, Span, span

TITLE = "time against length"
_NOTE, _SUSPECT = 0.02, 0.07  # of the exponent: two lengths apart by two, 1.4% and 5% of the time
_BEND_NOTE, _BEND_SUSPECT = 0.15, 0.5


class _Point(NamedTuple):
    row: Row
    claim: Claim
    relative_time: Span  # in any unit: a rate gives S^2 / rate


def check(corpus: Corpus) -> Iterator[Finding]:
    for series in corpus.series:
        for phase, points in _curves(corpus, series):
            yield from _check_curve(series, phase, points)


def _curves(corpus: Corpus, series: Series) -> Iterator[tuple[str, list[_Point]]]:
    """The series of each phase: from times, or from rates where they print more digits or stand alone."""
    for phase in ("fwd", "fwd_bwd"):
        points = []
        for row in series.rows:
            rate = next(
                (c for c in row.claims if c.metric == "rate" and c.value and corpus.phase(c)[0] == phase),
                None,
            )
            time, claim = row.time_ms(phase), row.find("time", phase)
            if time and claim and (rate is None or time.relative_half_width < 0.002):
                points.append(_Point(row, claim, time))
            elif rate is not None:
                printed, work = span(rate), float(row.seqlen_global) ** 2
                points.append(
                    _Point(row, rate, Span(work / printed.high, work / printed.mid, work / printed.low))
                )
        if len(points) > 1:
            yield phase, points


def _slope(first: _Point, second: _Point) -> Span:
    length = math.log(second.row.seqlen_global / first.row.seqlen_global)
    a, b = first.relative_time, second.relative_time
    return Span(*(math.log(y / x) / length for x, y in ((a.high, b.low), (a.mid, b.mid), (a.low, b.high))))


def _check_curve(series: Series, phase: str, points: list[_Point]) -> Iterator[Finding]:
    pairs = [
        (a, b, _slope(a, b))
        for a, b in itertools.pairwise(points)
        if b.row.seqlen_global > a.row.seqlen_global
    ]
    for a, b, slope in pairs:
        if slope.low > 2 + _NOTE:
            make = suspect if slope.low > 2 + _SUSPECT else note
            yield make(
                f"{series.name}, {phase}: from S = {a.row.seqlen_global} to {b.row.seqlen_global} time "
                "grows faster "
                "than the work",
                [a.claim.where, b.claim.where],
                _words(a, b, slope)
                + "; the work grows with exponent 2, and a longer sequence hides more of the "
                "communication, so the exponent should not pass 2",
            )
        elif slope.high < 0:
            yield suspect(
                f"{series.name}, {phase}: S = {b.row.seqlen_global} takes less time than S = "
                f"{a.row.seqlen_global}",
                [a.claim.where, b.claim.where],
                _words(a, b, slope) + "; more work and more bytes cannot take less time on the same machine",
            )
    for (a, b, before), (_, c, after) in itertools.pairwise(pairs):
        if before.low - after.high > _BEND_NOTE:
            make = suspect if before.low - after.high > _BEND_SUSPECT else note
            yield make(
                f"{series.name}, {phase}: growth slows down after S = {b.row.seqlen_global}",
                [a.claim.where, b.claim.where, c.claim.where],
                f"{_words(a, b, before)}, then {_words(b, c, after)}; the exponent of a constant plus a "
                "part in S "
                "plus a part in S² never falls, so one of the three points is off, unless the kernel "
                "itself becomes "
                "more efficient just there",
            )


def _words(a: _Point, b: _Point, slope: Span) -> str:
    shown = f"{a.claim.printed} to {b.claim.printed} {a.claim.unit}"
    if a.claim.metric == "rate":
        shown += f" is {b.relative_time.mid / a.relative_time.mid:.3f} times the time"
    length = b.row.seqlen_global / a.row.seqlen_global
    return f"{shown} over {length:.4g} times the length: exponent {slope.mid:.2f}"
