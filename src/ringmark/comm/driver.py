"""What the CUDA driver does on a stream that torch has no call for: counters in memory, copies of rows.

A kernel that signals needs a free SM, which a persistent attention kernel may not leave (a copy that has
arrived would wait for it to end), and a kernel that packs rows takes SMs and memory's time from it. The
driver's own operations need none: copy engines and the stream's front end do them.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch

# cuda.h: the wait ends when (int32) (*address - value) >= 0; a write comes after all the stream did before.
WAIT_UNTIL_AT_LEAST = 0x0
WRITE_AFTER_EVERYTHING = 0x0
IN_DEVICE_MEMORY = 2


_SIDE: tuple[tuple[str, Any], ...] = (
    ("x", ctypes.c_size_t),
    ("y", ctypes.c_size_t),
    ("type", ctypes.c_uint),
    ("host", ctypes.c_void_p),
    ("device", ctypes.c_uint64),
    ("array", ctypes.c_void_p),
    ("pitch", ctypes.c_size_t),
)


class _Copy2D(ctypes.Structure):
    """CUDA_MEMCPY2D of cuda.h."""

    _fields_ = [(f"{way}_{name}", kind) for way in ("from", "into") for name, kind in _SIDE] + [
        ("width", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
    ]


@functools.cache
def _driver() -> Any:
    library = ctypes.CDLL("libcuda.so.1")
    for name in ("cuStreamWaitValue32_v2", "cuStreamWriteValue32_v2"):
        function = getattr(library, name)
        function.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint]
        function.restype = ctypes.c_int
    library.cuMemcpyAsync.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, ctypes.c_void_p]
    library.cuMemcpyAsync.restype = ctypes.c_int
    library.cuMemcpy2DAsync_v2.argtypes = [ctypes.POINTER(_Copy2D), ctypes.c_void_p]
    library.cuMemcpy2DAsync_v2.restype = ctypes.c_int
    return library


def unavailable() -> str | None:
    """Why streams cannot wait for memory here, or None."""
    try:
        _driver()
    except (OSError, AttributeError) as error:
        return f"the CUDA driver has no stream memory operations: {error}"
    return None


def write(stream: int, address: int, number: int) -> None:
    """Write a number there, after all that the stream did before."""
    _check(_driver().cuStreamWriteValue32_v2(stream, address, number, WRITE_AFTER_EVERYTHING))


def wait(stream: int, address: int, number: int) -> None:
    """Make the stream wait until the number there is large enough."""
    _check(_driver().cuStreamWaitValue32_v2(stream, address, number, WAIT_UNTIL_AT_LEAST))


def has_whole_rows(tensor: torch.Tensor) -> bool:
    """Whether everything of one row (B, S, ...) lies side by side, as in a view of some heads."""
    row = tensor[0, 0] if tensor.dim() > 2 and tensor.numel() else tensor
    return row.is_contiguous()


def copy(stream: int, source: torch.Tensor, into: int) -> None:
    """By copy engine: whole rows of one GPU to an address of another's, there side by side."""
    if source.is_contiguous():
        _check(_driver().cuMemcpyAsync(into, source.data_ptr(), source.nbytes, stream))
        return
    assert has_whole_rows(source)
    size = source.element_size()
    width = source[0, 0].numel() * size
    for number, before in enumerate(source):
        job = _Copy2D(
            from_type=IN_DEVICE_MEMORY,
            from_device=before.data_ptr(),
            from_pitch=before.stride(0) * size,
            into_type=IN_DEVICE_MEMORY,
            into_device=into + number * before.shape[0] * width,
            into_pitch=width,
            width=width,
            height=before.shape[0],
        )
        _check(_driver().cuMemcpy2DAsync_v2(ctypes.byref(job), stream))


def _check(status: int) -> None:
    if status:
        raise RuntimeError(f"an operation on a stream failed with CUDA driver error {status}")
