"""A ring: post a parcel to the next member while one arrives from the previous; wait when it is needed.

    members   0 -> 1 -> 2 -> 3 -> 0          hop = ring.post(parcel)     sends on, receives from behind
                                             ... compute ...
                                             parcel = hop.wait()         what the previous member posted

A ring of one member gives back what it was given. Every byte sent is counted in the mesh's traffic.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch.distributed as dist

from ringmark.comm.mesh import OPEN_LANE, Axis, Lane, Mesh
from ringmark.comm.parcel import Parcel, Pool, signature


class Hop(Protocol):
    """A parcel under way."""

    def wait(self) -> Parcel:
        """What has arrived, with one user (the caller). On CUDA only the streams wait, never the host."""


class Ring:
    """The ring over one axis of a mesh, with a communicator of its own for its purpose."""

    def __init__(self, mesh: Mesh, axis: Axis, purpose: str, pool: Pool, lane: Lane = OPEN_LANE) -> None:
        self.mesh, self.pool = mesh, pool
        self.group = mesh.group(axis, purpose, lane)
        members, here = self.group.members, self.group.position
        self.next, self.previous = members[(here + 1) % len(members)], members[here - 1]

    @property
    def size(self) -> int:
        return self.group.size

    @property
    def transport(self) -> str:
        """What moves the bytes."""
        return self.mesh.backend

    def post(self, parcel: Parcel) -> Hop:
        """Send a parcel on and receive one of the same kind; its tensors must not change until the wait."""
        if self.size == 1:
            return _Stay(parcel.hold())
        self.mesh.traffic.count(parcel.num_bytes, same_node=self.mesh.same_node(self.next))
        return self._exchange(parcel)

    def _exchange(self, parcel: Parcel) -> Hop:
        arriving = self.pool.take(signature(parcel.tensors))
        group = self.group.process_group
        # All in one batch: NCCL runs it as one kernel, in which sends and receives cannot block each other.
        sends = [dist.P2POp(dist.isend, tensor, self.next, group) for tensor in parcel.tensors]
        receives = [dist.P2POp(dist.irecv, tensor, self.previous, group) for tensor in arriving.tensors]
        return _Exchange(dist.batch_isend_irecv(sends + receives), parcel.hold(), arriving)


class _Stay:
    """The hop of a ring of one."""

    def __init__(self, parcel: Parcel) -> None:
        self._parcel = parcel

    def wait(self) -> Parcel:
        return self._parcel


class _Exchange:
    """A hop through torch.distributed's send and receive."""

    def __init__(self, works: list[Any], leaving: Parcel, arriving: Parcel) -> None:
        self._works, self._leaving, self._arriving = works, leaving, arriving

    def wait(self) -> Parcel:
        for work in self._works:
            work.wait()
        self._leaving.drop()
        return self._arriving
