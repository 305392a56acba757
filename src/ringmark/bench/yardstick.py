"""The kernel's own error on one device: what a method that uses it may be held to.

The kernel attends within the first rows of a rank's own shard, alone, sampled and normalised as the check
does it. Its backward gets the lse raised by log(keys of the cell / keys here): the weights are then as small
as in the cell itself, which matters to a 16-bit kernel (fp16 loses bits below 6e-5).
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
KERNEL_FACTOR = 2.0

# What a correct answer of a dtype may differ by where the kernel's own error is smaller still.
#   fp64, fp32  64 units of roundoff: the float32 lse of a long sequence (about 12) alone is wrong by up to
#               12 units, and enters every weight; partial results are merged once per hop
#   bf16, fp16  1 unit, the largest error of one rounding: a rounding's root mean square is 0.42 units, so
#               this leaves room for five of them (partial results, their sum) on a kernel that rounds once
ALLOWED_MIN = {"fp64": 64 * 2.0**-53, "fp32": 64 * 2.0**-24, "bf16": 2.0**-8, "fp16": 2.0**-11}


# The root mean square error of one rounding, in units of roundoff, and that unit.
ROUNDING = 0.42
ROUNDOFF = {"fp64": 2.0**-53, "fp32": 2.0**-24, "bf16": 2.0**-8, "fp16": 2.0**-11}


def allowed(name: str, own: float, dtype: str, sum_roundings: int) -> float:
    """What a tensor may be wrong by: twice the kernel's own error, and what the method says it rounds away.

    A method whose sums travel in the cell's own dtype says on how many hops each is rounded: partial sums
    grow evenly, so n roundings of them add up to sqrt(n / 2) of one rounding of the whole.
    """
    rounded = ROUNDING * ROUNDOFF[dtype] * math.sqrt(sum_roundings / 2) if name != "out" else 0.0
    return max(KERNEL_FACTOR * math.hypot(own, rounded), ALLOWED_MIN[dtype])


def errors(
    kernel: Kernel,
    problem: Problem,
    index: torch.Tensor,
    wide: torch.dtype,
    scale: float,
    mesh: Mesh,
) -> dict[str, compare.Worst]:
    """The kernel's worst relative error per tensor over all ranks, on the rows `index` of a prefix."""
    seqlen = prefix(problem)
    q, k, v = (tensor.detach()[:, :seqlen].contiguous() for tensor in (problem.q, problem.k, problem.v))
    out, lse = kernel.forward(q, k, v, scale, problem.causal)
    answer, ratio, dout = compare.Answer(out), problem.keys_total / seqlen, None
    shift = math.log(ratio)
    visible = (index + 1 if problem.causal else torch.full_like(index, seqlen)) * ratio
    if problem.dout is not None:
        dout = torch.zeros_like(q)
        dout[:, index] = problem.dout[:, index] * compare.row_weights(visible).to(q.dtype)[:, None, None]
        delta = row_dot(dout, out)
        grads = kernel.backward(
            dout, q, k, v, lse + shift, delta, scale, problem.causal, out if kernel.needs_out else None
        )
        answer = compare.Answer(out, *grads)
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
