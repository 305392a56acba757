"""A ring on copy engines: a parcel is written straight into another GPU's memory (comm/copies.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ringmark.comm import driver
from ringmark.comm.copies import Copies, Leaving
from ringmark.comm.driver import Place
from ringmark.comm.mesh import OPEN_LANE, Axis, Lane, Mesh
from ringmark.comm.parcel import Pool, Signature, signature
from ringmark.comm.ring import Delivery, Hop, Ring
from ringmark.comm.slots import landing


class CopyEngineRing(Ring):
    """The ring over one axis inside a node, written by copy engines."""

    posts_late = True

    def __init__(self, mesh: Mesh, axis: Axis, purpose: str, pool: Pool, lane: Lane = OPEN_LANE) -> None:
        super().__init__(mesh, axis, purpose, pool, lane)
        self.copies = Copies(self.group, mesh.device)

    @property
    def transport(self) -> str:
        return "copy_engine"

    def sends(self, tensor: torch.Tensor) -> bool:
        return driver.has_whole_rows(tensor)

    def mark(self) -> object:
        return torch.cuda.current_stream(self.mesh.device).record_event()

    def _exchange(
        self, deliveries: Sequence[Delivery], arriving: Signature, room: Signature, as_of: Any
    ) -> Hop:
        received = self.copies.slots.take(arriving, room)
        leaving = []
        for steps, parcel, there, _ in deliveries:
            target = self.place(steps)
            memory = received.slot.addresses[target]
            places = landing(signature(parcel.tensors), room, there)
            tensors = [(tensor, Place(memory + place)) for tensor, place in zip(parcel.tensors, places)]
            leaving.append(Leaving(target, tensors))
        sources = [self.place(-delivery.steps) for delivery in deliveries]
        held = [delivery.parcel.hold() for delivery in deliveries]
        return self.copies.post(leaving, sources, received, held, as_of)
