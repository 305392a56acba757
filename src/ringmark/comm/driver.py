"""What the CUDA driver does on a stream that torch has no call for: counters in memory, copies of rows.

A kernel that signals needs a free SM, which a persistent attention kernel may not leave (a copy that has
arrived would wait for it to end), and a kernel that packs rows takes SMs and memory's time from it. The
driver's own operations need none: copy engines and the stream's front end do them.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any, NamedTuple

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
    if tensor.dim() <= 2 or not tensor.numel():
        return tensor.is_contiguous()
    expected = 1
    for size, stride in zip(reversed(tensor.shape[2:]), reversed(tensor.stride()[2:])):
        if size != 1 and stride != expected:
            return False
        expected *= size
    return True


class Place(NamedTuple):
    """Where the rows of a tensor (B, S, ...) lie in a GPU's memory; side by side where nothing is said."""

    address: int
    row: int = 0  # bytes from one row to the next
    item: int = 0  # bytes from one item of the batch to the next


def copy(stream: int, source: torch.Tensor, into: Place) -> None:
    """By copy engine: whole rows of one GPU to a place in another's memory."""
    if source.is_contiguous() and not (into.row or into.item):
        _check(_driver().cuMemcpyAsync(into.address, source.data_ptr(), source.nbytes, stream))
        return
    assert has_whole_rows(source)
    (batch, height), size = source.shape[:2], source.element_size()
    width = source.nbytes // (batch * height)
    item, pitch = source.stride(0) * size, source.stride(1) * size
    into_item = into.item or height * width
    for number in range(batch):
        job = _Copy2D(
            from_type=IN_DEVICE_MEMORY,
            from_device=source.data_ptr() + number * item,
            from_pitch=pitch,
            into_type=IN_DEVICE_MEMORY,
            into_device=into.address + number * into_item,
            into_pitch=into.row or width,
            width=width,
            height=height,
        )
        _check(_driver().cuMemcpy2DAsync_v2(ctypes.byref(job), stream))


def _check(status: int) -> None:
    if status:
        raise RuntimeError(f"an operation on a stream failed with CUDA driver error {status}")
