"""A whole iteration with a dense dout, as it is timed: what a check of some rows cannot see.

    sum(dout * out) = sum(dv * v)       as out = P v and dv = P^T dout
    sum(dq * q)     = sum(dk * k)       both are the sum of dS * S
    sampled rows                        a row's out and dq depend on its own dout alone: as in the check
    every element                       is a number

dout is weighted as in the check, so that every row counts alike. As it is random, either side of a sum is
about as large as the norm of out (dq). The gap of a right answer is that times the answer's own error; where
a part f of the rows is lost it is that times the root of f.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from ringmark.bench import compare, gather
from ringmark.bench.problem import Problem
from ringmark.comm.mesh import Mesh
from ringmark.methods.base import Method
from ringmark.record import Balance, TensorError
from ringmark.tolerance import BALANCES, balance_allowed

_STEP = 1024


class Dense(NamedTuple):
    """What is kept of such an iteration."""

    rows: compare.DenseRows
    gaps: dict[str, float]  # by what is balanced, over all ranks


def iterate(method: Method, problem: Problem, mesh: Mesh, index: torch.Tensor) -> Dense:
    """Run it; `index` are the local numbers of the rows that the check looks at."""
    assert problem.dout is not None
    weights = compare.row_weights(problem.visible)[:, None, None]
    problem.clear_grads()
    problem.dout.mul_(weights.to(problem.dout.dtype))
    out = method.forward(problem.q, problem.k, problem.v)
    torch.autograd.backward(out, problem.dout)
    out, grads = out.detach(), problem.gradients
    gaps = _gaps(problem, out, grads, weights, mesh)
    numbers = dict(zip(("out", "dq", "dk", "dv"), (out, *grads)))
    nonfinite = {name: compare.count_nonfinite(tensor) for name, tensor in numbers.items()}
    rows = compare.DenseRows(out[:, index], grads[0][:, index], nonfinite)
    problem.clear_grads()
    problem.restore_dout()
    return Dense(rows, gaps)


def graded(gaps: Mapping[str, float], errors: Mapping[str, TensorError]) -> dict[str, Balance]:
    """Each gap beside what it may be, from what is allowed of the tensors on either side."""
    return {
        name: Balance(gaps[name], balance_allowed(*(errors[side].allowed for side in sides)))
        for name, sides in BALANCES.items()
    }


def _gaps(
    problem: Problem, out: torch.Tensor, grads: Sequence[torch.Tensor], weights: torch.Tensor, mesh: Mesh
) -> dict[str, float]:
    """By how much of their scale the sums differ, in the worst head."""
    dq, dk, dv = grads
    assert problem.dout is not None

    def sums(a: torch.Tensor, b: torch.Tensor, weights: torch.Tensor | None = None) -> torch.Tensor:
        return _sums(a, b, problem.k.shape[2], weights)

    in_rows = sums(out, out, weights**2)
    found = {  # of each: either side, and the squares of both norms
        "dout.out - dv.v": (sums(problem.dout, out), sums(dv, problem.v), in_rows, sums(dv, dv)),
        "dq.q - dk.k": (sums(dq, problem.q), sums(dk, problem.k), sums(dq, dq), sums(dk, dk)),
    }
    assert set(found) == set(BALANCES)
    total = torch.stack([torch.stack(parts) for parts in found.values()], 1)
    if not problem.private and mesh.world_size > 1:
        dist.all_reduce(total, group=mesh.group("flat", "bench").process_group)
    left, right, *squares = total
    scale = torch.maximum(*squares).clamp_min(1e-60).sqrt()
    mine = ((left - right).abs() / scale).amax((1, 2)).tolist()
    worst = [max(column) for column in zip(*gather.rows(mesh, mine))]
    return dict(zip(found, worst))


def _sums(a: torch.Tensor, b: torch.Tensor, heads: int, weights: torch.Tensor | None = None) -> torch.Tensor:
    """The sum of a * b (B, S, H, D) for each batch and kv head, in float64; no numbers count as zero."""
    total = torch.zeros(a.shape[0], heads, dtype=torch.float64, device=a.device)
    for start in range(0, a.shape[1], _STEP):
        rows = slice(start, start + _STEP)
        product = a.detach()[:, rows].double() * b.detach()[:, rows]
        if weights is not None:
            product *= weights[rows]
        by_head = product.nan_to_num_(0.0, 0.0, 0.0).sum((1, 3))
        total += torch.unflatten(by_head, 1, (heads, -1)).sum(-1)
    return total
