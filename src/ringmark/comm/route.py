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
        visits = visits_of(self.inner.size, fetched.abreast if fetched else 1)
        blocks = _Blocks(self, pieces, visits, fetched)
        for step in plan(self.outer.size, len(visits), len(pieces), homeward):
            blocks.arrived(step.block)
            posts = [(block, blocks.leaving(block)) for block in step.posts]
            late = [post for post in posts if self.ring_of(post[0]).posts_late]
            mark = self.ring_of(late[0][0]).mark() if late else None
            for post in posts:
                if post not in late:
                    blocks.send(*post)
            block, turns = step.block, visits[step.block.visit]
            sources = tuple(self.source(block.window, turn) for turn in turns)
            bounds: tuple[int, ...] = ()
            if block.visit and fetched:
                bounds = self.bounds(block.window, turns, fetched, self.mesh.gpu, pieces[block.piece][0])
            arrived = blocks.arrived(block).tensors
            yield Stop(sources, block, turns, step.first, step.last, arrived, bounds)
            # The reader's kernel is on its way before the host takes its time over these.
            for post in late:
                blocks.send(*post, mark)
            blocks.done(step.block)
        self.pool.clear()

    def ring_of(self, block: Block) -> Ring:
        """The ring whose hop brings a block."""
        return self.inner if block.visit else self.outer

    def fetch(
        self, window: int, turns: tuple[int, ...], column: Parcel, fetched: Fetched, as_of: object
    ) -> Hop:
        """Send the column's block to the GPUs `turns` on, receive from as far behind: the rows that meet."""
        mesh, like = self.mesh, column.tensors[0]
        bounds = self.bounds(window, turns, fetched, mesh.gpu, like)
        deliveries = []
        for index, turn in enumerate(turns):
            gpu = (mesh.gpu + turn) % mesh.gpus
            leaving = fetched.covers(self.source(window, 0), mesh.rank_at(mesh.node, gpu))
            sent = [rows_of(tensor, leaving) for tensor in column.tensors] if leaving else []
            if not all(map(self.inner.sends, sent)):
                sent, as_of = [rows.contiguous() for rows in sent], None
            there = self.bounds(window, turns, fetched, gpu, like)[index]
            begin, end = bounds[index : index + 2]
            # The rows may lie in the column's own buffers: those stay until the hop has been waited for.
            column.hold()
            parcel = Parcel(sent, lambda _: column.drop())
            deliveries.append(Delivery(turn, parcel, there, slice(begin, end) if begin < end else None))
        arriving = _with_rows(column.tensors, bounds[-1]) if bounds[-1] else ()
        room = _with_rows(column.tensors, len(turns) * like.shape[1])
        hop = self.inner.exchange(deliveries, arriving, room, as_of)
        for delivery in deliveries:
            delivery.parcel.drop()
        return hop

    def bounds(
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


class _Blocks:
    """The blocks of one travel: those that are here, those under way, and those that others fetch from us."""

    def __init__(
        self,
        route: Route,
        pieces: Sequence[Sequence[torch.Tensor]],
        visits: Sequence[tuple[int, ...]],
        fetched: Fetched | None,
    ) -> None:
        self._route, self._visits, self._fetched = route, visits, fetched
        self._own = [Parcel(tensors) for tensors in pieces]
        self._here: dict[Block, Parcel] = {}
        self._hops: dict[Block, Hop] = {}
        self._columns: dict[Block, Parcel] = {}  # what the other GPUs of the node fetch

    def arrived(self, block: Block) -> Parcel:
        """A block that is needed now: waited for, or our own."""
        if block not in self._here:
            hop = self._hops.pop(block, None)
            self._here[block] = hop.wait() if hop else self._own[block.piece]
        return self._here[block]

    def leaving(self, block: Block) -> Parcel:
        """What has to be sent on so that this block comes here, in a form that can be sent."""
        if not (block.visit and self._fetched):
            return self._sendable(block.origin, self._route.ring_of(block))
        column = block._replace(visit=0)
        if block.visit == 1:
            self._columns[column] = self._sendable(column, self._route.inner).hold()
        return self._columns[column]

    def send(self, block: Block, parcel: Parcel, as_of: object = None) -> None:
        """Post the hop that brings a block."""
        if not (block.visit and self._fetched):
            self._hops[block] = self._route.ring_of(block).post(parcel, as_of)
            return
        turns = self._visits[block.visit]
        self._hops[block] = self._route.fetch(block.window, turns, parcel, self._fetched, as_of)
        if block.visit == len(self._visits) - 1:
            self._columns.pop(block._replace(visit=0)).drop()

    def done(self, block: Block) -> None:
        """Its reader is: what it read is free as soon as no send of it is under way."""
        self._here.pop(block).drop()

    def _sendable(self, block: Block, ring: Ring) -> Parcel:
        """Our own pieces may be views of some heads: packed once, if the ring cannot send them so."""
        lying = self.arrived(block)
        if not all(map(ring.sends, lying.tensors)):
            self._here[block] = self._route.pool.packed(lying.tensors, ring.sends)
            lying.drop()
        return self._here[block]


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
    if mesh.by_copy_engine(axis, lane):
        from ringmark.comm.copy_engine import CopyEngineRing

        return CopyEngineRing(mesh, axis, purpose, pool, lane)
    return Ring(mesh, axis, purpose, pool, lane)
