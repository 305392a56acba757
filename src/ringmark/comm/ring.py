"""A ring: post a parcel to the next member while one arrives from the previous; wait when it is needed.

    members   0 -> 1 -> 2 -> 3 -> 0          hop = ring.post(parcel)     sends on, receives from behind
                                             ... compute ...
                                             parcel = hop.wait()         what the previous member posted

A ring of one member gives back what it was given. Every byte sent is counted in the mesh's traffic. Inside a
node, where every member is as near as the next, parcels may also go several steps at once, and what arrives
from several members may lie side by side: `exchange`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
import torch.distributed as dist

from ringmark.comm.mesh import OPEN_LANE, Axis, Lane, Mesh
from ringmark.comm.parcel import Parcel, Pool, Signature, rows_of, signature
from ringmark.kernels.merge import ALL


class Hop(Protocol):
    """A parcel under way."""

    def wait(self) -> Parcel:
        """What has arrived, with one user (the caller). On CUDA only the streams wait, never the host."""


class Delivery(NamedTuple):
    """What goes to the member `steps` on, and where it lies there; and what comes from as far behind.

    A parcel of no tensors is not sent; `here` is None where nothing comes.
    """

    steps: int
    parcel: Parcel
    there: int = 0  # the first row of the target's arrival that is ours
    here: slice | None = ALL  # the rows of our arrival that come from behind


class Ring:
    """The ring over one axis of a mesh, with a communicator of its own for its purpose."""

    posts_late = False  # whether a hop can be posted after work that it shall not wait for

    def __init__(self, mesh: Mesh, axis: Axis, purpose: str, pool: Pool, lane: Lane = OPEN_LANE) -> None:
        self.mesh, self.pool = mesh, pool
        self.group = mesh.group(axis, purpose, lane)

    @property
    def size(self) -> int:
        return self.group.size

    @property
    def transport(self) -> str:
        """What moves the bytes."""
        return self.mesh.backend

    @property
    def within_a_node(self) -> bool:
        """Whether every member is as near as the next."""
        return self.mesh.one_node(self.group.members)

    def sends(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor can be sent as it lies; others have to be packed."""
        return tensor.is_contiguous()

    def place(self, steps: int) -> int:
        """The position of the member so many steps on, or back if it is negative."""
        return (self.group.position + steps) % self.size

    def mark(self) -> object:
        """Now, on this stream: a hop that is posted later may be `as_of` then, where the ring posts late."""
        return None

    def post(self, parcel: Parcel, as_of: object = None) -> Hop:
        """Send a parcel on and receive one of the same kind; its tensors must not change until the wait."""
        if self.size == 1:
            return _Stay(parcel.hold())
        kind = signature(parcel.tensors)
        return self.exchange([Delivery(1, parcel)], kind, kind, as_of)

    def exchange(
        self, deliveries: Sequence[Delivery], arriving: Signature, room: Signature, as_of: object = None
    ) -> Hop:
        """Send every delivery, and receive one parcel of kind `arriving` from as many members.

        Every member makes as many deliveries, over the same steps. `room`: a kind that is the same on every
        member and as large as anything that arrives here. `as_of`: the mark by which all that is sent was
        there, and all that is received into had been read.
        """
        for steps, parcel, _, _ in deliveries:
            target = self.group.members[self.place(steps)]
            self.mesh.traffic.count(parcel.num_bytes, same_node=self.mesh.same_node(target))
        return self._exchange(deliveries, arriving, room, as_of)

    def _exchange(
        self, deliveries: Sequence[Delivery], arriving: Signature, room: Signature, as_of: Any
    ) -> Hop:
        received = self.pool.take(arriving)
        group, members = self.group.process_group, self.group.members
        # All in one batch: NCCL runs it as one kernel, in which sends and receives cannot block each other.
        works = []
        for steps, parcel, _, here in deliveries:
            target, source = members[self.place(steps)], members[self.place(-steps)]
            works += [dist.P2POp(dist.isend, tensor, target, group) for tensor in parcel.tensors]
            if here is not None:
                rows = [rows_of(tensor, here) for tensor in received.tensors]
                works += [dist.P2POp(dist.irecv, tensor, source, group) for tensor in rows]
        leaving = [delivery.parcel.hold() for delivery in deliveries]
        return Exchange(dist.batch_isend_irecv(works) if works else [], leaving, received)


class _Stay:
    """The hop of a ring of one."""

    def __init__(self, parcel: Parcel) -> None:
        self._parcel = parcel

    def wait(self) -> Parcel:
        return self._parcel


class Exchange:
    """A hop through torch.distributed's sends and receives; with none it is there at once."""

    def __init__(self, works: list[Any], leaving: list[Parcel], arriving: Parcel) -> None:
        self._works, self._leaving, self._arriving = works, leaving, arriving

    def wait(self) -> Parcel:
        for work in self._works:
            work.wait()
        for parcel in self._leaving:
            parcel.drop()
        return self._arriving
