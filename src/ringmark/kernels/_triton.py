"""Folding a partial (out, lse), summing gradients, copying views, and delta: three Triton kernels.

Each takes (B, S, H, D) tensors of any strides, D elements side by side, and runs one program on a block of
rows of one head. float32 throughout; rows and strides are counted in int64: a tensor may pass 2**31 elements.
They are here because torch adds bf16 to float32 at two thirds of the memory's speed, copies views at a
quarter, and makes float32 copies before a rowsum.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl

BLOCK_S = 32
# One launch of the sum reads as many parts; more go in rounds.
AT_ONCE = 4


@triton.jit  # type: ignore[untyped-decorator]
def _place(heads, block_s: tl.constexpr):  # type: ignore[no-untyped-def]
    """The batch, the head and the rows of this program."""
    rows = tl.program_id(0).to(tl.int64) * block_s + tl.arange(0, block_s)
    return (tl.program_id(1) // heads).to(tl.int64), (tl.program_id(1) % heads).to(tl.int64), rows


@triton.jit
def _cells(ptr, b, s, h, batch, head, rows, columns):  # type: ignore[no-untyped-def]
    """Where the elements of these rows lie in a tensor with these strides."""
    return ptr + batch * b + head * h + rows[:, None] * s + columns[None, :]


@triton.jit
def _rows_of(  # type: ignore[no-untyped-def]
    part_ptr, part_b, part_s, part_h, begin, end,
    batch, head, rows, columns, in_row,
):  # fmt: skip
    """The rows of a part that lies at begin..end of the whole, in float32; zeros elsewhere."""
    here = ((rows >= begin) & (rows < end))[:, None] & in_row[None, :]
    part_at = _cells(part_ptr, part_b, part_s, part_h, batch, head, rows - begin, columns)
    return tl.load(part_at, mask=here, other=0.0).to(tl.float32)


@triton.jit  # type: ignore[untyped-decorator]
def _fold(  # type: ignore[no-untyped-def]
    acc_ptr, lse_acc_ptr, out_ptr, lse_ptr, into_ptr,
    acc_b, acc_s, acc_h, lse_acc_b, lse_acc_h, lse_acc_s,
    out_b, out_s, out_h, lse_b, lse_h, lse_s, into_b, into_s, into_h,
    begin, end, seqlen, heads, head_dim,
    block_s: tl.constexpr, block_d: tl.constexpr,
):  # fmt: skip
    batch, head, rows = _place(heads, block_s)
    columns = tl.arange(0, block_d)
    in_row = columns < head_dim
    here = rows < seqlen
    cells = here[:, None] & in_row[None, :]
    met = (rows >= begin) & (rows < end)

    # Rows that the part does not cover are as rows of it that saw no key: they keep what they have.
    lse_at = lse_ptr + batch * lse_b + head * lse_h + (rows - begin) * lse_s
    lse = tl.load(lse_at, mask=met, other=float("-inf"))
    lse_acc_at = lse_acc_ptr + batch * lse_acc_b + head * lse_acc_h + rows * lse_acc_s
    part = _rows_of(out_ptr, out_b, out_s, out_h, begin, end, batch, head, rows, columns, in_row)
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
    tl.store(lse_acc_at, top + tl.log(1.0 + ratio), mask=met)
    acc_at = _cells(acc_ptr, acc_b, acc_s, acc_h, batch, head, rows, columns)
    acc = tl.load(acc_at, mask=cells, other=0.0).to(tl.float32)
    merged = tl.where(share > 0, acc * (1.0 - share) + part * share, acc)
    into_at = _cells(into_ptr, into_b, into_s, into_h, batch, head, rows, columns)
    tl.store(into_at, merged.to(into_ptr.dtype.element_ty), mask=cells)


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
    batch, head, rows = _place(heads, block_s)
    columns = tl.arange(0, block_d)
    in_row = columns < head_dim
    cells = (rows < seqlen)[:, None] & in_row[None, :]
    acc_at = _cells(acc_ptr, acc_b, acc_s, acc_h, batch, head, rows, columns)
    total = tl.load(acc_at, mask=cells, other=0.0).to(tl.float32)
    if parts > 0:
        total += _rows_of(
            one_ptr, one_b, one_s, one_h, one_begin, one_end, batch, head, rows, columns, in_row
        )
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
    into_at = _cells(into_ptr, into_b, into_s, into_h, batch, head, rows, columns)
    tl.store(into_at, total.to(into_ptr.dtype.element_ty), mask=cells)


@triton.jit  # type: ignore[untyped-decorator]
def _row_dot(  # type: ignore[no-untyped-def]
    dout_ptr, out_ptr, delta_ptr,
    dout_b, dout_s, dout_h, out_b, out_s, out_h, delta_b, delta_h, delta_s,
    seqlen, heads, head_dim,
    block_s: tl.constexpr, block_d: tl.constexpr,
):  # fmt: skip
    batch, head, rows = _place(heads, block_s)
    columns = tl.arange(0, block_d)
    here = rows < seqlen
    cells = here[:, None] & (columns < head_dim)[None, :]
    dout_at = _cells(dout_ptr, dout_b, dout_s, dout_h, batch, head, rows, columns)
    out_at = _cells(out_ptr, out_b, out_s, out_h, batch, head, rows, columns)
    product = tl.load(dout_at, mask=cells, other=0.0).to(tl.float32)
    product *= tl.load(out_at, mask=cells, other=0.0).to(tl.float32)
    tl.store(delta_ptr + batch * delta_b + head * delta_h + rows * delta_s, tl.sum(product, 1), mask=here)


def takes(*tensors: torch.Tensor) -> bool:
    """Whether sums and copies here take these: up to float32, (B, S, H, D), D elements side by side."""
    return all(
        tensor.dtype in (torch.float32, torch.bfloat16, torch.float16)
        and tensor.dim() == 4
        and tensor.stride(3) == 1
        for tensor in tensors
    )


def fold_on_gpu(
    out_acc: torch.Tensor,
    lse_acc: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    rows: slice,
    into: torch.Tensor,
) -> None:
    """Launch the fold of a part that covers `rows`: into gets all rows, lse_acc is updated in place."""
    for tensor in (out_acc, out, into):
        if tensor.stride(3) != 1:
            raise ValueError(f"the head_dim elements of {tuple(tensor.shape)} do not lie side by side")
    _launch(
        _fold, out_acc, out_acc, lse_acc, out, lse, into, *out_acc.stride()[:3], *lse_acc.stride(),
        *out.stride()[:3], *lse.stride(), *into.stride()[:3], *rows.indices(out_acc.shape[1])[:2],
    )  # fmt: skip


def sum_on_gpu(acc: torch.Tensor, parts: Sequence[tuple[torch.Tensor, slice]], into: torch.Tensor) -> None:
    """Launch into = acc + every part in its rows, rounded once; with no part it is a copy."""
    rounds = [parts[first : first + AT_ONCE] for first in range(0, len(parts), AT_ONCE)] or [[]]
    held = len(rounds) == 1 or into.dtype == torch.float32
    sums = into if held else into.new_empty(into.shape, dtype=torch.float32)
    for number, now in enumerate(rounds, 1):
        target = into if number == len(rounds) else sums
        given = [(part, *rows.indices(acc.shape[1])[:2]) for part, rows in now]
        read = given + [(acc, 0, 0)] * (AT_ONCE - len(given))  # those beyond the given are not read
        where = [[*part.stride()[:3], begin, end] for part, begin, end in read]
        _launch(
            _sum, acc, acc, target, *(part for part, _, _ in read), *acc.stride()[:3], *target.stride()[:3],
            *where[0], *where[1], *where[2], *where[3], parts=len(given),
        )  # fmt: skip
        acc = target


def row_dot_on_gpu(dout: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """rowsum(dout * out) as float32 (B, H, S): each tensor read once, one number a row written."""
    batch, seqlen, heads, _ = out.shape
    delta = torch.empty(batch, heads, seqlen, dtype=torch.float32, device=out.device)
    _launch(_row_dot, out, dout, out, delta, *dout.stride()[:3], *out.stride()[:3], *delta.stride())
    return delta


def _launch(kernel, shaped: torch.Tensor, *arguments, **constants: int) -> None:  # type: ignore[no-untyped-def]
    """One program for each block of rows of each head of a (B, S, H, D) tensor."""
    batch, seqlen, heads, head_dim = shaped.shape
    kernel[(triton.cdiv(seqlen, BLOCK_S), batch * heads)](
        *arguments, seqlen, heads, head_dim,
        block_s=BLOCK_S, block_d=triton.next_power_of_2(head_dim), **constants,
    )  # fmt: skip
