"""The route of a block past every rank: an inner ring inside a node, an outer ring between nodes.

    route = Route(mesh, "blocks")             the double ring; Route(mesh.view(1, n), ...) is a flat one
    for stop in route.travel([(k, v)]):       posts the next hop, then hands out the stop
        stop.source, stop.met(rows)           whose block this is, and the rows of its tensors that meet ours

Inside a node a block may be passed on from GPU to GPU, or every GPU fetches the rows that it meets straight
from the block's column, which sends less: under a causal mask half of the ranks need half of a block.

The tensors of a stop are its reader's until it asks for the next stop; work on other streams must have been
joined by then. Which stop comes when is comm/plan.py; who may write which buffer is comm/parcel.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from ringmark.comm.mesh import OPEN_LANE, Axis, Lane, Mesh
from ringmark.comm.parcel import Parcel, Pool, signature
from ringmark.comm.plan import Block, plan
from ringmark.comm.ring import Hop, Ring

# (owner, other rank) -> the rows of the owner's block that the other rank has to do with, or None.
Covers = Callable[[int, int], slice | None]


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
    cut: bool = False  # whether the tensors are the rows that meet, and no others

    def met(self, rows: slice) -> tuple[torch.Tensor, ...]:
        """The rows that meet, of every tensor."""
        return self.tensors if self.cut else tuple(_rows(tensor, rows) for tensor in self.tensors)


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
        return self.mesh.rank_at(self.mesh.node - window, self.mesh.gpu - turn)

    def travel(
        self,
        pieces: Sequence[Sequence[torch.Tensor]],
        homeward: bool = False,
        fetched: Covers | None = None,
    ) -> Iterator[Stop]:
        """Every rank's pieces past this rank, ours first (`homeward`: see comm/plan.py).

        `fetched`: the rows of an owner's block that a rank meets, which it then fetches straight, where the
        inner ring lies inside a node; a stop that meets nothing has no tensors.
        """
        straight = fetched is not None and self.inner.within_a_node
        here: dict[Block, Parcel] = {}
        hops: dict[Block, Hop] = {}
        columns: dict[Block, Parcel] = {}  # what the other GPUs of the node fetch from us
        own = [Parcel(tensors) for tensors in pieces]

        def arrived(block: Block) -> Parcel:
            if block not in here:
                here[block] = hops.pop(block).wait() if block in hops else own[block.piece]
            return here[block]

        def sendable(block: Block) -> Parcel:
            here[block] = self._sendable(arrived(block))
            return here[block]

        for step in plan(self.outer.size, self.inner.size, len(pieces), homeward):
            arrived(step.block)
            for block in step.posts:
                if block.turn and straight:
                    assert fetched is not None
                    column = block._replace(turn=0)
                    if block.turn == 1:
                        columns[column] = sendable(column).hold()
                    hops[block] = self._fetch(block, columns[column], fetched)
                    if block.turn == self.inner.size - 1:
                        columns.pop(column).drop()
                else:
                    hops[block] = (self.inner if block.turn else self.outer).post(sendable(block.origin))
            parcel, block = here[step.block], step.block
            cut = straight and block.turn > 0
            source = self.source(block.window, block.turn)
            yield Stop(source, *block, step.first, step.last, parcel.tensors, cut)
            # The reader is done: what it read is free as soon as no send of it is under way.
            here.pop(block).drop()
        self.pool.clear()

    def _fetch(self, block: Block, column: Parcel, fetched: Covers) -> Hop:
        """Send the column's block to the GPU `turn` on, receive from as far behind: the rows that meet."""
        mesh, turn = self.mesh, block.turn
        leaving = fetched(self.source(block.window, 0), mesh.rank_at(mesh.node, mesh.gpu + turn))
        arriving = fetched(self.source(block.window, turn), mesh.rank)
        sent = [] if leaving is None else [_rows(tensor, leaving).contiguous() for tensor in column.tensors]
        kinds = [] if arriving is None else [_rows(tensor, arriving) for tensor in column.tensors]
        parcel = Parcel(sent)
        # The rows may lie in the column's own buffers: those stay until the hop has been waited for.
        hop = _Held(self.inner.exchange(parcel, signature(kinds), turn, signature(column.tensors)), column)
        parcel.drop()
        return hop

    def _sendable(self, parcel: Parcel) -> Parcel:
        """Our own pieces may be views of some heads: those are packed once, at their first hop."""
        if all(tensor.is_contiguous() for tensor in parcel.tensors):
            return parcel
        packed = self.pool.packed(parcel.tensors)
        parcel.drop()
        return packed


class _Held:
    """A hop of a part of a parcel, which is held meanwhile."""

    def __init__(self, hop: Hop, whole: Parcel) -> None:
        self._hop, self._whole = hop, whole.hold()

    def wait(self) -> Parcel:
        arrived = self._hop.wait()
        self._whole.drop()
        return arrived


def _rows(tensor: torch.Tensor, rows: slice) -> torch.Tensor:
    """Some rows of a (B, S, H, D) tensor, or of one number a row and head, (B, H, S)."""
    return tensor[:, rows] if tensor.dim() == 4 else tensor[:, :, rows]


def _ring(mesh: Mesh, axis: Axis, purpose: str, pool: Pool, lane: Lane) -> Ring:
    """The ring that a lane asks for; copy engines where they reach."""
    members = mesh.members(axis)
    if lane.copy_engine and len(members) > 1 and mesh.one_node(members):
        from ringmark.comm.copy_engine import CopyEngineRing

        return CopyEngineRing(mesh, axis, purpose, pool, lane)
    return Ring(mesh, axis, purpose, pool, lane)
