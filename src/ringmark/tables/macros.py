r"""Numbers for prose in LaTeX: \ringmark{CELL KEY}{FIGURE} prints what the records say, or is an error.

The key is the cell's own, as in the paths of its records; the figures are ms, ms-low, ms-high, tflops,
tflops-low, tflops-high, of-bound and mib, and notes is what a table says beside them.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from ringmark.tables.group import Group
from ringmark.tables.latex import escape
from ringmark.tables.numbers import fixed, plain
from ringmark.tables.point import Point

_HEAD = r"""% Made by `ringmark render`: figures of campaign {name} for \ringmark{{cell key}}{{figure}}.
\makeatletter
\providecommand{{\ringmark}}[2]{{%
  \ifcsname ringmark@#1@#2\endcsname\csname ringmark@#1@#2\endcsname\else
  \@latex@error{{ringmark: there is no figure \detokenize{{#2}} of \detokenize{{#1}}}}\@ehc\fi}}
"""


def text(name: str, closed: Sequence[Group]) -> str:
    """The macros of a campaign."""
    lines = [
        rf"\@namedef{{ringmark@{key}@{figure}}}{{{escape(value)}}}"
        for group in closed
        if not group.open
        for key, point in _points(group)
        for figure, value in _figures(point)
    ]
    return _HEAD.format(name=name) + "\n".join([*lines, r"\makeatother"]) + "\n"


def _points(group: Group) -> Iterable[tuple[str, Point]]:
    for line in group.lines:
        for (phase, seqlen), point in sorted(line.points.items()):
            yield f"{line.row}/{group.shape}/{group.mesh}/{group.kernel}/S{seqlen}_{phase}", point


def _figures(point: Point) -> Iterable[tuple[str, str]]:
    """Each figure's text; where the cell did not pass, its word in the place of all."""
    for name, span in (("ms", point.time_ms), ("tflops", point.rate)):
        for end, value in (("", "value"), ("-low", "low"), ("-high", "high")):
            yield f"{name}{end}", plain(getattr(span, value)) if span else point.status
    yield "of-bound", fixed(point.fraction, 3) if point.fraction is not None else _why(point, "no bound")
    mib = point.memory_peak_mib
    yield "mib", plain(mib) if mib is not None else _why(point, "not measured")
    yield "notes", "; ".join(point.told) or "none"


def _why(point: Point, otherwise: str) -> str:
    return otherwise if point.passed else point.status
