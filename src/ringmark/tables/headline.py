"""The headline of a campaign for a README: one table, and one sentence with its absolute base."""

from __future__ import annotations

import math
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
    return Headline(campaign, group_title(chosen), kind(chosen), table, _sentence(chosen, found))


def _sentence(group: Group, found: list[Group]) -> str:
    """The fastest method and the fastest of the other side, ringmark's own or peers.

    At the longest length at which both sides were tried, else at the longest. Where there is one side alone
    the base of the speed-ups takes the other's place.
    """
    lines = [line for line in group.lines if not line.is_bound]
    base = comparison.base_line(lines, choices()["speedup_bases"])
    lengths = [length for length in reversed(group.seqlens_global) if _at(length, lines)]
    both = [length for length in lengths if len({line.is_ours for line, _ in _at(length, lines)}) == 2]
    for seqlen in [*both, *lengths]:
        (line, point), *others = _at(seqlen, lines)
        if point.time_ms is not None:
            across = [one for one in others if one[0].is_ours != line.is_ours]
            held = across or [one for one in others if one[0] is base]
            told = _told(seqlen, line, point, held[0] if held else None)
            return told + (_kernels(seqlen, point, held[0][1], group, found) if held else "")
    return "No method passed here."


def _at(seqlen: int, lines: list[Line]) -> list[tuple[Line, Point]]:
    """What was tried at a length, the fastest first and what has no time last."""
    there = [(line, line.points["fwd_bwd", seqlen]) for line in lines if ("fwd_bwd", seqlen) in line.points]
    return sorted(there, key=lambda one: one[1].time_ms.value if one[1].time_ms else math.inf)


def _told(seqlen: int, line: Line, point: Point, other: tuple[Line, Point] | None) -> str:
    assert point.time_ms is not None
    assert point.rate is not None
    text = (
        f"At {seqlen} tokens {_named(line, point)} takes {plain(point.time_ms.value)} ms forward + backward: "
        f"{plain(point.rate.value)} TFLOP/s per GPU"
    )
    if point.fraction is not None:
        text += f", {fixed(point.fraction, 3)} of the kernel alone"
        text += " in larger calls" if OUTRUN in point.notes else ""
    return f"{text}{_against(point, *other) if other else ''}."


def _against(point: Point, other: Line, held: Point) -> str:
    if held.time_ms is None or point.time_ms is None:
        return f"; {_named(other, held)} has no time there: {held.status}"
    ratio = held.time_ms.value / point.time_ms.value
    there = f"{plain(held.time_ms.value)} ms"
    if {row.program for row in held.rows} != {row.program for row in point.rows}:
        there += ", by another commit of ringmark"
    elif not held.runs & point.runs:
        there += ", in another run"
    return f", {fixed(ratio, 2)} times as fast as {_named(other, held)} ({there})"


def _named(line: Line, point: Point) -> str:
    """Whose method it is and what it ran with: two sides of an open comparison may run two kernels."""
    whose = "ringmark's own " if line.is_ours else ""
    kernel = _kernel(point)
    return f"{whose}{line.label} with {kernel}" if kernel else f"{whose}{line.label}"


def _kernel(point: Point) -> str | None:
    return next((row.kernel_ran for row in point.rows if row.kernel_ran), None)


def _kernels(seqlen: int, point: Point, held: Point, group: Group, found: list[Group]) -> str:
    """Where two kernels were compared: how much of it is theirs, at the nearest length that has both."""
    ours, theirs = _kernel(point), _kernel(held)
    if point.time_ms is None or held.time_ms is None or ours == theirs:
        return ""
    alone = _alone(group, found)
    both = sorted(
        {s for kernel, s in alone if kernel == ours} & {s for kernel, s in alone if kernel == theirs}
    )
    if not both:
        return f" The kernels {ours} and {theirs} alone were not measured at one length."
    nearest = min(both, key=lambda there: abs(there - seqlen))
    ratio = alone[theirs, nearest] / alone[ours, nearest]
    return (
        f" Of the kernels alone, {ours} is {fixed(ratio, 2)} times as fast as {theirs} at {nearest} tokens."
    )


def _alone(group: Group, found: list[Group]) -> dict[tuple[str | None, int], float]:
    """The least ms of the bound by kernel and length, of the groups of this problem."""
    least: dict[tuple[str | None, int], float] = {}
    for other in found:
        if (other.shape, other.mesh, other.open) != (group.shape, group.mesh, False):
            continue
        for (phase, seqlen), p in (
            (place, p) for line in other.lines if line.is_bound for place, p in line.points.items()
        ):
            if phase == "fwd_bwd" and p.time_ms is not None:
                place = (_kernel(p), seqlen)
                least[place] = min(p.time_ms.value, least.get(place, math.inf))
    return least
