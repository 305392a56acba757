"""Slots of symmetric memory as a pool of parcels, and where in a slot the tensors of a parcel lie.

A rank writes into another's slot without asking where: all take the same slot for the same hop, and both ends
count the place of every tensor from the hop's room, the largest parcel that it brings to any member.

    room      q ............ | dO ............ | lse .. | delta ..
    parcel    q ......       | dO ......       | lse    | delta        some rows of each, from a first one

Where things lie is worked out once for each kind of parcel: a short hop takes less time than counting again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch

from ringmark.comm.parcel import Parcel, Pool, Signature
from ringmark.comm.symmetric import Slot

ALIGNMENT = 512
# Slots are made a little larger than asked for: the backward's parcels (2.03T) fit the forward's (2T).
HEADROOM = 1.05
GRAIN = 2 << 20


class SlotParcel(Parcel):
    """A parcel that lies in a slot."""

    def __init__(self, slot: Slot, number: int, kind: Signature, room: Signature, pool: Pool) -> None:
        super().__init__(views(slot.ours, kind, room), pool.give_back)
        self.slot, self.number = slot, number


class SlotPool(Pool):
    """Slots by size; takes the first free one that is large enough, which is the same one on every rank."""

    def __init__(self, device: torch.device, allocate: Callable[[int], Slot]) -> None:
        super().__init__(device)
        self._allocate = allocate
        self._slots: list[Slot] = []
        self._free_numbers: list[int] = []
        self._parcels: dict[tuple[int, Signature, Signature], SlotParcel] = {}

    def take(self, signature: Signature, room: Signature | None = None) -> SlotParcel:
        """A slot for a parcel, chosen by `room`, which must be the same on every rank."""
        room = room or signature
        landing(signature, room)  # it fits, or nothing is taken
        number = self._take_number(span(room))
        key = (number, signature, room)
        if key not in self._parcels:
            self._parcels[key] = SlotParcel(self._slots[number], number, signature, room, self)
        parcel = self._parcels[key]
        parcel.users = 1
        return parcel

    def _take_number(self, needed: int) -> int:
        for index, number in enumerate(self._free_numbers):
            if self._slots[number].ours.numel() >= needed:
                return self._free_numbers.pop(index)
        size = -(-int(needed * HEADROOM) // GRAIN) * GRAIN
        self._slots.append(self._allocate(size))
        return len(self._slots) - 1

    def give_back(self, parcel: Parcel) -> None:
        assert isinstance(parcel, SlotParcel)
        self._free_numbers.append(parcel.number)

    def clear(self) -> None:
        """Slots stay: the next call would have to make them again, together with all members."""


@functools.cache
def span(room: Signature) -> int:
    """The bytes that a room takes in a slot."""
    return _extents(room)[-1][1] if room else 0


@functools.cache
def landing(kind: Signature, room: Signature, first_row: int = 0) -> tuple[int, ...]:
    """The byte at which each tensor of a parcel begins, if it lies from this row of its room on."""
    found = []
    for tensor, space, (begin, end) in zip(kind, room, _extents(room)):
        shape, dtype = space
        assert not first_row or shape[0] == tensor[0][0] == 1, "rows lie side by side in a batch of one alone"
        first = begin + first_row * _num_bytes((shape[2:], dtype))
        assert first + _num_bytes(tensor) <= end, "a parcel is larger than the room that was made for it"
        found.append(first)
    return tuple(found)


def views(memory: torch.Tensor, kind: Signature, room: Signature) -> list[torch.Tensor]:
    """The tensors of a parcel in a slot's memory."""
    return [
        memory[begin : begin + _num_bytes((shape, dtype))].view(dtype).view(shape)
        for (shape, dtype), begin in zip(kind, landing(kind, room))
    ]


def _extents(room: Signature) -> list[tuple[int, int]]:
    """Where each tensor of a room begins and ends in a slot."""
    found, begin = [], 0
    for kind in room:
        end = begin + _num_bytes(kind)
        found.append((begin, end))
        begin = -(-end // ALIGNMENT) * ALIGNMENT
    return found


def _num_bytes(kind: tuple[tuple[int, ...], torch.dtype]) -> int:
    """The size of one tensor of a parcel."""
    shape, dtype = kind
    return torch.Size(shape).numel() * dtype.itemsize
