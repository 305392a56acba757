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

ALL = slice(None)


def wide(dtype: torch.dtype) -> torch.dtype:
    """The dtype in which partial results of `dtype` are summed."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def by_triton(tensor: torch.Tensor) -> bool:
    """Whether the Triton kernels work on such a tensor."""
    return tensor.is_cuda and tensor.dtype != torch.float64


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
    rows: slice = ALL,
    *,
    into: torch.Tensor | None = None,
) -> None:
    """Fold a partial (out, lse) into these rows of the accumulators.

    `into`: write the folded out there, all of its rows and in its dtype, and leave out_acc alone; lse_acc is
    updated either way.
    """
    if into is None or into is out_acc:  # the other rows are there already
        out_acc, lse_acc, rows = out_acc[:, rows], lse_acc[:, :, rows], ALL
        into = out_acc
    if not into.numel():
        return
    if by_triton(out):
        from ringmark.kernels._triton import fold_on_gpu

        fold_on_gpu(out_acc, lse_acc, out, lse, rows, into)
        return
    fold_plain_(out_acc, lse_acc, out, lse, rows, into=into)


def fold_plain_(
    out_acc: torch.Tensor,
    lse_acc: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    rows: slice = ALL,
    *,
    into: torch.Tensor | None = None,
) -> None:
    """`fold_` in plain torch operators, on any device."""
    into = out_acc if into is None else into
    if into is not out_acc:
        _copy_others_(out_acc, rows, into)
    out_acc, lse_acc, into = out_acc[:, rows], lse_acc[:, :, rows], into[:, rows]
    lse = lse.to(lse_acc.dtype)
    # -inf on both sides: the gap is nan, the row has seen nothing and the share is nobody's.
    share = torch.sigmoid(lse - lse_acc).nan_to_num_(0.0)
    by_row = share.transpose(1, 2).unsqueeze(-1)
    before, part = out_acc.to(lse_acc.dtype), out.to(lse_acc.dtype)
    # A kernel may leave anything, nan too, in the rows of `out` that saw no key: those keep what they have.
    into.copy_(torch.where(by_row > 0, torch.lerp(before, part, by_row), before))
    torch.logaddexp(lse_acc, lse, out=lse_acc)


def add_(acc: torch.Tensor, part: torch.Tensor, rows: slice = ALL, into: torch.Tensor | None = None) -> None:
    """acc[:, rows] += part, or into = acc with part added there: in float32 at least, rounded once."""
    if into is None or into is acc:  # the other rows are there already
        acc, rows = acc[:, rows], ALL
        into = acc
    if _summed_on_gpu(acc, [(part, rows)], into):
        return
    if into is not acc:
        _copy_others_(acc, rows, into)
    before, after = acc[:, rows], into[:, rows]
    if torch.promote_types(acc.dtype, part.dtype) == into.dtype or into.dtype.itemsize <= 2:
        torch.add(before, part, out=after)
    else:  # two halves into a float32: torch would round their sum first
        after.copy_(before)
        after.add_(part)


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


def _copy_others_(source: torch.Tensor, rows: slice, into: torch.Tensor) -> None:
    """Copy the rows that are not among these."""
    begin, end, _ = rows.indices(source.shape[1])
    copy_(source[:, :begin], into[:, :begin])
    copy_(source[:, end:], into[:, end:])


def _summed_on_gpu(
    acc: torch.Tensor, parts: Sequence[tuple[torch.Tensor, slice]], into: torch.Tensor
) -> bool:
    """Do into = acc + parts in one pass where a Triton kernel takes these tensors; else say so."""
    if not by_triton(acc) or not acc.numel():
        return False
    from ringmark.kernels import _triton

    if not _triton.takes(acc, into, *(part for part, _ in parts)):
        return False
    _triton.sum_on_gpu(acc, parts, into)
    return True
