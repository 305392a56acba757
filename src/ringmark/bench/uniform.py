"""Where all visible keys weigh alike: an exact answer for every row, at the cost of a sum.

    q = 0    every score is 0, so a row of out is the mean of the v that it sees

A sample of rows misses what goes wrong in few of them, and the sums of balance.py hold for any mask that the
forward and the backward agree on. Here a row that lacks a part f of its keys is off by the root of f,
whichever row it is, and one with a key too many by the root of 1 / n.

The error of a row is the root mean square of its elements, in the unit that they have: 1 / sqrt(n), n being
the keys that it sees. Means are made head by head, from running sums of each rank's own v.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
import torch.distributed as dist

from ringmark.bench import exact, gather
from ringmark.bench.compare import NO_NUMBER
from ringmark.bench.problem import Problem
from ringmark.comm.mesh import Mesh
from ringmark.record import Uniform
from ringmark.tolerance import uniform_allowed


def graded(out: torch.Tensor, problem: Problem, dtype: str, mesh: Mesh) -> Uniform:
    """The worst row of all ranks, beside what is allowed; `out` is what a method gave with q = 0."""
    share = out.shape[2] // problem.v.shape[2]
    worst = torch.zeros((), device=out.device)
    for batch, head, mean in _means(problem, dtype, mesh):
        heads = slice(head * share, (head + 1) * share)
        gap = out[batch, :, heads].to(mean.dtype) - mean[:, None]
        rows = gap.nan_to_num_(NO_NUMBER, NO_NUMBER, NO_NUMBER).square_().mean(-1).amax(1)
        worst = torch.maximum(worst, (rows * problem.visible).amax().float())
    errors = [row[0] for row in gather.rows(mesh, [math.sqrt(float(worst))])]
    return Uniform(max(errors), uniform_allowed(dtype), errors.index(max(errors)))


def _means(problem: Problem, dtype: str, mesh: Mesh) -> Iterator[tuple[int, int, torch.Tensor]]:
    """Of each batch and kv head the mean of the v that each of this rank's rows sees (rows, D)."""
    group = None if problem.private else mesh.group("flat", "bench").process_group
    wide = torch.float64 if dtype in ("fp64", "fp32") else torch.float32
    everyone = torch.split(exact.everywhere(problem.positions_q, 0, group), problem.positions_q.numel())
    own = problem.positions_k.contiguous()
    counts = [
        torch.searchsorted(own, rows, right=True) if problem.causal else torch.full_like(rows, own.numel())
        for rows in everyone
    ]
    here = 0 if group is None else mesh.rank
    batches, length, heads, head_dim = problem.v.shape
    sums = torch.zeros(length + 1, head_dim, dtype=torch.float64, device=problem.v.device)
    for batch in range(batches):
        for head in range(heads):
            torch.cumsum(problem.v.detach()[batch, :, head].double(), 0, out=sums[1:])
            for rank, seen in enumerate(counts):
                part = sums[seen].to(wide)
                if group is not None:
                    dist.reduce(part, rank, group=group)
                if rank == here:
                    mean = part / problem.visible[:, None]
            yield batch, head, mean
