"""FlashAttention-4 (CuTe), which takes delta with no patch.

Its backward starts from rowsum(dout * out) - dlse, where dlse is the gradient of lse. With out = 0 and
dlse = -delta that is delta, so `out` need not be there: a zero of stride 0 stands in for it and costs no
memory traffic. The pass that multiplies the two would still read all of dout, only to get zeros: it is handed
the zero twice. The kernels compile at their first call for a shape's kind (seconds).
"""

from __future__ import annotations

import functools
import importlib
import importlib.metadata
import inspect
from typing import Any

import torch

from ringmark.cell import Shape
from ringmark.kernels import _gpu

# It takes rowsum(dout * out) - dlse and clears what dq is summed in.
FIRST_PASS = "_bwd_preprocess"


class Flash4:
    """FlashAttention-4."""

    name = "flash4"
    needs_out = False
    deterministic = False  # dq is summed by atomic additions

    def version(self) -> str:
        return f"flash-attn-4 {importlib.metadata.version('flash-attn-4')}"

    def unavailable(self) -> str | None:
        reason = _gpu.no_gpu((9, 0))
        if reason:
            return reason
        try:
            _interface()
        except importlib.metadata.PackageNotFoundError:
            return "flash-attn-4 is not installed"
        except Exception as error:  # an import that fails in any way is a kernel that is not there
            return f"flash_attn.cute does not import: {type(error).__name__}: {error}"
        return None

    def unfit(self, shape: Shape, device: torch.device) -> str | None:
        # Only the Hopper kernels go to 256; Blackwell's own one for 256 takes no dlse.
        return _gpu.misfit(shape, device, 256 if _capability(device) == 9 else 128)

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse, *_ = _interface()._flash_attn_fwd(
            q, k, v, softmax_scale=scale, causal=causal, return_lse=True
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
        nothing = torch.zeros(q.shape[-1], dtype=q.dtype, device=q.device).expand(q.shape)
        dlse = torch.neg(delta, out=delta.new_empty(delta.shape))  # contiguous, as lse must be
        dq, dk, dv = _interface()._flash_attn_bwd(
            q, k, v, nothing, dout, lse.contiguous(), softmax_scale=scale, causal=causal, dlse=dlse
        )
        return dq, dk, dv


@functools.cache
def _interface() -> Any:
    """The module with the two calls, out of the flash-attn-4 distribution."""
    folder = str(importlib.metadata.distribution("flash-attn-4").locate_file("flash_attn"))
    package = importlib.import_module("flash_attn")
    if folder not in list(package.__path__)[:1]:
        # flash-attn 2, where it lies elsewhere on the path, hides this folder behind its own package of the
        # same name, and its 2.8 releases carry an early flash_attn/cute that must not be taken for this one.
        package.__path__ = [folder, *package.__path__]
    interface = importlib.import_module("flash_attn.cute.interface")
    _spare_dout(interface)
    return interface


def _spare_dout(interface: Any) -> None:
    """Make the pass before the backward get by without dout where `out` is one row that all share."""
    first_pass = getattr(interface, FIRST_PASS, None)
    if first_pass is None or list(inspect.signature(first_pass).parameters)[:2] != ["out", "dout"]:
        return

    @functools.wraps(first_pass)  # its attributes too: it keeps its compiled kernels in one
    def spared(out: torch.Tensor, dout: torch.Tensor, *others: Any, **named: Any) -> None:
        first_pass(out, dout if any(out.stride()[:-1]) else out, *others, **named)

    setattr(interface, FIRST_PASS, spared)


def _capability(device: torch.device) -> int:
    return torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else 0


KERNEL = Flash4()
