"""The bound joined to each row: the same kernel, the same work per GPU, on one GPU with no communication.

A row's bound is the fastest `single` row of the same length, shape, phase, mesh and kernel that really ran:
of the same run where that run has one, else of the whole campaign (then the row says so).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from ringmark.tables.cellrow import CellRow

BOUND_METHOD = "single"


def _problem(row: CellRow) -> tuple[object, ...]:
    return (row.seqlen_global, row.shape, row.phase, row.mesh, row.kernel_ran)


def join_bounds(rows: Sequence[CellRow]) -> None:
    """Fill bound_ms, fraction_of_bound and bound_from of every passed row that has a bound."""
    # By where it was measured, then by row: the median of its repeats.
    alone: dict[tuple[object, ...], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if row.method == BOUND_METHOD and row.median_ms is not None:
            for where in ((row.run_id, *_problem(row)), _problem(row)):
                alone[where][row.row].append(row.median_ms)
    for row in rows:
        if row.median_ms is None:
            continue
        here, anywhere = alone.get((row.run_id, *_problem(row))), alone.get(_problem(row))
        if found := here or anywhere:
            row.bound_ms = min(map(median, found.values()))
            row.fraction_of_bound = row.bound_ms / row.median_ms
            row.bound_from = "run" if here else "campaign"
