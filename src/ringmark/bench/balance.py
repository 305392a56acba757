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

from collections.abc import Mapping
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
    out = out.detach()
    dq, dk, dv = (torch.zeros_like(t) if t.grad is None else t.grad for t in problem.inputs[:3])
    gaps = _gaps(problem, out, dq, dk, dv, weights, mesh)
    numbers = {"out": out, "dq": dq, "dk": dk, "dv": dv}
    nonfinite = {name: compare.count_nonfinite(tensor) for name, tensor in numbers.items()}
    rows = compare.DenseRows(out[:, index], dq[:, index], nonfinite)
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
    problem: Problem,
    out: torch.Tensor,
    dq: torch.Tensor,
    dk: torch.Tensor,
    dv: torch.Tensor,
    weights: torch.Tensor,
    mesh: Mesh,
) -> dict[str, float]:
    """By how much of their scale the sums differ, in the worst head."""
    assert problem.dout is not None
    heads = problem.k.shape[2]
    sums = torch.stack(
        [
            _sums(problem.dout, out, heads),
            _sums(dv, problem.v, heads),
            _sums(dq, problem.q, heads),
            _sums(dk, problem.k, heads),
            _squares(out, heads, weights),
            _squares(dv, heads),
            _squares(dq, heads),
            _squares(dk, heads),
        ]
    )
    if not problem.private and mesh.world_size > 1:
        dist.all_reduce(sums, group=mesh.group("flat", "bench").process_group)
    scales = sums[4:].clamp_min(1e-60).sqrt()
    mine = [
        float(((sums[i] - sums[i + 1]).abs() / torch.maximum(scales[i], scales[i + 1])).max()) for i in (0, 2)
    ]
    worst = [max(column) for column in zip(*gather.rows(mesh, mine))]
    return dict(zip(BALANCES, worst))


def _sums(a: torch.Tensor, b: torch.Tensor, heads: int) -> torch.Tensor:
    """The sum of a * b (B, S, H, D) for each batch and kv head, in float64; no numbers count as zero."""
    total = torch.zeros(a.shape[0], heads, dtype=torch.float64, device=a.device)
    for start in range(0, a.shape[1], _STEP):
        rows = slice(start, start + _STEP)
        product = a.detach()[:, rows].double() * b.detach()[:, rows]
        total += _by_kv_head(product, heads)
    return total


def _squares(tensor: torch.Tensor, heads: int, weights: torch.Tensor | None = None) -> torch.Tensor:
    """The same of a tensor's squares, its rows weighted."""
    total = torch.zeros(tensor.shape[0], heads, dtype=torch.float64, device=tensor.device)
    for start in range(0, tensor.shape[1], _STEP):
        rows = slice(start, start + _STEP)
        part = tensor[:, rows].double() if weights is None else tensor[:, rows] * weights[rows]
        total += _by_kv_head(part.square(), heads)
    return total


def _by_kv_head(rows: torch.Tensor, heads: int) -> torch.Tensor:
    by_head = rows.nan_to_num_(0.0, 0.0, 0.0).sum((1, 3), dtype=torch.float64)
    return torch.unflatten(by_head, 1, (heads, -1)).sum(-1)
