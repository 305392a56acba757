"""The bound joined to each row: the same kernel, the same work per GPU, on one GPU with no communication.

A row's bound is the `single` record of the same length, shape, phase, mesh and kernel that really ran:
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
    in_run: dict[tuple[object, ...], list[float]] = defaultdict(list)
    in_campaign: dict[tuple[object, ...], list[float]] = defaultdict(list)
    for row in rows:
        if row.method == BOUND_METHOD and row.median_ms is not None:
            in_run[(row.run_id, *_problem(row))].append(row.median_ms)
            in_campaign[_problem(row)].append(row.median_ms)
    for row in rows:
        if row.median_ms is None:
            continue
        here, anywhere = in_run.get((row.run_id, *_problem(row))), in_campaign.get(_problem(row))
        if here or anywhere:
            row.bound_ms = median(here or anywhere or [])
            row.fraction_of_bound = row.bound_ms / row.median_ms
            row.bound_from = "run" if here else "campaign"
