"""Where the time of an iteration goes, from the profile of a record: shares of the slowest rank's span."""

from __future__ import annotations

import json

from ringmark import shares
from ringmark.tables.group import PHASE_TITLES, Group
from ringmark.tables.numbers import fixed, plain
from ringmark.tables.point import Point
from ringmark.tables.table import Entry, Table, word


def _rank_of(p: Point) -> dict[str, float] | None:
    text = next((row.profile for row in p.rows if row.profile), None)
    rank: dict[str, float] | None = json.loads(text) if text else None
    return rank


def part_shares(p: Point) -> dict[str, float] | None:
    """Each part's share of the iteration; together they are 1. None where there is no profile."""
    rank = _rank_of(p)
    return shares.shares(rank) if rank is not None else None


def kernel_shares(p: Point) -> dict[str, float] | None:
    """Attention's and send/recv's part of all kernel time, as profilers print it."""
    rank = _rank_of(p)
    if rank is None:
        return None
    kinds = ("attention", "send_recv", "merge", "other")
    total = sum(rank[f"{kind}_ms"] for kind in kinds)
    return {kind: rank[f"{kind}_ms"] / total for kind in kinds} if total else None


def where_time_goes(group: Group, phase: str) -> Table | None:
    """A row for each profiled cell: the span of the profiled iteration, and the shares of it."""
    rows = []
    for line in group.lines:
        for (there, seqlen), p in sorted(line.points.items(), key=lambda item: item[0][1]):
            parts, rank = part_shares(p), _rank_of(p)
            if there != phase or parts is None or rank is None:
                continue
            hidden = (rank["comm_busy_ms"] - rank["exposed_comm_ms"]) / rank["span_ms"]
            figures = [*parts.values(), hidden]
            entries = [Entry(fixed(figure, 4), is_number=True) for figure in figures]
            head = (word(line.label), word(str(seqlen)), Entry(plain(rank["span_ms"]), is_number=True))
            rows.append((*head, *entries))
    if not rows:
        return None
    return Table(
        name=f"{group.slug}-{phase.replace('_', '-')}-profile",
        title=f"{PHASE_TITLES[phase]}: where the time goes, as parts of one profiled iteration",
        header=("method", "seqlen", "ms", *shares.PARTS.values(), "hidden communication"),
        rows=tuple(rows),
    )
