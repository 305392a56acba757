"""What the GPU kernels have in common when they say no: the device, the dtype, the head size."""

from __future__ import annotations

import functools
import re

import torch

from ringmark.cell import Shape

HALF = ("bf16", "fp16")


def no_gpu(capability_min: tuple[int, int]) -> str | None:
    """Why this machine has no GPU for a kernel that needs at least this compute capability, or None."""
    if not torch.cuda.is_available():
        return "there is no CUDA device"
    have = torch.cuda.get_device_capability()
    if have < capability_min:
        return (
            f"the GPU has compute capability {have[0]}.{have[1]}, it needs "
            f"{capability_min[0]}.{capability_min[1]} or later"
        )
    return None


def misfit(shape: Shape, device: torch.device, head_dim_max: int) -> str | None:
    """Why a half-precision CUDA kernel cannot take this shape, or None."""
    if device.type != "cuda":
        return f"it runs on CUDA devices, not on {device.type}"
    if shape.dtype not in HALF:
        return f"it computes {' and '.join(HALF)}, not {shape.dtype}"
    if shape.head_dim % 8 or shape.head_dim > head_dim_max:
        return f"head_dim must be a multiple of 8 up to {head_dim_max}, it is {shape.head_dim}"
    return None


@functools.cache
def release(version: str) -> tuple[int, ...]:
    """The numbers of a version, to be compared as numbers: '2.10.0.post1' -> (2, 10, 0), 'unknown' -> ()."""
    found = re.match(r"\d+(\.\d+)*", version)
    return tuple(int(part) for part in found[0].split(".")) if found else ()
