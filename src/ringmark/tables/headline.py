"""The headline of a campaign for a README: one table, and one sentence with its absolute base."""

from __future__ import annotations

from dataclasses import dataclass

from ringmark.tables import comparison
from ringmark.tables.group import Group
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
    """The fastest method at the longest length that has a base to hold it against, else at the longest."""
    lengths = list(reversed(group.seqlens_global))
    for seqlen in [*(length for length in lengths if _base(group, length)), *lengths]:
        timed = [
            (point, line)
            for line in group.lines
            if not line.is_bound and (point := line.points.get(("fwd_bwd", seqlen))) and point.passed
        ]
        if timed:
            point, line = min(timed, key=lambda pair: pair[0].time_ms.value if pair[0].time_ms else 0.0)
            return _told(group, seqlen, point, line.label)
    return "No method passed here."


def _told(group: Group, seqlen: int, point: Point, label: str) -> str:
    if point.time_ms is None or point.rate is None:
        return "No method passed here."
    text = (
        f"At {seqlen} tokens {label} takes {plain(point.time_ms.value)} ms forward + backward: "
        f"{plain(point.rate.value)} TFLOP/s per GPU"
    )
    if point.fraction is not None:
        text += f", {fixed(point.fraction, 3)} of the kernel alone"
        text += " in larger calls" if OUTRUN in point.notes else ""
    base = _base(group, seqlen)
    if base is not None and base[0].time_ms is not None and base[1] != label:
        ratio = base[0].time_ms.value / point.time_ms.value
        text += f", {fixed(ratio, 2)} times as fast as {base[1]} ({plain(base[0].time_ms.value)} ms)"
    return text + "."


def _base(group: Group, seqlen: int) -> tuple[Point, str] | None:
    for name in choices()["speedup_bases"]:
        for line in group.lines:
            point = line.points.get(("fwd_bwd", seqlen))
            if name in (line.row, line.method) and point is not None and point.passed:
                return point, line.label
    return None
