"""What plots share: matplotlib's fixed settings, a figure with its title, a line with its intervals."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager

import matplotlib

matplotlib.use("Agg")
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from ringmark.tables.point import Span
from ringmark.tables.style import BOUND_COLOUR, Look, settings


def fixed_settings() -> AbstractContextManager[None]:
    return matplotlib.rc_context(settings())  # type: ignore[arg-type]


def empty(title: str, caption: str, strip_rows: int = 0) -> tuple[Figure, Axes, Axes | None]:
    """A figure with its title and caption; below the axes a strip for what did not pass, if anything."""
    strip = 0.22 * strip_rows + (0.15 if strip_rows else 0)
    figure = Figure(figsize=(8.4, 4.1 + strip), layout="constrained")
    figure.suptitle(title, x=0.01, ha="left", fontsize=10, fontweight="bold")
    figure.supxlabel(caption, x=0.01, ha="left", fontsize=7, color="#555555")
    if not strip_rows:
        return figure, figure.add_subplot(), None
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=[3.6, strip])
    return figure, upper, lower


def draw_line(axes: Axes, spans: Sequence[tuple[int, Span]], label: str, look: Look | None) -> None:
    """A line through (x, span), which come in the order of x; without a look it is the bound's."""
    xs, ys = [x for x, _ in spans], [span.value for _, span in spans]
    if look is None:  # a thick pale line behind the others
        axes.plot(xs, ys, color=BOUND_COLOUR, linewidth=5, alpha=0.18, label=label, zorder=1)
        return
    axes.errorbar(
        xs,
        ys,
        yerr=[[span.value - span.low for _, span in spans], [span.high - span.value for _, span in spans]],
        color=look.colour,
        marker=look.marker,
        linestyle=look.dashes,
        capsize=2.5,
        elinewidth=0.9,
        label=label,
        zorder=3,
    )


def short(seqlen: int) -> str:
    """A length as an axis has room for it."""
    for size, unit in ((2**20, "M"), (2**10, "k")):
        if seqlen >= size and seqlen % size == 0:
            return f"{seqlen // size}{unit}"
    return str(seqlen)
