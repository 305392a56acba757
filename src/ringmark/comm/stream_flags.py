"""Counters between two GPUs that streams write and wait for by themselves: no kernel, no host."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ringmark.comm import driver

READY, DATA = 0, 1
LINE = 128  # bytes: a cache line each, as two GPUs write them


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

    def say_ready(self, source: int, number: int) -> None:
        """Tell a member that our slot for this hop may be written."""
        driver.write(self._theirs[source] + _place(READY, self._position), number)

    def wait_ready(self, target: int, number: int) -> None:
        """Wait until a member's slot may be written."""
        driver.wait(self._ours + _place(READY, target), number)

    def say_data(self, target: int, number: int) -> None:
        """Tell a member that its slot has been written."""
        driver.write(self._theirs[target] + _place(DATA, self._position), number)

    def wait_data(self, source: int, number: int) -> None:
        """Wait until our slot has been written by a member."""
        driver.wait(self._ours + _place(DATA, source), number)


def _place(word: int, member: int) -> int:
    return LINE * (2 * member + word)
