"""The bound joined to each row: the same kernel, the same work per GPU, each GPU without the others.

A row's bound is the fastest `single` row of the same length, shape, phase, mesh and kernel that really ran,
whatever word asked for that kernel: of the same run where that run has one, else of all runs of the same
program. The row says so where it is of another run, or asked for by another word. A time of another commit is
of another program, and no bound.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from statistics import median

from ringmark.cell import BOUND
from ringmark.tables.cellrow import CellRow


def _problem(row: CellRow) -> tuple[object, ...]:
    return (row.seqlen_global, row.shape, row.phase, row.mesh, row.kernel_ran)


def _in_run(row: CellRow) -> tuple[object, ...]:
    return ("run", row.run_id, *_problem(row))


def _in_program(row: CellRow) -> tuple[object, ...]:
    return ("program", row.program, *_problem(row))


def join_bounds(rows: Sequence[CellRow]) -> None:
    """Fill bound_ms, fraction_of_bound and bound_from of every passed row that has a bound."""
    # By where it was measured, then by the kernel asked for and the row: the median of its repeats.
    alone: dict[tuple[object, ...], dict[tuple[str, str], list[float]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for row in rows:
        if row.method == BOUND and row.median_ms is not None:
            for where in (_in_run(row), _in_program(row)):
                alone[where][row.kernel_asked, row.row].append(row.median_ms)
    for row in rows:
        if row.median_ms is None:
            continue
        here, elsewhere = alone.get(_in_run(row)), alone.get(_in_program(row))
        if found := here or elsewhere:
            # Of equally fast ones that of the row's own word.
            row.bound_ms, _, asked = min(
                (median(times), asked != row.kernel_asked, asked) for (asked, _), times in found.items()
            )
            row.fraction_of_bound = row.bound_ms / row.median_ms
            row.bound_from = "run" if here else "campaign"
            if asked != row.kernel_asked:
                row.bound_from += f", kernel {asked}"
