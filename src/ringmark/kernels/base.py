"""The contract of a local attention kernel: two calls on (B, S, H, D) tensors.

    forward(q, k, v, scale, causal)                                  -> out, lse
    backward(dout, q, k, v, lse, delta, scale, causal, out=None)     -> dq, dk, dv

lse is float32 (B, H, S), natural log. delta = rowsum(dout * out) in float32 (B, H, S), computed once per
backward by the method: a backward that takes it needs no `out`, which then need not travel (opt_bwd). A
kernel that cannot take delta says needs_out and is handed `out`.

`causal` is the square mask (query i sees keys 0..i, same length on both sides). Results are fresh tensors,
never accumulated into; k and v may have fewer heads than q (GQA) and another length when not causal.
"""

from __future__ import annotations

from typing import Protocol

import torch

from ringmark.cell import Shape


class Kernel(Protocol):
    """One local attention implementation; a file of this folder offers an instance named KERNEL."""

    name: str
    needs_out: bool
    deterministic: bool

    def version(self) -> str:
        """The version of what really computes, for the record."""

    def unavailable(self) -> str | None:
        """Why this machine cannot run it (a missing library, no GPU), or None. Asked once, then kept."""

    def unfit(self, shape: Shape, device: torch.device) -> str | None:
        """Why it cannot compute this shape on this device, or None."""

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool
    ) -> tuple[torch.Tensor, torch.Tensor]: ...

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
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]: ...
