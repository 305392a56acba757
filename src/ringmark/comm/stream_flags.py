"""Counters between two GPUs that streams write and wait for by themselves: no kernel, no host."""

from __future__ import annotations

from ringmark.comm import driver
from ringmark.comm.symmetric import Slot

READY, DATA = 0, 1
LINE = 128  # bytes: a cache line each, as two GPUs write them


class Flags:
    """The counters of one ring: two for each member in our own memory, and ours in theirs.

    Every hop of a ring has a number that is the same on all members and grows from hop to hop.
    """

    def __init__(self, slot: Slot, position: int) -> None:
        self._slot = slot  # kept alive: only its addresses are used
        self._ours, self._theirs = slot.addresses[position], slot.addresses
        self._position = position

    @staticmethod
    def num_bytes(members: int) -> int:
        """The memory that they take."""
        return 2 * members * LINE

    def say_ready(self, stream: int, source: int, number: int) -> None:
        """Tell a member that our slot for this hop may be written."""
        driver.write(stream, self._theirs[source] + _place(READY, self._position), number)

    def wait_ready(self, stream: int, target: int, number: int) -> None:
        """Wait until a member's slot may be written."""
        driver.wait(stream, self._ours + _place(READY, target), number)

    def say_data(self, stream: int, target: int, number: int) -> None:
        """Tell a member that its slot has been written."""
        driver.write(stream, self._theirs[target] + _place(DATA, self._position), number)

    def wait_data(self, stream: int, source: int, number: int) -> None:
        """Wait until our slot has been written by a member."""
        driver.wait(stream, self._ours + _place(DATA, source), number)


def _place(word: int, member: int) -> int:
    return LINE * (2 * member + word)
