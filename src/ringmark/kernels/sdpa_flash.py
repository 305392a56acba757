"""The flash-attention 2 that is built into torch, called as the operator that it is.

`torch.ops.aten._flash_attention_forward` and `_backward` take (B, S, H, D) as we hold it and grouped heads
as they are. What dropout would need (the random state, two tensors that torch renamed in 2.7) is empty.
"""

from __future__ import annotations

import torch

from ringmark.cell import Shape
from ringmark.kernels import _gpu


class SdpaFlash:
    """torch's own flash attention."""

    name = "sdpa_flash"
    needs_out = True
    deterministic = False  # dq is summed by atomic additions

    def version(self) -> str:
        return f"torch {torch.__version__}"

    def unavailable(self) -> str | None:
        if not hasattr(torch.ops.aten, "_flash_attention_backward"):
            return "this torch has no _flash_attention_backward operator"
        return _gpu.no_gpu((8, 0))

    def unfit(self, shape: Shape, device: torch.device) -> str | None:
        return _gpu.misfit(shape, device, head_dim_max=256)

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse, *_ = torch.ops.aten._flash_attention_forward(
            q, k, v, None, None, q.shape[1], k.shape[1], 0.0, causal, False, scale=scale
        )
        return out, lse

    def backward(
        self,
        dout: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        lse: torch.Tensor,
        delta: torch.Tensor,
        scale: float,
        causal: bool,
        out: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        if out is None:
            raise ValueError("sdpa_flash needs out in its backward: it takes no delta")
        state = torch.empty(2, dtype=torch.uint64, device=q.device)
        dq, dk, dv = torch.ops.aten._flash_attention_backward(
            dout, q, k, v, out, lse.contiguous(), None, None, q.shape[1], k.shape[1], 0.0, causal,
            state, state, scale=scale,
        )  # fmt: skip
        return dq, dk, dv


KERNEL = SdpaFlash()
