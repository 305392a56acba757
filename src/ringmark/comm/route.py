"""The route of a block past every rank: an inner ring inside a node, an outer ring between nodes.

    route = Route(mesh, "blocks")             the double ring; Route(mesh.view(1, n), ...) is a flat one
    for stop in route.travel([(k, v)]):       posts the next hop, then hands out the stop
        stop.source, stop.tensors             whose block this is, and its tensors

The tensors of a stop are its reader's until it asks for the next stop; work on other streams must have been
joined by then. Which stop comes when is comm/plan.py; who may write which buffer is comm/parcel.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from ringmark.comm.mesh import OPEN_LANE, Axis, Lane, Mesh
from ringmark.comm.parcel import Parcel, Pool
from ringmark.comm.plan import Block, plan
from ringmark.comm.ring import Hop, Ring


@dataclass(frozen=True)
class Stop:
    """A block at this rank."""

    source: int  # the rank that owns it
    window: int
    piece: int
    turn: int
    first: bool  # of its piece
    last: bool  # of its piece
    tensors: tuple[torch.Tensor, ...]


class Route:
    """The rings of a mesh for one purpose: inner over each row of ranks, outer over each column."""

    def __init__(self, mesh: Mesh, purpose: str, lane: Lane = OPEN_LANE) -> None:
        self.mesh = mesh
        self.pool = Pool(mesh.device)
        self.inner = _ring(mesh, "intra", f"{purpose}_inner", self.pool, lane)
        self.outer = _ring(mesh, "inter", f"{purpose}_outer", self.pool, lane)

    @property
    def transport(self) -> str:
        """What moves the bytes: on the inner and the outer ring, where they differ."""
        used = [ring.transport for ring in (self.inner, self.outer) if ring.size > 1]
        return "+".join(dict.fromkeys(used)) or self.inner.mesh.backend

    def source(self, window: int, turn: int) -> int:
        """The rank whose block is here in this window, at this turn."""
        node = (self.mesh.node - window) % self.mesh.nodes
        return node * self.mesh.gpus + (self.mesh.gpu - turn) % self.mesh.gpus

    def travel(self, pieces: Sequence[Sequence[torch.Tensor]], homeward: bool = False) -> Iterator[Stop]:
        """Every rank's pieces past this rank, ours first (`homeward`: see comm/plan.py)."""
        here: dict[Block, Parcel] = {}
        hops: dict[Block, Hop] = {}
        own = [Parcel(tensors) for tensors in pieces]

        def arrived(block: Block) -> Parcel:
            if block not in here:
                here[block] = hops.pop(block).wait() if block in hops else own[block.piece]
            return here[block]

        for step in plan(self.outer.size, self.inner.size, len(pieces), homeward):
            arrived(step.block)
            for block in step.posts:
                parcel = here[block.origin] = self._sendable(arrived(block.origin))
                hops[block] = (self.inner if block.turn else self.outer).post(parcel)
            parcel, block = here[step.block], step.block
            source = self.source(block.window, block.turn)
            yield Stop(source, *block, step.first, step.last, parcel.tensors)
            # The reader is done: what it read is free as soon as no send of it is under way.
            here.pop(block).drop()
        self.pool.clear()

    def _sendable(self, parcel: Parcel) -> Parcel:
        """Our own pieces may be views of some heads: those are packed once, at their first hop."""
        if all(tensor.is_contiguous() for tensor in parcel.tensors):
            return parcel
        packed = self.pool.packed(parcel.tensors)
        parcel.drop()
        return packed


def _ring(mesh: Mesh, axis: Axis, purpose: str, pool: Pool, lane: Lane) -> Ring:
    """The ring that a lane asks for; copy engines where they reach."""
    members = mesh.members(axis)
    if lane.copy_engine and len(members) > 1 and all(mesh.same_node(member) for member in members):
        from ringmark.comm.copy_engine import CopyEngineRing

        return CopyEngineRing(mesh, axis, purpose, pool, lane)
    return Ring(mesh, axis, purpose, pool, lane)
