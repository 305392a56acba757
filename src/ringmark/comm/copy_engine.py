"""A ring on copy engines: a parcel is written straight into another GPU's memory, without any SM.

    us      ready(source) ...... wait ready(us) -> copy into target's slot -> data(target)
    target  ready(us) .......... wait ready(target) -> copy ...               wait data(target): it is here

Each GPU owns slots of symmetric memory that any member may write. All ranks run one program, so a hop uses
the same slot everywhere. `ready` says that a slot may be written, `data` that it has been; both are counters
in memory that the streams themselves write and wait for (comm/stream_flags.py), so neither the host nor a
kernel waits. Slots are kept for the life of the ring: making one is slow and all members take part.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from ringmark.comm import driver
from ringmark.comm.mesh import OPEN_LANE, Axis, Lane, Mesh
from ringmark.comm.parcel import Parcel, Pool, Signature, signature
from ringmark.comm.ring import Delivery, Hop, Ring
from ringmark.comm.slots import SlotPool, landing
from ringmark.comm.stream_flags import Flags
from ringmark.comm.symmetric import Slot, make_slot


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
        side.wait_stream(torch.cuda.current_stream(self.mesh.device))
        sources = [self.place(-delivery.steps) for delivery in deliveries]
        for source in sources:
            flags.say_ready(side.cuda_stream, source, number)
        for steps, parcel, there, _ in deliveries:
            target = self.place(steps)
            flags.wait_ready(side.cuda_stream, target, number)
            memory = received.slot.addresses[target]
            for tensor, place in zip(parcel.tensors, landing(signature(parcel.tensors), room, there)):
                driver.copy(side.cuda_stream, tensor, memory + place)
            flags.say_data(side.cuda_stream, target, number)
        leaving = [delivery.parcel.hold() for delivery in deliveries]
        return _Copy(self.mesh.device, flags, sources, number, side.record_event(), leaving, received)

    def _prepared(self) -> tuple[Flags, torch.cuda.Stream]:
        if self._flags is None or self._side is None:
            slot = self._make_slot(Flags.num_bytes(self.size))
            slot.ours.zero_()
            self._flags = Flags(slot, self.group.position)
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
        device: torch.device,
        flags: Flags,
        sources: Sequence[int],
        number: int,
        copied: torch.cuda.Event,
        leaving: Sequence[Parcel],
        arriving: Parcel,
    ) -> None:
        self._device, self._flags, self._sources, self._number = device, flags, sources, number
        self._copied, self._leaving, self._arriving = copied, leaving, arriving

    def wait(self) -> Parcel:
        stream = torch.cuda.current_stream(self._device)
        for source in self._sources:
            self._flags.wait_data(stream.cuda_stream, source, self._number)
        stream.wait_event(self._copied)
        for parcel in self._leaving:
            parcel.drop()
        return self._arriving
