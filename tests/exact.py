"""Exact attention in float64, every score at once: what the methods of the tests are held against."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ringmark import layout as layouts
from ringmark.cell import Cell, MeshShape, Shape
from ringmark.comm.mesh import Mesh
from ringmark.kernels.base import Kernel
from ringmark.methods.base import Method

NAMES = ("out", "dq", "dk", "dv")


@dataclass
class Problem:
    """Inputs of one attention call over the whole sequence, and its exact results by name."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    dout: torch.Tensor
    causal: bool
    scale: float
    exact: dict[str, torch.Tensor]

    def cell(self, method: str, mesh: Mesh, **options: bool | int | str) -> Cell:
        batch, seqlen_global, num_heads_q, head_dim = self.q.shape
        dtype = {torch.float32: "fp32", torch.bfloat16: "bf16", torch.float64: "fp64"}[self.q.dtype]
        mask = "causal" if self.causal else "full"
        shape = Shape(batch, num_heads_q, self.k.shape[2], head_dim, dtype, mask)  # type: ignore[arg-type]
        return Cell(method, seqlen_global, shape, mesh=MeshShape(mesh.nodes, mesh.gpus), options=options)


def make(
    seqlen_global: int,
    *,
    batch: int = 1,
    heads: tuple[int, int] = (4, 4),
    head_dim: int = 16,
    causal: bool = True,
    dtype: torch.dtype = torch.float32,
    seed: int = 0,
    scale: float = 0.0,
) -> Problem:
    """Normally distributed inputs, rounded to dtype, and the exact results for the rounded ones."""
    generator = torch.Generator().manual_seed(seed)

    def normal(num_heads: int) -> torch.Tensor:
        size = (batch, seqlen_global, num_heads, head_dim)
        return torch.randn(size, generator=generator, dtype=torch.float64).to(dtype)

    return solved(normal(heads[0]), normal(heads[1]), normal(heads[1]), normal(heads[0]), causal, scale)


def solved(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dout: torch.Tensor, causal: bool, scale: float = 0.0
) -> Problem:
    """The problem of these inputs, with its exact results (scale 0 means 1 / sqrt(head_dim))."""
    scale = scale or q.shape[-1] ** -0.5
    group = q.shape[2] // k.shape[2]
    queries, keys, values, douts = (
        tensor.double().transpose(1, 2).repeat_interleave(repeat, 1)
        for tensor, repeat in ((q, 1), (k, group), (v, group), (dout, 1))
    )
    scores = queries @ keys.transpose(2, 3) * scale
    if causal:
        scores.masked_fill_(
            torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1), float("-inf")
        )
    weights = scores.softmax(-1)
    out = weights @ values
    dweights = douts @ values.transpose(2, 3)
    dscores = weights * (dweights - (douts * out).sum(-1, keepdim=True)) * scale
    by_kv_head = [dscores.transpose(2, 3) @ queries, weights.transpose(2, 3) @ douts]
    dk, dv = (part.reshape(part.shape[0], -1, group, *part.shape[2:]).sum(2) for part in by_kv_head)
    results = (out, dscores @ keys, dk, dv)
    exact = {name: part.transpose(1, 2) for name, part in zip(NAMES, results)}
    return Problem(q, k, v, dout, causal, scale, exact)


def run(method: Method, mesh: Mesh, kernel: Kernel, problem: Problem) -> dict[str, torch.Tensor]:
    """This rank's (out, dq, dk, dv) by a method."""
    method.setup(mesh, kernel, causal=problem.causal, scale=problem.scale)
    return again(method, mesh, problem)


def again(method: Method, mesh: Mesh, problem: Problem) -> dict[str, torch.Tensor]:
    """Once more with a method that has been set up."""
    q, k, v = (
        layouts.shard(tensor, method.layout, mesh.rank, mesh.world_size).requires_grad_()
        for tensor in (problem.q, problem.k, problem.v)
    )
    out = method(q, k, v)
    out.backward(layouts.shard(problem.dout, method.layout, mesh.rank, mesh.world_size))
    assert q.grad is not None
    assert k.grad is not None
    assert v.grad is not None
    return {"out": out.detach(), "dq": q.grad, "dk": k.grad, "dv": v.grad}


def errors(found: dict[str, torch.Tensor], layout: str, mesh: Mesh, problem: Problem) -> dict[str, float]:
    """Relative error of each result on this rank (norm of the difference over norm of the exact rows)."""
    return {
        name: relative(
            found[name], layouts.shard(whole, layout, mesh.rank, mesh.world_size), whole, mesh.world_size
        )
        for name, whole in problem.exact.items()
    }


def relative(found: torch.Tensor, exact: torch.Tensor, whole: torch.Tensor, world_size: int) -> float:
    """The error against these rows, or a tenth of what rows have on the average where these are tiny."""
    floor = 0.1 * whole.norm() / world_size**0.5
    error = float((found.double() - exact).norm() / torch.maximum(exact.norm(), floor))
    return error if error == error else float("inf")
