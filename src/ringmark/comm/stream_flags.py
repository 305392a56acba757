"""Counters between two GPUs that streams write and wait for by themselves: no kernel, no host.

A kernel that signals needs a free SM, which a persistent attention kernel may not leave (a copy that has
arrived would wait for it to end). CUDA's stream memory operations need none: a stream writes a number to an
address, also one in another GPU's memory, or waits until the number there is large enough.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any

import torch

# cuda.h: the wait ends when (int32) (*address - value) >= 0; a write comes after all the stream did before.
WAIT_UNTIL_AT_LEAST = 0x0
WRITE_AFTER_EVERYTHING = 0x0
READY, DATA = 0, 1


@functools.cache
def _driver() -> Any:
    library = ctypes.CDLL("libcuda.so.1")
    for name in ("cuStreamWaitValue32_v2", "cuStreamWriteValue32_v2"):
        function = getattr(library, name)
        function.argtypes = [ctypes.c_void_p, ctypes.c_uint64, ctypes.c_uint32, ctypes.c_uint]
        function.restype = ctypes.c_int
    return library


class Flags:
    """The counters of one ring: our own, and those that we raise at the next and the previous member."""

    NUM_WORDS = 64

    def __init__(self, mine: torch.Tensor, at_next: torch.Tensor, at_previous: torch.Tensor) -> None:
        self._memory = (mine, at_next, at_previous)  # kept alive: only their addresses are used
        self._mine, self._next, self._previous = (tensor.data_ptr() for tensor in self._memory)

    @staticmethod
    def unavailable() -> str | None:
        """Why streams cannot wait for memory here, or None."""
        try:
            _driver()
        except (OSError, AttributeError) as error:
            return f"the CUDA driver has no stream memory operations: {error}"
        return None

    def say_ready(self, number: int) -> None:
        """Tell the previous member that our slot for this hop may be written."""
        self._write(self._previous, READY, number)

    def wait_ready(self, number: int) -> None:
        """Wait until the next member's slot may be written."""
        self._wait(READY, number)

    def say_data(self, number: int) -> None:
        """Tell the next member that its slot has been written."""
        self._write(self._next, DATA, number)

    def wait_data(self, number: int) -> None:
        """Wait until our slot has been written."""
        self._wait(DATA, number)

    def _write(self, address: int, word: int, number: int) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        address += _place(word)
        _check(_driver().cuStreamWriteValue32_v2(stream, address, number, WRITE_AFTER_EVERYTHING))

    def _wait(self, word: int, number: int) -> None:
        stream = torch.cuda.current_stream().cuda_stream
        _check(
            _driver().cuStreamWaitValue32_v2(stream, self._mine + _place(word), number, WAIT_UNTIL_AT_LEAST)
        )


def _place(word: int) -> int:
    return 128 * word  # a cache line each: two GPUs write them


def _check(status: int) -> None:
    if status:
        raise RuntimeError(f"a stream memory operation failed with CUDA driver error {status}")
