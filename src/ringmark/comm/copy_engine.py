"""A ring on copy engines: a parcel is written straight into another GPU's memory, without any SM.

    us      ready(source) ...... wait ready(us) -> copy into target's slot -> data(target)
    target  ready(us) .......... wait ready(target) -> copy ...               wait data(target): it is here

Each GPU owns slots of symmetric memory that any member may write. All ranks run one program, so a hop uses
the same slot everywhere. `ready` says that a slot may be written, `data` that it has been; both are counters
in memory that the streams themselves write and wait for (comm/stream_flags.py), so neither the host nor a
kernel waits. Slots are kept for the life of the ring: making one is slow and all members take part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.distributed as dist

from ringmark.comm import driver
from ringmark.comm.mesh import OPEN_LANE, Axis, Lane, Mesh
from ringmark.comm.parcel import Parcel, Pool, Signature, signature
from ringmark.comm.ring import Delivery, Hop, Ring
from ringmark.comm.stream_flags import Flags
from ringmark.comm.symmetric import Slot, make_slot

ALIGNMENT = 512
# Slots are made a little larger than asked for: the backward's parcels (2.03T) fit the forward's (2T).
HEADROOM = 1.05


class SlotParcel(Parcel):
    """A parcel that lies in a slot."""

    def __init__(self, slot: Slot, kind: Signature, room: Signature, pool: Pool) -> None:
        super().__init__(views(slot.ours, kind, room), pool.give_back)
        self.slot = slot


class SlotPool(Pool):
    """Slots by size; takes the first free one that is large enough, which is the same one on every rank."""

    def __init__(self, device: torch.device, allocate: Callable[[int], Slot]) -> None:
        super().__init__(device)
        self._allocate = allocate
        self._free_slots: list[Slot] = []
        self.num_bytes = 0

    def take(self, signature: Signature, room: Signature | None = None) -> SlotParcel:
        """A slot for a parcel, chosen by `room`, which must be the same on every rank."""
        room = room or signature
        needed = span(room)
        assert all(num_bytes(kind) <= num_bytes(space) for kind, space in zip(signature, room)), (
            "a parcel is larger than the room that was made for it"
        )
        for index, slot in enumerate(self._free_slots):
            if slot.ours.numel() >= needed:
                return SlotParcel(self._free_slots.pop(index), signature, room, self)
        self.made += 1
        size = -(-int(needed * HEADROOM) // (2 << 20)) * (2 << 20)
        self.num_bytes += size
        return SlotParcel(self._allocate(size), signature, room, self)

    def give_back(self, parcel: Parcel) -> None:
        assert isinstance(parcel, SlotParcel)
        self._free_slots.append(parcel.slot)

    def clear(self) -> None:
        """Slots stay: the next call would have to make them again, together with all members."""


def num_bytes(kind: tuple[tuple[int, ...], torch.dtype]) -> int:
    """The size of one tensor of a parcel."""
    shape, dtype = kind
    return torch.Size(shape).numel() * dtype.itemsize


def offsets(signature: Signature) -> list[tuple[int, int]]:
    """Where each tensor of a parcel begins and ends in a slot."""
    found, begin = [], 0
    for kind in signature:
        end = begin + num_bytes(kind)
        found.append((begin, end))
        begin = -(-end // ALIGNMENT) * ALIGNMENT
    return found


def span(signature: Signature) -> int:
    """The bytes that a parcel takes in a slot."""
    return offsets(signature)[-1][1] if signature else 0


def views(
    memory: torch.Tensor, kind: Signature, room: Signature, first_row: int = 0
) -> Sequence[torch.Tensor]:
    """The tensors of a parcel in a slot's memory, each from a row of its room on."""
    found = []
    for (shape, dtype), (space, _), (begin, end) in zip(kind, room, offsets(room)):
        if first_row:
            assert space[0] == shape[0] == 1, "rows lie side by side in a batch of one alone"
        begin += first_row * num_bytes((space[2:], dtype))
        stop = begin + num_bytes((shape, dtype))
        assert stop <= end, "a delivery reaches beyond its room"
        found.append(memory[begin:stop].view(dtype).view(shape))
    return found


class CopyEngineRing(Ring):
    """The ring over one axis inside a node, written by copy engines."""

    def __init__(self, mesh: Mesh, axis: Axis, purpose: str, pool: Pool, lane: Lane = OPEN_LANE) -> None:
        super().__init__(mesh, axis, purpose, pool, lane)
        self.slots = SlotPool(mesh.device, self._make_slot)
        self._flags: Flags | None = None
        self._side: torch.cuda.Stream | None = None
        self._num_hops = 0

    @property
    def transport(self) -> str:
        return "copy_engine"

    def sends(self, tensor: torch.Tensor) -> bool:
        return driver.has_whole_rows(tensor)

    def _exchange(self, deliveries: Sequence[Delivery], arriving: Signature, room: Signature) -> Hop:
        flags, side = self._prepared()
        received = self.slots.take(arriving, room)
        self._num_hops += 1
        number = self._num_hops
        # By all that is enqueued so far, what is sent has been computed and what the slot held has been read.
        side.wait_stream(torch.cuda.current_stream())
        sources = [self.place(-delivery.steps) for delivery in deliveries]
        with torch.cuda.stream(side):
            for source in sources:
                flags.say_ready(source, number)
            for steps, parcel, there, _ in deliveries:
                target = self.place(steps)
                flags.wait_ready(target, number)
                memory = received.slot.of_members[target]
                lands = views(memory, signature(parcel.tensors), room, there)
                for into, mine in zip(lands, parcel.tensors):
                    driver.copy(mine, into)
                flags.say_data(target, number)
            copied = side.record_event()
        leaving = [delivery.parcel.hold() for delivery in deliveries]
        return _Copy(flags, sources, number, copied, leaving, received)

    def _prepared(self) -> tuple[Flags, torch.cuda.Stream]:
        if self._flags is None or self._side is None:
            ours, of_members = self._make_slot(Flags.num_bytes(self.size))
            ours.zero_()
            self._flags = Flags(ours, of_members, self.group.position)
            self._side = torch.cuda.Stream(priority=-1)  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
            dist.barrier(self.group.process_group)  # nobody writes a flag before everybody has cleared theirs
        return self._flags, self._side

    def _make_slot(self, num_bytes: int) -> Slot:
        return make_slot(self.group, self.mesh.device, num_bytes)


class _Copy:
    """A hop by copy engine."""

    def __init__(
        self,
        flags: Flags,
        sources: Sequence[int],
        number: int,
        copied: torch.cuda.Event,
        leaving: Sequence[Parcel],
        arriving: Parcel,
    ) -> None:
        self._flags, self._sources, self._number, self._copied = flags, sources, number, copied
        self._leaving, self._arriving = leaving, arriving

    def wait(self) -> Parcel:
        for source in self._sources:
            self._flags.wait_data(source, self._number)
        torch.cuda.current_stream().wait_event(self._copied)
        for parcel in self._leaving:
            parcel.drop()
        return self._arriving
