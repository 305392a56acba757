"""Folding partial results into accumulators, in place: (out, lse) of one more block of keys, gradients too.

    w       = sigmoid(lse_new - lse_acc)                  the share of the new block; no exp can overflow
    out_acc = out_acc * (1 - w) + out_new * w
    lse_acc = max + log1p(exp(-|lse_new - lse_acc|))

Accumulators are float32 (float64 for float64 inputs), or the first part itself where the result goes into
another tensor, and may be views: a row range of a larger tensor. A row that has seen no key yet has lse -inf
and weighs nothing. On CUDA a step is one Triton kernel; elsewhere it is plain torch.
"""

from __future__ import annotations

from collections.abc import Sequence

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
    into: torch.Tensor | None = None,
) -> None:
    """Fold a partial (out, lse) into the accumulators.

    `into`: write the folded out there, in its dtype, and leave out_acc alone; lse_acc is updated either way.
    """
    if out.numel() == 0:
        return
    if out.is_cuda and out.dtype != torch.float64:
        from ringmark.kernels._triton import fold_on_gpu

        fold_on_gpu(out_acc, lse_acc, out, lse, out_acc if into is None else into)
        return
    fold_plain_(out_acc, lse_acc, out, lse, into=into)


def fold_plain_(
    out_acc: torch.Tensor,
    lse_acc: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    *,
    into: torch.Tensor | None = None,
) -> None:
    """`fold_` in plain torch operators, on any device."""
    lse = lse.to(lse_acc.dtype)
    # -inf on both sides: the gap is nan, the row has seen nothing and the share is nobody's.
    share = torch.sigmoid(lse - lse_acc).nan_to_num_(0.0)
    by_row = share.transpose(1, 2).unsqueeze(-1)
    before, part = out_acc.to(lse_acc.dtype), out.to(lse_acc.dtype)
    # A kernel may leave anything, nan too, in the rows of `out` that saw no key: those keep what they have.
    (out_acc if into is None else into).copy_(
        torch.where(by_row > 0, torch.lerp(before, part, by_row), before)
    )
    torch.logaddexp(lse_acc, lse, out=lse_acc)


def add_(acc: torch.Tensor, part: torch.Tensor, into: torch.Tensor | None = None) -> None:
    """acc += part, or into = acc + part: summed in float32 at least, rounded once to the target's dtype."""
    into = acc if into is None else into
    if _summed_on_gpu(acc, [(part, slice(None))], into):
        return
    if torch.promote_types(acc.dtype, part.dtype) == into.dtype or into.dtype.itemsize <= 2:
        torch.add(acc, part, out=into)
    else:  # two halves into a float32: torch would round their sum first
        into.copy_(acc)
        into.add_(part)


def sum_(acc: torch.Tensor, parts: Sequence[tuple[torch.Tensor, slice]], into: torch.Tensor) -> None:
    """into = acc + every part in its rows: a pass for four of them, float32 at least, rounded once."""
    if _summed_on_gpu(acc, parts, into):
        return
    total = acc if acc is into and acc.dtype == wide(acc.dtype) else acc.to(wide(acc.dtype), copy=True)
    for part, rows in parts:
        total[:, rows] += part
    if total is not into:
        into.copy_(total)


def copy_(source: torch.Tensor, into: torch.Tensor) -> None:
    """Write a tensor into another of its shape, rounded to its dtype: views at the memory's speed, too."""
    if (source.is_contiguous() and into.is_contiguous()) or not _summed_on_gpu(source, [], into):
        into.copy_(source)


def _summed_on_gpu(
    acc: torch.Tensor, parts: Sequence[tuple[torch.Tensor, slice]], into: torch.Tensor
) -> bool:
    """Do into = acc + parts in one pass where a Triton kernel takes these tensors; else say so."""
    if not acc.is_cuda or not acc.numel():
        return False
    from ringmark.kernels import _triton

    if not _triton.takes(acc, into, *(part for part, _ in parts)):
        return False
    _triton.sum_on_gpu(acc, parts, into)
    return True
