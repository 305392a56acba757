"""What the last timed iteration left behind, held against one that nobody times.

The check looks at iterations before and after the clock. Between them only this is seen of the work: some
rows of dq, dk and dv, spread evenly, which an iteration of the same numbers must leave again. A buffer that
is written too early only where iterations follow each other closely, or a method that rests while it is
timed, leaves something else. (A forward leaves nothing.)
"""

from __future__ import annotations

import torch

from ringmark.bench import gather
from ringmark.bench.compare import NO_NUMBER, row_weights
from ringmark.bench.problem import Problem
from ringmark.comm.mesh import Mesh
from ringmark.record import Balance, Check
from ringmark.tolerance import timed_allowed

GRADIENTS = ("dq", "dk", "dv")
ROWS = 64
TINY = 1e-3
Left = list[torch.Tensor]


def left(problem: Problem) -> Left:
    """Some rows of the gradients as they are now, on the host; a row of dq counts as much as any other."""
    if problem.dout is None:
        return []
    weights = row_weights(problem.visible)[:, None, None]
    found = []
    for number, grad in enumerate(problem.gradients):
        rows = torch.linspace(0, grad.shape[1] - 1, min(ROWS, grad.shape[1]), device=grad.device).long()
        chosen = grad[:, rows].double()
        found.append((chosen * weights[rows] if number == 0 else chosen).cpu())
    return found


def gap(timed: Left, again: Left, mesh: Mesh) -> float | None:
    """By how much of their norm they differ, in the worst tensor and rank; None without gradients."""
    if not timed:
        return None
    norms = [float(one.norm()) for one in again]
    least = TINY * max(norms)  # a gradient that is exactly zero is nothing but rounding
    gaps = [float((a - b).norm()) / max(norm, least, 1e-30) for a, b, norm in zip(timed, again, norms)]
    worst = max(one if one < NO_NUMBER else NO_NUMBER for one in gaps)
    return max(row[0] for row in gather.rows(mesh, [worst]))


def graded(found: float | None, first: Check) -> Balance | None:
    """A gap beside what it may be, from what the first check allows of the gradients."""
    if found is None:
        return None
    return Balance(found, timed_allowed(*(first.errors[name].allowed for name in GRADIENTS)))
