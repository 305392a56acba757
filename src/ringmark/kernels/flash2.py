"""flash-attn 2.4 to 2.8 behind one face, stock or with the opt_bwd patch.

    2.4, 2.5   window_size                      forward returns 8 values, lse the sixth
    2.6        window_size, softcap             the same
    2.7, 2.8   window_size_left/right, softcap  forward returns 4 values, lse the second
    2.4.1 on   deterministic
    patched    softmax_d (delta) in place of out

The stock backward needs out. A build with envs/flash-attn/opt_bwd*.patch takes delta.
"""

from __future__ import annotations

import functools
import importlib
import re
import shutil
import subprocess
from typing import Any

import torch

from ringmark.cell import Shape
from ringmark.kernels import _gpu

OLDEST, NEWEST = (2, 4), (2, 8)
HEAD_SIZES = (32, 64, 96, 128, 192, 256)  # a head_dim between two of them runs in the larger one's kernel


class Flash2:
    """flash-attn 2."""

    name = "flash2"
    deterministic = False  # dq is summed by atomic additions

    @property
    def needs_out(self) -> bool:
        return not _patched()

    def version(self) -> str:
        return f"flash-attn {_package().__version__}" + (" + opt_bwd" if _patched() else "")

    def unavailable(self) -> str | None:
        reason = _gpu.no_gpu((8, 0))
        if reason:
            return reason
        try:
            version = _package().__version__
            _interface()
        except ModuleNotFoundError:
            return "flash-attn is not installed"
        except Exception as error:  # an import that fails in any way is a kernel that is not there
            return f"flash_attn does not import: {type(error).__name__}: {error}"
        if not OLDEST <= _gpu.release(version)[:2] <= NEWEST:
            return f"flash-attn {version} is not one of 2.4 to 2.8, whose calls are known"
        return None

    def unfit(self, shape: Shape, device: torch.device) -> str | None:
        reason = _gpu.misfit(shape, device, head_dim_max=256)
        if reason:
            return reason
        built = _built(_extension().__file__)
        rounded = next(size for size in HEAD_SIZES if size >= shape.head_dim)
        if built and (shape.dtype, rounded) not in built:
            return f"this build of flash-attn has no {shape.dtype} kernel for head_dim {shape.head_dim}"
        return None

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        results = _interface()._flash_attn_forward(
            q, k, v, return_softmax=False, **_common(_version(), scale, causal)
        )
        return results[0], results[1 if len(results) == 4 else 5]

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
        named = _common(_version(), scale, causal)
        if _version() >= (2, 4, 1):
            named["deterministic"] = False
        if _patched():
            out, named["softmax_d"] = None, delta.contiguous()
        elif out is None:
            raise ValueError("this flash-attn needs out in its backward: it lacks the opt_bwd patch")
        dq, dk, dv = (torch.empty(like.shape, dtype=like.dtype, device=like.device) for like in (q, k, v))
        _interface()._flash_attn_backward(dout, q, k, v, out, lse.contiguous(), dq, dk, dv, **named)
        return dq, dk, dv


def _common(version: tuple[int, ...], scale: float, causal: bool) -> dict[str, Any]:
    """The arguments of both calls, as this version names them."""
    named: dict[str, Any] = {
        "dropout_p": 0.0,
        "softmax_scale": scale,
        "causal": causal,
        "alibi_slopes": None,
    }
    if version >= (2, 7):
        named |= {"window_size_left": -1, "window_size_right": -1}
    else:
        named["window_size"] = (-1, -1)
    if version >= (2, 6):
        named["softcap"] = 0.0
    return named


def _package() -> Any:
    return importlib.import_module("flash_attn")


def _interface() -> Any:
    return importlib.import_module("flash_attn.flash_attn_interface")


def _extension() -> Any:
    return importlib.import_module("flash_attn_2_cuda")


def _version() -> tuple[int, ...]:
    return _gpu.release(_package().__version__)


def _patched() -> bool:
    """Whether this build has the opt_bwd patch, which names its argument in the docstring."""
    try:
        return "softmax_d" in (_extension().bwd.__doc__ or "")
    except ImportError:
        return False


@functools.cache
def _built(path: str) -> frozenset[tuple[str, int]]:
    """(dtype, head size) of the backward kernels in a build, or nothing where that cannot be read.

    A build cut down to some head sizes ends the process when another is asked for, so it is asked before.
    """
    if shutil.which("nm") is None:
        return frozenset()
    listing = subprocess.run(["nm", "-D", "--defined-only", path], capture_output=True, text=True)
    kernels = re.findall(r"run_mha_bwd_IN7cutlass\d+(bfloat16|half)_tELi(\d+)", listing.stdout)
    return frozenset(({"bfloat16": "bf16", "half": "fp16"}[dtype], int(size)) for dtype, size in kernels)


KERNEL = Flash2()
