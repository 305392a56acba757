"""delta = rowsum(dout * out) as one Triton kernel: each tensor read once, one float32 number a row written.

Plain torch makes float32 copies of both first, seven times the bytes of this.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit  # type: ignore[untyped-decorator]
def _row_dot(  # type: ignore[no-untyped-def]
    dout_ptr, out_ptr, delta_ptr,
    dout_b, dout_s, dout_h, out_b, out_s, out_h, delta_b, delta_h, delta_s,
    seqlen, heads, head_dim,
    block_s: tl.constexpr, block_d: tl.constexpr,
):  # fmt: skip
    batch = (tl.program_id(1) // heads).to(tl.int64)
    head = (tl.program_id(1) % heads).to(tl.int64)
    rows = tl.program_id(0).to(tl.int64) * block_s + tl.arange(0, block_s)
    columns = tl.arange(0, block_d)
    here = rows < seqlen
    cells = here[:, None] & (columns < head_dim)[None, :]
    dout_at = dout_ptr + batch * dout_b + head * dout_h + rows[:, None] * dout_s + columns[None, :]
    out_at = out_ptr + batch * out_b + head * out_h + rows[:, None] * out_s + columns[None, :]
    product = tl.load(dout_at, mask=cells, other=0.0).to(tl.float32)
    product *= tl.load(out_at, mask=cells, other=0.0).to(tl.float32)
    tl.store(delta_ptr + batch * delta_b + head * delta_h + rows * delta_s, tl.sum(product, 1), mask=here)


def row_dot_on_gpu(dout: torch.Tensor, out: torch.Tensor) -> torch.Tensor:
    """float32 (B, H, S) from (B, S, H, D) tensors whose head_dim elements lie side by side."""
    batch, seqlen, heads, head_dim = out.shape
    delta = torch.empty(batch, heads, seqlen, dtype=torch.float32, device=out.device)
    block_s = 32
    _row_dot[(triton.cdiv(seqlen, block_s), batch * heads)](
        dout, out, delta,
        *dout.stride()[:3], *out.stride()[:3], *delta.stride(),
        seqlen, heads, head_dim,
        block_s=block_s, block_d=triton.next_power_of_2(head_dim),
    )  # fmt: skip
    return delta
