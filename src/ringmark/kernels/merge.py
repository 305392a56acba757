"""Folding partial results into accumulators, in place: (out, lse) of one more block of keys, gradients too.

    w       = sigmoid(lse_new - lse_acc)                  the share of the new block; no exp can overflow
    out_acc = out_acc * (1 - w) + out_new * w
    lse_acc = max + log1p(exp(-|lse_new - lse_acc|))

Accumulators are float32 (float64 for float64 inputs) and may be views: a row range of a larger tensor. A row
that has seen no key yet has lse -inf and weighs nothing. On CUDA a step is one Triton kernel; elsewhere it
is plain torch.
"""

from __future__ import annotations

import torch


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which partial results of `dtype` are summed."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def accumulators(q: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """An (out, lse) that has seen no key: zeros (B, S, H, D) and -inf (B, H, S)."""
    batch, seqlen, heads, _ = q.shape
    out = torch.zeros(q.shape, dtype=wide(q.dtype), device=q.device)
    return out, out.new_full((batch, heads, seqlen), float("-inf"))


def fold_(
    out_acc: torch.Tensor,
    lse_acc: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    *,
    first: bool = False,
    into: torch.Tensor | None = None,
) -> None:
    """Fold a partial (out, lse) into the accumulators.

    `first`: the accumulators hold nothing worth reading yet (they may be torch.empty), write them.
    `into`: this is the last fold of these rows, so write the rounded result there instead of into out_acc.
    """
    if out.numel() == 0:
        return
    if out.is_cuda and out.dtype != torch.float64:
        from ringmark.kernels._merge_triton import fold_on_gpu

        fold_on_gpu(out_acc, lse_acc, out, lse, first, into)
        return
    fold_plain_(out_acc, lse_acc, out, lse, first=first, into=into)


def fold_plain_(
    out_acc: torch.Tensor,
    lse_acc: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    *,
    first: bool = False,
    into: torch.Tensor | None = None,
) -> None:
    """`fold_` in plain torch operators, on any device."""
    if first:
        (out_acc if into is None else into).copy_(out)
        lse_acc.copy_(lse)
        return
    lse = lse.to(lse_acc.dtype)
    # -inf on both sides: the gap is nan, the row has seen nothing and the share is nobody's.
    share = torch.sigmoid(lse - lse_acc).nan_to_num_(0.0)
    by_row = share.transpose(1, 2).unsqueeze(-1)
    # A kernel may leave anything, nan too, in the rows of `out` that saw no key: those keep what they have.
    merged = torch.where(by_row > 0, torch.lerp(out_acc, out.to(out_acc.dtype), by_row), out_acc)
    (out_acc if into is None else into).copy_(merged)
    torch.logaddexp(lse_acc, lse, out=lse_acc)


def add_(acc: torch.Tensor, part: torch.Tensor, *, first: bool = False) -> None:
    """acc += part across dtypes in one pass over memory; `first`: acc holds nothing yet, write it."""
    if first:
        acc.copy_(part)
        return
    if part.is_cuda and part.numel():
        from ringmark.kernels import _merge_triton

        if _merge_triton.can_add(acc, part):
            _merge_triton.add_on_gpu(acc, part)
            return
    acc.add_(part)
