"""Counters between two GPUs that streams write and wait for by themselves: no kernel, no host.

A kernel that signals needs a free SM, which a persistent attention kernel may not leave (a copy that has
arrived would wait for it to end). CUDA's stream memory operations need none: a stream writes a number to an
address, also one in another GPU's memory, or waits until the number there is large enough.
"""

from __future__ import annotations

import ctypes
import functools
from collections.abc import Sequence
from typing import Any

import torch

# cuda.h: the wait ends when (int32) (*address - value) >= 0; a write comes after all the stream did before.
WAIT_UNTIL_AT_LEAST = 0x0
WRITE_AFTER_EVERYTHING = 0x0
READY, DATA = 0, 1
LINE = 128  # bytes: a cache line each, as two GPUs write them


@functools.cache
def _driver() -> Any:
    library = ctypes.CDLL("libcuda.so.1")
    for name in ("cuStreamWaitValue32_v2", "cuStreamWriteValue32_v2"):
        function = getattr(library, name)
        function.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint]
        function.restype = ctypes.c_int
    return library


class Flags:
    """The counters of one ring: two for each member in our own memory, and ours in theirs.

    Every hop of a ring has a number that is the same on all members and grows from hop to hop.
    """

    def __init__(self, ours: torch.Tensor, of_members: Sequence[torch.Tensor], position: int) -> None:
        self._memory = (ours, of_members)  # kept alive: only their addresses are used
        self._ours, self._theirs = ours.data_ptr(), [tensor.data_ptr() for tensor in of_members]
        self._position = position

    @staticmethod
    def num_bytes(members: int) -> int:
        """The memory that they take."""
        return 2 * members * LINE

    @staticmethod
    def unavailable() -> str | None:
        """Why streams cannot wait for memory here, or None."""
        try:
            _driver()
        except (OSError, AttributeError) as error:
            return f"the CUDA driver has no stream memory operations: {error}"
        return None

    def say_ready(self, source: int, number: int) -> None:
        """Tell a member that our slot for this hop may be written."""
        self._write(self._theirs[source] + _place(READY, self._position), number)

    def wait_ready(self, target: int, number: int) -> None:
        """Wait until a member's slot may be written."""
        self._wait(_place(READY, target), number)

    def say_data(self, target: int, number: int) -> None:
        """Tell a member that its slot has been written."""
        self._write(self._theirs[target] + _place(DATA, self._position), number)

    def wait_data(self, source: int, number: int) -> None:
        """Wait until our slot has been written by a member."""
        self._wait(_place(DATA, source), number)

    def _write(self, address: int, number: int) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        _check(_driver().cuStreamWriteValue32_v2(stream, address, number, WRITE_AFTER_EVERYTHING))

    def _wait(self, offset: int, number: int) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        _check(_driver().cuStreamWaitValue32_v2(stream, self._ours + offset, number, WAIT_UNTIL_AT_LEAST))


def _place(word: int, member: int) -> int:
    return LINE * (2 * member + word)


def _check(status: int) -> None:
    if status:
        raise RuntimeError(f"a stream memory operation failed with CUDA driver error {status}")
