"""The headline of a campaign for a README: one table, and one sentence with its absolute base."""

from __future__ import annotations

from dataclasses import dataclass

from ringmark.tables import comparison
from ringmark.tables.group import Group, Line
from ringmark.tables.numbers import fixed, plain
from ringmark.tables.page import choices, group_title, kind
from ringmark.tables.point import OUTRUN, Point
from ringmark.tables.table import Table


@dataclass(frozen=True)
class Headline:
    """What block_headline.md.j2 prints."""

    campaign: str
    title: str
    kind: str
    table: Table
    sentence: str


def headline(campaign: str, found: list[Group]) -> Headline | None:
    """Of the largest world: the open comparison where there is one, else the closed one."""
    candidates = [group for group in found if "fwd_bwd" in group.phases()]
    if not candidates:
        return None
    world = max(group.sample.world_size for group in candidates)
    largest = [group for group in candidates if group.sample.world_size == world]
    chosen = next((group for group in largest if group.open), largest[0])
    table = comparison.rates(chosen, "fwd_bwd")
    return Headline(campaign, group_title(chosen), kind(chosen), table, _sentence(chosen))


def _sentence(group: Group) -> str:
    """The fastest method at the longest length at which the base was run, else at the longest."""
    base = comparison.base_line(group.lines, choices()["speedup_bases"])
    held = base.points if base else {}
    lengths = list(reversed(group.seqlens_global))
    for seqlen in [*(length for length in lengths if ("fwd_bwd", length) in held), *lengths]:
        timed = [
            (point.time_ms.value, point, line)
            for line in group.lines
            if not line.is_bound and (point := line.points.get(("fwd_bwd", seqlen))) and point.time_ms
        ]
        if timed:
            _, point, line = min(timed, key=lambda one: one[0])
            return _told(seqlen, point, line, base)
    return "No method passed here."


def _told(seqlen: int, point: Point, line: Line, base: Line | None) -> str:
    if point.time_ms is None or point.rate is None:
        return "No method passed here."
    text = (
        f"At {seqlen} tokens {_named(line, point)} takes {plain(point.time_ms.value)} ms forward + backward: "
        f"{plain(point.rate.value)} TFLOP/s per GPU"
    )
    if point.fraction is not None:
        text += f", {fixed(point.fraction, 3)} of the kernel alone"
        text += " in larger calls" if OUTRUN in point.notes else ""
    held = base.points.get(("fwd_bwd", seqlen)) if base else None
    if base is not None and held is not None and base is not line:
        text += _against(point, held, base)
    return text + "."


def _against(point: Point, held: Point, base: Line) -> str:
    if held.time_ms is None or point.time_ms is None:
        return f"; {_named(base, held)} has no time there: {held.status}"
    ratio = held.time_ms.value / point.time_ms.value
    there = f"{plain(held.time_ms.value)} ms"
    if {row.program for row in held.rows} != {row.program for row in point.rows}:
        there += ", by another commit of ringmark"
    return f", {fixed(ratio, 2)} times as fast as {_named(base, held)} ({there})"


def _named(line: Line, point: Point) -> str:
    """Whose method it is and what it ran with: two sides of an open comparison may run two kernels."""
    whose = "ringmark's own " if line.implementation == "ringmark" else ""
    kernel = next((row.kernel_ran for row in point.rows if row.kernel_ran), None)
    return f"{whose}{line.label} with {kernel}" if kernel else f"{whose}{line.label}"
