"""Exact attention over rows that live on many ranks, given which token each row of each rank is."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    positions: torch.Tensor,
    causal: bool,
    scale: float | None,
) -> torch.Tensor:
    """This rank's rows; positions[i] are the tokens of global rank i's rows. Differentiable on every rank."""
    return _Exact.apply(q, k, v, positions, causal, scale or q.shape[-1] ** -0.5)


def single(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: torch.Tensor | bool, scale: float
) -> torch.Tensor:
    """Plain attention on (B, S, H, D); `causal` may be the mask itself, True where a key is seen."""
    return with_lse(q, k, v, causal, scale)[0]


def with_lse(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: torch.Tensor | bool, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    group = q.shape[2] // k.shape[2]
    k, v = (x.repeat_interleave(group, 2) for x in (k, v))
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * scale
    if causal is not False:
        size = (q.shape[1], k.shape[1])
        # flash-attn aligns the diagonal with the last row and key
        seen = torch.ones(size).tril(size[1] - size[0]).bool() if causal is True else causal
        scores = scores.masked_fill(~seen, float("-inf"))
    return torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v), scores.logsumexp(-1)


class _Exact(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, q: Any, k: Any, v: Any, positions: Any, causal: bool, scale: float) -> torch.Tensor:
        ctx.save_for_backward(q, k, v, positions)
        ctx.causal, ctx.scale = causal, scale
        return _mine(_whole(_sorted(q, positions), k, v, positions, causal, scale), positions)

    @staticmethod
    def backward(ctx: Any, dout: torch.Tensor) -> Any:
        q, k, v, positions = ctx.saved_tensors
        full = [_sorted(x, positions).requires_grad_() for x in (q, k, v)]
        with torch.enable_grad():
            out = single(*full, ctx.causal, ctx.scale)
        gradients = torch.autograd.grad(out, full, _sorted(dout, positions))
        return *(_mine(x, positions) for x in gradients), None, None, None


def _whole(q: Any, k: Any, v: Any, positions: Any, causal: bool, scale: float) -> torch.Tensor:
    return single(q, _sorted(k, positions), _sorted(v, positions), causal, scale)


def _sorted(local: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """All ranks' rows, in the order of their tokens."""
    if not dist.is_initialized():
        return local.detach()[:, positions[0].argsort()]
    parts = [torch.empty_like(local.detach().contiguous()) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, local.detach().contiguous())
    return torch.cat(parts, 1)[:, positions.flatten().argsort()]


def _mine(full: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    rank = dist.get_rank() if dist.is_initialized() else 0
    return full[:, positions[rank]].contiguous()


def zigzag(ranks: list[int], seqlen_global: int) -> torch.Tensor:
    """positions[global rank] where ranks[i] owns chunks i and 2N-1-i."""
    chunks = torch.arange(seqlen_global).view(2 * len(ranks), -1)
    positions = torch.empty(len(ranks), seqlen_global // len(ranks), dtype=torch.int64)
    for place, rank in enumerate(ranks):
        positions[rank] = torch.cat([chunks[place], chunks[-1 - place]])
    return positions
