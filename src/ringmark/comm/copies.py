"""Copies between GPUs that no multiprocessor makes: straight from one GPU's memory into another's slot.

    us      ready(source) ...... wait ready(us) -> copy into target's slot -> data(target)
    target  ready(us) .......... wait ready(target) -> copy ...               wait data(target): it is here

Each GPU owns slots of symmetric memory that any member of the group may write. All ranks run one program, so
a hop uses the same slot everywhere. `ready` says that a slot may be written, `data` that it has been; both
are counters in memory that the streams themselves write and wait for (comm/stream_flags.py), so neither the
host nor a kernel waits. Slots are kept for good: making one is slow and all members take part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.distributed as dist

from ringmark.comm import driver
from ringmark.comm.mesh import Group
from ringmark.comm.parcel import Parcel
from ringmark.comm.slots import SlotParcel, SlotPool
from ringmark.comm.stream_flags import Flags
from ringmark.comm.symmetric import Slot, make_slot


class Leaving(NamedTuple):
    """What goes to the member at this position, each tensor to its place in that member's slot."""

    target: int
    tensors: Sequence[tuple[torch.Tensor, driver.Place]]


class Copies:
    """The copy engines of one group, for one purpose."""

    def __init__(self, group: Group, device: torch.device) -> None:
        self.group, self.device = group, device
        self.slots = SlotPool(device, self._make_slot)
        self._flags: Flags | None = None
        self._side: torch.cuda.Stream | None = None
        self._num_hops = 0

    def post(
        self,
        leaving: Sequence[Leaving],
        sources: Sequence[int],
        received: SlotParcel,
        held: Sequence[Parcel] = (),
        as_of: torch.cuda.Event | None = None,
    ) -> Copied:
        """Copy what leaves, and expect something from the members at `sources` in the slot of `received`.

        What is copied must not change before the hop has been waited for; until then parcels are `held`.
        By `as_of`, or else by all that is enqueued so far, it must be there and the slot must have been read.
        """
        flags, side = self._prepared()
        self._num_hops += 1
        number = self._num_hops
        side.wait_event(as_of or torch.cuda.current_stream(self.device).record_event())
        for source in sources:
            flags.say_ready(side.cuda_stream, source, number)
        for target, tensors in leaving:
            flags.wait_ready(side.cuda_stream, target, number)
            for tensor, place in tensors:
                driver.copy(side.cuda_stream, tensor, place)
            flags.say_data(side.cuda_stream, target, number)
        return Copied(self.device, flags, sources, number, side.record_event(), held, received)

    def _prepared(self) -> tuple[Flags, torch.cuda.Stream]:
        if self._flags is None or self._side is None:
            slot = self._make_slot(Flags.num_bytes(self.group.size))
            slot.ours.zero_()
            self._flags = Flags(slot, self.group.position)
            self._side = torch.cuda.Stream(priority=-1)  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
            dist.barrier(self.group.process_group)  # nobody writes a flag before everybody has cleared theirs
        return self._flags, self._side

    def _make_slot(self, num_bytes: int) -> Slot:
        return make_slot(self.group, self.device, num_bytes)


class Copied:
    """A hop by copy engine."""

    def __init__(
        self,
        device: torch.device,
        flags: Flags,
        sources: Sequence[int],
        number: int,
        copied: torch.cuda.Event,
        held: Sequence[Parcel],
        arriving: Parcel,
    ) -> None:
        self._device, self._flags, self._sources, self._number = device, flags, sources, number
        self._copied, self._held, self._arriving = copied, held, arriving

    def wait(self) -> Parcel:
        """What has arrived, with one user (the caller); only the streams wait."""
        stream = torch.cuda.current_stream(self._device)
        for source in self._sources:
            self._flags.wait_data(stream.cuda_stream, source, self._number)
        stream.wait_event(self._copied)
        for parcel in self._held:
            parcel.drop()
        return self._arriving
