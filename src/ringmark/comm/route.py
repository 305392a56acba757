"""The route of a block past every rank: an inner ring inside a node, an outer ring between nodes.

    route = Route(mesh, "blocks")             the double ring; Route(mesh.view(1, n), ...) is a flat one
    for stop in route.travel([(k, v)]):       posts the next hop, then hands out the stop
        stop.source, stop.met(rows)           whose block this is, and the rows of its tensors that meet ours

Inside a node a block may be passed on from GPU to GPU, or every GPU fetches the rows that it meets straight
from the block's column. That sends less, as under a causal mask half of the ranks need half of a block, and
several columns' rows may arrive side by side, to be met in one call of a kernel:

    passed on              own    -1     -2     -3        a stop for each rank
    fetched, 3 abreast     own    [-1 -2 -3]              one stop, of as many parties as are not alike

The tensors of a stop are its reader's until it asks for the next stop; work on other streams must have been
joined by then. Which stop comes when is comm/plan.py; who may write which buffer is comm/parcel.py.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, groupby, pairwise

import torch

from ringmark.comm.mesh import OPEN_LANE, Axis, Lane, Mesh
from ringmark.comm.parcel import Parcel, Pool, Signature, rows_of
from ringmark.comm.plan import Block, plan
from ringmark.comm.ring import Delivery, Hop, Ring

# (owner, other rank) -> the rows of the owner's block that the other rank has to do with, or None.
Covers = Callable[[int, int], slice | None]


@dataclass(frozen=True)
class Fetched:
    """Blocks are fetched straight: the rows of an owner's block that a rank meets, some blocks at a time."""

    covers: Covers
    abreast: int = 1


@dataclass(frozen=True)
class Stop:
    """A block at this rank, or blocks side by side."""

    sources: tuple[int, ...]  # the ranks that own them
    place: Block  # in the plan
    turns: tuple[int, ...]  # how many gpus back each of them is
    first: bool  # of its piece
    last: bool  # of its piece
    tensors: tuple[torch.Tensor, ...]
    bounds: tuple[int, ...] = ()  # where the rows of each begin and end, if only those that meet are here

    @property
    def source(self) -> int:
        """The owner of the block, or of the first of several that are alike."""
        return self.sources[0]

    @property
    def window(self) -> int:
        return self.place.window

    @property
    def piece(self) -> int:
        return self.place.piece

    @property
    def own(self) -> bool:
        """Whether the block is of this rank's column: of its own gpu, on this node or another."""
        return self.turns == (0,)

    def met(self, rows: slice) -> tuple[torch.Tensor, ...]:
        """The rows that meet, of every tensor."""
        return self.tensors if self.bounds else tuple(rows_of(tensor, rows) for tensor in self.tensors)

    def parties(self, kind: Callable[[int], object]) -> Iterator[Stop]:
        """The blocks in parties of neighbours whose sources are of one kind: a stop each."""
        if len(self.sources) == 1:
            yield self
            return
        begin = 0
        for _, party in groupby(self.sources, kind):
            end = begin + len(list(party))
            bounds = self.bounds[begin : end + 1]
            rows = slice(bounds[0], bounds[-1])
            yield replace(
                self,
                sources=self.sources[begin:end],
                turns=self.turns[begin:end],
                first=self.first and begin == 0,
                last=self.last and end == len(self.sources),
                tensors=tuple(rows_of(tensor, rows) for tensor in self.tensors),
                bounds=tuple(bound - bounds[0] for bound in bounds),
            )
            begin = end


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
        fetched: Fetched | None = None,
    ) -> Iterator[Stop]:
        """Every rank's pieces past this rank, ours first (`homeward`: see comm/plan.py).

        `fetched`: they are fetched straight, which an inner ring inside a node can. Tensors are (B, S, ...).
        """
        assert fetched is None or self.inner.within_a_node
        here: dict[Block, Parcel] = {}
        hops: dict[Block, Hop] = {}
        columns: dict[Block, Parcel] = {}  # what the other GPUs of the node fetch from us
        own = [Parcel(tensors) for tensors in pieces]
        visits = visits_of(self.inner.size, fetched.abreast if fetched else 1)

        def arrived(block: Block) -> Parcel:
            if block not in here:
                here[block] = hops.pop(block).wait() if block in hops else own[block.piece]
            return here[block]

        def sendable(block: Block, ring: Ring) -> Parcel:
            """Our own pieces may be views of some heads: packed once, if the ring cannot send them so."""
            lying = arrived(block)
            if not all(map(ring.sends, lying.tensors)):
                here[block] = self.pool.packed(lying.tensors, ring.sends)
                lying.drop()
            return here[block]

        for step in plan(self.outer.size, len(visits), len(pieces), homeward):
            arrived(step.block)
            for block in step.posts:
                if block.visit and fetched:
                    column = block._replace(visit=0)
                    if block.visit == 1:
                        columns[column] = sendable(column, self.inner).hold()
                    hops[block] = self._fetch(block.window, visits[block.visit], columns[column], fetched)
                    if block.visit == len(visits) - 1:
                        columns.pop(column).drop()
                else:
                    ring = self.inner if block.visit else self.outer
                    hops[block] = ring.post(sendable(block.origin, ring))
            block, turns = step.block, visits[step.block.visit]
            sources = tuple(self.source(block.window, turn) for turn in turns)
            bounds: tuple[int, ...] = ()
            if block.visit and fetched:
                bounds = self._bounds(block.window, turns, fetched, self.mesh.gpu, pieces[block.piece][0])
            yield Stop(sources, block, turns, step.first, step.last, here[block].tensors, bounds)
            # The reader is done: what it read is free as soon as no send of it is under way.
            here.pop(block).drop()
        self.pool.clear()

    def _fetch(self, window: int, turns: tuple[int, ...], column: Parcel, fetched: Fetched) -> Hop:
        """Send the column's block to the GPUs `turns` on, receive from as far behind: the rows that meet."""
        mesh, like = self.mesh, column.tensors[0]
        bounds = self._bounds(window, turns, fetched, mesh.gpu, like)
        deliveries = []
        for index, turn in enumerate(turns):
            gpu = (mesh.gpu + turn) % mesh.gpus
            leaving = fetched.covers(self.source(window, 0), mesh.rank_at(mesh.node, gpu))
            sent = [rows_of(tensor, leaving) for tensor in column.tensors] if leaving else []
            sent = [rows if self.inner.sends(rows) else rows.contiguous() for rows in sent]
            there = self._bounds(window, turns, fetched, gpu, like)[index]
            begin, end = bounds[index : index + 2]
            # The rows may lie in the column's own buffers: those stay until the hop has been waited for.
            column.hold()
            parcel = Parcel(sent, lambda _: column.drop())
            deliveries.append(Delivery(turn, parcel, there, slice(begin, end) if begin < end else None))
        arriving = _with_rows(column.tensors, bounds[-1]) if bounds[-1] else ()
        room = _with_rows(column.tensors, len(turns) * like.shape[1])
        hop = self.inner.exchange(deliveries, arriving, room)
        for delivery in deliveries:
            delivery.parcel.drop()
        return hop

    def _bounds(
        self, window: int, turns: tuple[int, ...], fetched: Fetched, gpu: int, like: torch.Tensor
    ) -> tuple[int, ...]:
        """Where the rows that a GPU of this node fetches at these turns begin and end."""
        mesh = self.mesh
        met = [
            fetched.covers(mesh.rank_at(mesh.node - window, gpu - turn), mesh.rank_at(mesh.node, gpu))
            for turn in turns
        ]
        lengths = [len(range(*rows.indices(like.shape[1]))) if rows else 0 for rows in met]
        return tuple(accumulate(lengths, initial=0))


def visits_of(gpus: int, abreast: int) -> list[tuple[int, ...]]:
    """The turns of a window by visit: the own column alone, then the others in even parties."""
    others = range(1, gpus)
    count = -(-len(others) // abreast)
    cuts = [1 + len(others) * index // count for index in range(count + 1)] if count else []
    return [(0,), *(tuple(range(begin, end)) for begin, end in pairwise(cuts))]


def _with_rows(tensors: Sequence[torch.Tensor], rows: int) -> Signature:
    """The kind of parcel that holds so many rows of such tensors."""
    return tuple(((tensor.shape[0], rows, *tensor.shape[2:]), tensor.dtype) for tensor in tensors)


def _ring(mesh: Mesh, axis: Axis, purpose: str, pool: Pool, lane: Lane) -> Ring:
    """The ring that a lane asks for; copy engines where they reach."""
    members = mesh.members(axis)
    if lane.copy_engine and len(members) > 1 and mesh.one_node(members):
        from ringmark.comm.copy_engine import CopyEngineRing

        return CopyEngineRing(mesh, axis, purpose, pool, lane)
    return Ring(mesh, axis, purpose, pool, lane)
