"""The kernel's own error on one device: what a method that uses it may be held to.

    a short sequence (every row is checked)   the kernel alone solves the whole problem
    a long one                                the kernel alone solves a prefix of each rank's shard

Rows, weights and norms are those of the check. On a prefix the backward gets the lse raised by
log(keys of the cell / keys here): the weights are then as small as in the cell itself, which matters to a
16-bit kernel (fp16 loses bits below 6e-5).
"""

from __future__ import annotations

import math

import torch

from ringmark.bench import compare, exact
from ringmark.bench.problem import Problem
from ringmark.comm.mesh import Mesh
from ringmark.kernels.base import Kernel
from ringmark.methods.base import row_dot

ROWS_MAX = 4096


def on_whole(
    kernel: Kernel, rows: exact.Rows, keys: exact.Keys, dtype: torch.dtype, mesh: Mesh
) -> dict[str, compare.Worst]:
    """The kernel's worst relative error per tensor where `rows` are all rows of all ranks that share keys."""
    order = rows.positions.argsort()
    k, v = (exact.everywhere(tensor.detach(), 1, rows.group)[:, order] for tensor in (keys.k, keys.v))
    q, dout = (None if tensor is None else tensor[:, order].to(dtype) for tensor in (rows.q, rows.dout))
    assert q is not None
    answer = _kernel_answer(kernel, q, k, v, dout, rows.scale, rows.causal)
    answer = answer.rows(keys.positions)  # this rank's part of it, in its own order
    index = torch.arange(keys.positions.numel(), device=k.device)
    first = 0 if rows.group is None else mesh.rank * index.numel()
    mine = slice(first, first + index.numel())
    return compare.worst(mesh, compare.norms(answer, rows, keys, mine, index))


def on_prefix(
    kernel: Kernel, problem: Problem, index: torch.Tensor, wide: torch.dtype, scale: float, mesh: Mesh
) -> dict[str, compare.Worst]:
    """The kernel's worst relative error per tensor over all ranks, on the rows `index` of a prefix."""
    seqlen = prefix(problem)
    q, k, v = (tensor.detach()[:, :seqlen].contiguous() for tensor in (problem.q, problem.k, problem.v))
    ratio, dout = problem.keys_total / seqlen, None
    visible = (index + 1 if problem.causal else torch.full_like(index, seqlen)) * ratio
    if problem.dout is not None:
        dout = torch.zeros_like(q)
        dout[:, index] = problem.dout[:, index] * compare.row_weights(visible).to(q.dtype)[:, None, None]
    shift = math.log(ratio)
    answer = _kernel_answer(kernel, q, k, v, dout, scale, problem.causal, shift)
    rows = exact.Rows(
        q=q[:, index].to(wide),
        dout=None if dout is None else dout[:, index].to(wide),
        positions=index,
        visible=visible,
        causal=problem.causal,
        scale=scale,
        group=None,
    )
    keys = exact.Keys(k, v, torch.arange(seqlen, device=k.device))
    everything = slice(0, index.numel())
    return compare.worst(mesh, compare.norms(answer, rows, keys, everything, index, lse_shift=shift))


def prefix(problem: Problem) -> int:
    """How many rows of this rank's shard the yardstick uses."""
    return min(problem.q.shape[1], problem.k.shape[1], ROWS_MAX)


def _kernel_answer(
    kernel: Kernel,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    dout: torch.Tensor | None,
    scale: float,
    causal: bool,
    lse_shift: float = 0.0,
) -> compare.Answer:
    out, lse = kernel.forward(q, k, v, scale, causal)
    if dout is None:
        return compare.Answer(out)
    delta, needed = row_dot(dout, out), out if kernel.needs_out else None
    return compare.Answer(
        out, *kernel.backward(dout, q, k, v, lse + lse_shift, delta, scale, causal, out=needed)
    )
