"""Plots of a campaign, from the points that its tables print: rates, memory, scaling, where the time goes.

A cell that did not pass is a cross on the lower edge, never a gap and never a zero. Fixed settings and no
dates: the same points give the same bytes.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator

from ringmark.shares import PARTS
from ringmark.tables import scaling
from ringmark.tables.canvas import draw_line, empty, fixed_settings, short
from ringmark.tables.group import PHASE_TITLES, Group, Line
from ringmark.tables.page import group_title
from ringmark.tables.point import Point, Span
from ringmark.tables.profiles import part_shares
from ringmark.tables.style import BOUND_COLOUR, COLOURS, HATCHES, Look, looks

FORMATS = ("svg", "pdf", "png")
Value = Callable[[Point], "Span | None"]


def pictures(found: Sequence[Group]) -> Iterator[tuple[str, Figure]]:
    """Every plot of a campaign with the name of its files."""
    closed = [group for group in found if not group.open]
    for group in found:
        for phase in ("fwd", "fwd_bwd"):
            points = [p for line in group.lines for place, p in line.points.items() if place[0] == phase]
            if any(p.rate for p in points):  # where nothing passed there is nothing to draw
                stem = f"{group.slug}-{phase.replace('_', '-')}"
                yield f"{stem}-rate", rate_figure(group, phase)
                yield f"{stem}-memory", memory_figure(group, phase)
    for group in closed:
        for phase in ("fwd", "fwd_bwd"):
            figure = time_figure(group, phase)
            if figure is not None:
                yield f"{group.slug}-{phase.replace('_', '-')}-where-time-goes", figure
    yield from scaling.pictures(closed)


def save(figure: Figure, kind: str) -> bytes:
    """A figure's file as bytes."""
    out = io.BytesIO()
    by_kind: dict[str, dict[str, Any]] = {
        "svg": {"Date": None, "Creator": "ringmark"},
        "pdf": {"CreationDate": None, "Creator": "ringmark", "Producer": "ringmark"},
        "png": {"Software": "ringmark"},
    }
    with fixed_settings():
        figure.savefig(out, format=kind, metadata=by_kind[kind])
    return out.getvalue()


def rate_figure(group: Group, phase: str) -> Figure:
    """TFLOP/s per GPU against length, with intervals and the bound."""
    title = f"{PHASE_TITLES[phase]}: TFLOP/s per GPU"
    return _by_length(group, phase, title, lambda p: p.rate)


def memory_figure(group: Group, phase: str) -> Figure:
    """Peak memory above the inputs against length, on two logarithmic axes."""

    def value(p: Point) -> Span | None:
        mib = p.memory_above_inputs_mib
        return Span(mib, mib, mib) if mib is not None else None

    title = f"{PHASE_TITLES[phase]}: peak memory above the inputs, MiB"
    return _by_length(group, phase, title, value, log_y=True)


def _by_length(group: Group, phase: str, title: str, value: Value, log_y: bool = False) -> Figure:
    failed = _failed(group, phase, value)
    styles = looks([line.row for line in group.lines if not line.is_bound])
    with fixed_settings():
        figure, axes, strip = empty(title, group_title(group), len(failed))
        axes.set_xscale("log", base=2)
        if log_y:
            axes.set_yscale("log", base=2)
            axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1, 2, 3, 5, 7)))
            axes.yaxis.set_major_formatter(FuncFormatter(lambda y, _: f"{y:g}"))
        for line in group.lines:
            spans = [
                (seqlen, span)
                for (there, seqlen), p in sorted(line.points.items(), key=lambda item: item[0][1])
                if there == phase and (span := value(p)) is not None
            ]
            if spans:
                draw_line(axes, spans, _label(group, line, phase), styles.get(line.row))
        if not log_y:
            axes.set_ylim(bottom=0)
        if strip is not None:
            axes.tick_params(labelbottom=False)
            _draw_strip(strip, failed, styles)
        lengths = sorted({s for line in group.lines for there, s in line.points if there == phase})
        _length_axis(strip or axes, lengths)
        figure.legend(loc="outside right upper")
        return figure


def _label(group: Group, line: Line, phase: str) -> str:
    """A method's name; in an open group with its kernels, which set lines apart more than methods do."""
    points = [p for (there, _), p in line.points.items() if there == phase]
    kernels = sorted({row.kernel_ran for p in points for row in p.rows if row.passed and row.kernel_ran})
    return f"{line.label}: {' or '.join(kernels)}" if group.open and kernels else line.label


_Failed = list[tuple[Line, dict[int, str]]]


def _failed(group: Group, phase: str, value: Value) -> _Failed:
    """Each method with the lengths that have no figure, and their words."""
    found = [
        (
            line,
            {s: p.status for (there, s), p in line.points.items() if there == phase and value(p) is None},
        )
        for line in group.lines
    ]
    return [(line, words) for line, words in found if words]


def _draw_strip(axes: Axes, failed: _Failed, styles: dict[str, Look]) -> None:
    """A row for each method: a cross and its word at each length that did not pass."""
    for height, (line, words) in enumerate(failed):
        colour = styles[line.row].colour if line.row in styles else BOUND_COLOUR
        axes.plot(list(words), [height] * len(words), "x", color=colour, markersize=6, mew=1.8)
        for seqlen, status in words.items():
            place = (seqlen, height)
            axes.annotate(status, place, (6, 0), textcoords="offset points", fontsize=7, va="center")
    axes.set_yticks(range(len(failed)), [line.label.split(" (")[0] for line, _ in failed], fontsize=7)
    axes.set_ylim(len(failed) - 0.4, -0.6)
    axes.grid(visible=False)
    axes.spines["left"].set_visible(False)
    axes.tick_params(axis="y", length=0)


def _length_axis(axes: Axes, lengths: Sequence[int]) -> None:
    axes.set_xticks(list(lengths), [short(seqlen) for seqlen in lengths])
    axes.minorticks_off()
    axes.set_xlabel("seqlen_global (tokens)")
    if lengths:
        axes.set_xlim(min(lengths) / 1.25, max(lengths) * 1.45)


def time_figure(group: Group, phase: str) -> Figure | None:
    """Stacked shares of where the time of an iteration goes, at the longest length that was profiled."""
    profiled = [
        (seqlen, line, shares)
        for line in group.lines
        for (there, seqlen), p in line.points.items()
        if there == phase and (shares := part_shares(p)) is not None
    ]
    if not profiled:
        return None
    longest = max(seqlen for seqlen, _, _ in profiled)
    bars = [(line.label, shares) for seqlen, line, shares in profiled if seqlen == longest]
    with fixed_settings():
        title = f"{PHASE_TITLES[phase]} at {short(longest)}: where the time goes"
        figure, axes, _ = empty(title, group_title(group))
        left = [0.0] * len(bars)
        for i, (name, title) in enumerate(PARTS.items()):
            widths = [shares.get(name, 0.0) for _, shares in bars]
            axes.barh(
                range(len(bars)),
                widths,
                left=left,
                color=COLOURS[i],
                hatch=HATCHES[i],
                edgecolor="white",
                linewidth=0.5,
                label=title,
            )
            left = [start + width for start, width in zip(left, widths)]
        axes.set_yticks(range(len(bars)), [label for label, _ in bars])
        axes.invert_yaxis()
        axes.set_xlabel("share of an iteration (one profiled, on its slowest rank)")
        axes.set_xlim(0, 1)
        axes.grid(axis="y", visible=False)
        axes.grid(axis="x", visible=True)
        axes.legend(loc="lower left", bbox_to_anchor=(-0.02, 1.0), ncols=len(PARTS), fontsize=7.5)
        return figure
