"""Folding a partial (out, lse), adding gradients and copying, each as one Triton kernel over any strides.

A program takes a block of rows of one head: it reads both lse, writes the new one, and passes once over the
rows of out. float32 throughout; rows and strides are counted in int64, as a tensor may pass 2**31 elements.
Torch's own addition of bf16 to float32 runs at two thirds of the memory's speed, so that is here too.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def _fold(  # type: ignore[no-untyped-def]
    acc_ptr, lse_acc_ptr, out_ptr, lse_ptr, into_ptr,
    acc_b, acc_s, acc_h, lse_acc_b, lse_acc_h, lse_acc_s,
    out_b, out_s, out_h, lse_b, lse_h, lse_s, into_b, into_s, into_h,
    seqlen, heads, head_dim,
    block_s: tl.constexpr, block_d: tl.constexpr,
):  # fmt: skip
    batch = (tl.program_id(1) // heads).to(tl.int64)
    head = (tl.program_id(1) % heads).to(tl.int64)
    rows = tl.program_id(0).to(tl.int64) * block_s + tl.arange(0, block_s)
    columns = tl.arange(0, block_d)
    here = rows < seqlen
    cells = here[:, None] & (columns < head_dim)[None, :]

    lse = tl.load(lse_ptr + batch * lse_b + head * lse_h + rows * lse_s, mask=here, other=0.0)
    lse_acc_at = lse_acc_ptr + batch * lse_acc_b + head * lse_acc_h + rows * lse_acc_s
    out_at = out_ptr + batch * out_b + head * out_h + rows[:, None] * out_s + columns[None, :]
    into_at = into_ptr + batch * into_b + head * into_h + rows[:, None] * into_s + columns[None, :]
    part = tl.load(out_at, mask=cells, other=0.0).to(tl.float32)
    lse_acc = tl.load(lse_acc_at, mask=here, other=0.0)
    top = tl.maximum(lse, lse_acc)
    bottom = tl.minimum(lse, lse_acc)
    # exp of a number that is never positive; -inf on both sides would be nan, so it is not asked.
    ratio = tl.where(bottom == float("-inf"), 0.0, tl.exp(bottom - top))
    small = ratio / (1.0 + ratio)
    share = tl.where(lse > lse_acc, 1.0 - small, small)
    share = tl.where(lse == float("-inf"), 0.0, share)[:, None]
    # Every warp reads the old lse of these rows; none may overwrite it before the last has done so.
    tl.debug_barrier()
    tl.store(lse_acc_at, top + tl.log(1.0 + ratio), mask=here)
    acc_at = acc_ptr + batch * acc_b + head * acc_h + rows[:, None] * acc_s + columns[None, :]
    acc = tl.load(acc_at, mask=cells, other=0.0).to(tl.float32)
    merged = tl.where(share > 0, acc * (1.0 - share) + part * share, acc)
    tl.store(into_at, merged.to(into_ptr.dtype.element_ty), mask=cells)


@triton.jit  # type: ignore[untyped-decorator]
def _add(  # type: ignore[no-untyped-def]
    acc_ptr, part_ptr, into_ptr,
    acc_b, acc_s, acc_h, part_b, part_s, part_h, into_b, into_s, into_h,
    seqlen, heads, head_dim,
    block_s: tl.constexpr, block_d: tl.constexpr,
):  # fmt: skip
    batch = (tl.program_id(1) // heads).to(tl.int64)
    head = (tl.program_id(1) % heads).to(tl.int64)
    rows = tl.program_id(0).to(tl.int64) * block_s + tl.arange(0, block_s)
    columns = tl.arange(0, block_d)
    cells = (rows < seqlen)[:, None] & (columns < head_dim)[None, :]
    acc_at = acc_ptr + batch * acc_b + head * acc_h + rows[:, None] * acc_s + columns[None, :]
    part_at = part_ptr + batch * part_b + head * part_h + rows[:, None] * part_s + columns[None, :]
    into_at = into_ptr + batch * into_b + head * into_h + rows[:, None] * into_s + columns[None, :]
    total = tl.load(acc_at, mask=cells, other=0.0).to(tl.float32)
    total += tl.load(part_at, mask=cells, other=0.0).to(tl.float32)
    tl.store(into_at, total.to(into_ptr.dtype.element_ty), mask=cells)


@triton.jit  # type: ignore[untyped-decorator]
def _copy(  # type: ignore[no-untyped-def]
    from_ptr, into_ptr,
    from_b, from_s, from_h, into_b, into_s, into_h,
    seqlen, heads, head_dim,
    block_s: tl.constexpr, block_d: tl.constexpr,
):  # fmt: skip
    batch = (tl.program_id(1) // heads).to(tl.int64)
    head = (tl.program_id(1) % heads).to(tl.int64)
    rows = tl.program_id(0).to(tl.int64) * block_s + tl.arange(0, block_s)
    columns = tl.arange(0, block_d)
    cells = (rows < seqlen)[:, None] & (columns < head_dim)[None, :]
    from_at = from_ptr + batch * from_b + head * from_h + rows[:, None] * from_s + columns[None, :]
    into_at = into_ptr + batch * into_b + head * into_h + rows[:, None] * into_s + columns[None, :]
    tl.store(into_at, tl.load(from_at, mask=cells).to(into_ptr.dtype.element_ty), mask=cells)


@triton.jit
def _rows_of(  # type: ignore[no-untyped-def]
    part_ptr, part_b, part_s, part_h, begin, end,
    batch, head, rows, columns, in_row,
):  # fmt: skip
    """The rows of a part that lies at begin..end of the whole, in float32; zeros elsewhere."""
    at = part_ptr + batch * part_b + head * part_h + (rows - begin)[:, None] * part_s + columns[None, :]
    cells = ((rows >= begin) & (rows < end))[:, None] & in_row[None, :]
    return tl.load(at, mask=cells, other=0.0).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _sum(  # type: ignore[no-untyped-def]
    acc_ptr, into_ptr, one_ptr, two_ptr, three_ptr, four_ptr,
    acc_b, acc_s, acc_h, into_b, into_s, into_h,
    one_b, one_s, one_h, one_begin, one_end,
    two_b, two_s, two_h, two_begin, two_end,
    three_b, three_s, three_h, three_begin, three_end,
    four_b, four_s, four_h, four_begin, four_end,
    seqlen, heads, head_dim,
    parts: tl.constexpr, block_s: tl.constexpr, block_d: tl.constexpr,
):  # fmt: skip
    batch = (tl.program_id(1) // heads).to(tl.int64)
    head = (tl.program_id(1) % heads).to(tl.int64)
    rows = tl.program_id(0).to(tl.int64) * block_s + tl.arange(0, block_s)
    columns = tl.arange(0, block_d)
    in_row = columns < head_dim
    cells = (rows < seqlen)[:, None] & in_row[None, :]
    acc_at = acc_ptr + batch * acc_b + head * acc_h + rows[:, None] * acc_s + columns[None, :]
    total = tl.load(acc_at, mask=cells, other=0.0).to(tl.float32)
    total += _rows_of(one_ptr, one_b, one_s, one_h, one_begin, one_end, batch, head, rows, columns, in_row)
    if parts > 1:
        total += _rows_of(
            two_ptr, two_b, two_s, two_h, two_begin, two_end, batch, head, rows, columns, in_row
        )
    if parts > 2:
        total += _rows_of(
            three_ptr, three_b, three_s, three_h, three_begin, three_end, batch, head, rows, columns, in_row
        )
    if parts > 3:
        total += _rows_of(
            four_ptr, four_b, four_s, four_h, four_begin, four_end, batch, head, rows, columns, in_row
        )
    into_at = into_ptr + batch * into_b + head * into_h + rows[:, None] * into_s + columns[None, :]
    tl.store(into_at, total.to(into_ptr.dtype.element_ty), mask=cells)


AT_ONCE = 4


def takes(*tensors: torch.Tensor) -> bool:
    """Whether sums and copies here take these: up to float32, (B, S, H, D), D elements side by side."""
    return all(
        tensor.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and tensor.dim() == 4
        and tensor.stride(3) == 1
        for tensor in tensors
    )


def add_on_gpu(acc: torch.Tensor, part: torch.Tensor, into: torch.Tensor) -> None:
    """Launch the addition of (B, S, H, D) views."""
    batch, seqlen, heads, head_dim = acc.shape
    block_s = 32
    _add[(triton.cdiv(seqlen, block_s), batch * heads)](
        acc, part, into, *acc.stride()[:3], *part.stride()[:3], *into.stride()[:3], seqlen, heads, head_dim,
        block_s=block_s, block_d=triton.next_power_of_2(head_dim),
    )  # fmt: skip


def sum_on_gpu(
    acc: torch.Tensor, parts: Sequence[torch.Tensor], begins: Sequence[int], into: torch.Tensor
) -> None:
    """Launch into = acc + up to four parts, each of which covers the rows from its begin on."""
    batch, seqlen, heads, head_dim = acc.shape
    given = [*zip(parts, begins)]
    rest = [given[0]] * (AT_ONCE - len(given))  # not read
    where = [[*part.stride()[:3], begin, begin + part.shape[1]] for part, begin in given + rest]
    block_s = 32
    _sum[(triton.cdiv(seqlen, block_s), batch * heads)](
        acc, into, *(part for part, _ in given + rest), *acc.stride()[:3], *into.stride()[:3],
        *where[0], *where[1], *where[2], *where[3], seqlen, heads, head_dim,
        parts=len(given), block_s=block_s, block_d=triton.next_power_of_2(head_dim),
    )  # fmt: skip


def copy_on_gpu(source: torch.Tensor, into: torch.Tensor) -> None:
    """Launch the copy of (B, S, H, D) views, rounded to the target's dtype."""
    batch, seqlen, heads, head_dim = source.shape
    block_s = 32
    _copy[(triton.cdiv(seqlen, block_s), batch * heads)](
        source, into, *source.stride()[:3], *into.stride()[:3], seqlen, heads, head_dim,
        block_s=block_s, block_d=triton.next_power_of_2(head_dim),
    )  # fmt: skip


def fold_on_gpu(
    out_acc: torch.Tensor,
    lse_acc: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    into: torch.Tensor | None,
) -> None:
    """Launch the fold; every tensor may be a strided view whose head_dim elements lie side by side."""
    batch, seqlen, heads, head_dim = out.shape
    target = out_acc if into is None else into
    for tensor in (out_acc, out, target):
        if tensor.stride(3) != 1:
            raise ValueError(f"the head_dim elements of {tuple(tensor.shape)} do not lie side by side")
    block_s = 32
    _fold[(triton.cdiv(seqlen, block_s), batch * heads)](
        out_acc, lse_acc, out, lse, target,
        *out_acc.stride()[:3], *lse_acc.stride(),
        *out.stride()[:3], *lse.stride(), *target.stride()[:3],
        seqlen, heads, head_dim,
        block_s=block_s, block_d=triton.next_power_of_2(head_dim),
    )  # fmt: skip
