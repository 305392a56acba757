"""Homeward: sums that follow the blocks round the mesh and end at the rank that owns them.

Inside a node every GPU is as near as the next, so a contribution goes straight to the owner's column, as the
kernel returned it, and only the rows that it has; it is added there in float32 (class Straight):

    own window       turns 1 .. I-1 straight to the owner              I - 1 inner hops
    other windows    turns 1 .. I-1 straight to the owner's column,    I - 1 inner hops
                     the sum of the window on to the next node         1 outer hop

A flat ring that crosses nodes passes its sums on from rank to rank as it does its blocks (class Trailing),
since only the links between neighbours are what it wants to load:

    turns 1 .. N-1 behind the block, then home                         N - 1 hops

Either way there are as many hops as the blocks make, so every one can hide under a computation. What a rank
computes for its own block never travels.

Sums of two or more are float32 wherever they lie. `wire` says what a hop carries of them: 'float32', the
model's dtype ('native'), or 'auto': float32 along a flat ring, and the model's dtype from node to node of a
mesh, where a sum is rounded once for each node. A contribution that goes straight is no sum yet.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import repeat

import torch

from ringmark.comm.parcel import Parcel, Signature, rows_of, signature
from ringmark.comm.ring import Delivery, Hop
from ringmark.comm.route import Covers, Route, Stop
from ringmark.kernels.merge import ALL, add_, wide
from ringmark.kernels.running import Running, place, put

WIRES = ("auto", "native", "float32")


def wire_dtypes(native: torch.dtype, wire: str) -> tuple[torch.dtype, torch.dtype]:
    """What hops carry of a sum: along a flat ring, and from node to node of a mesh."""
    if wire not in WIRES:
        raise ValueError(f"wire is {wire!r}: choose one of {', '.join(WIRES)}")
    return native if wire == "native" else wide(native), wide(native) if wire == "float32" else native


def carried(native: torch.dtype, wire: str, straight: bool) -> tuple[torch.dtype, torch.dtype]:
    """What inner and outer hops carry: contributions as they are where those go straight, else sums."""
    along, between = wire_dtypes(native, wire)
    return native if straight else along, between


def homeward(
    route: Route, results: Sequence[Sequence[torch.Tensor]], wire: str, covers: Covers
) -> Straight | Trailing:
    """Brings home sums for every piece.

    `results[piece]`: the views (B, S, H of the piece, D) that the finished sums are written into;
    `covers(owner, contributor)`: the rows of the owner's block that a rank contributes to, or None.
    """
    if route.outer.size == 1 and not route.inner.within_a_node:
        return Trailing(route, results, wire)
    return Straight(route, results, wire, covers)


class Straight:
    """Contributions that go to the owner's column at once and are added there."""

    def __init__(
        self, route: Route, results: Sequence[Sequence[torch.Tensor]], wire: str, covers: Covers
    ) -> None:
        self.route, self.results, self.covers = route, results, covers
        self.outer_dtype = wire_dtypes(results[0][0].dtype, wire)[1]
        self._sums: dict[tuple[int, int], list[Running]] = {}  # of a window and a piece
        self._missing: dict[tuple[int, int], int] = {}  # contributions that a sum waits for
        self._under_way: list[tuple[Stop, int, Hop]] = []  # of one visit: the stop, a turn of it
        self._between: dict[int, Hop] = {}  # the earlier windows', between nodes

    def add(self, stop: Stop, rows: slice = ALL, parts: Sequence[torch.Tensor] | None = None) -> None:
        """This rank's contribution at a stop: `parts` for `rows` of the block, or None for nothing.

        For a party of blocks they are the rows of all of them, side by side.
        """
        if stop.own:
            self._contribute(stop, 1, [] if parts is None else [(parts, rows)], keep=True)
            self._receive()
            return
        if any(then.place != stop.place for then, _, _ in self._under_way):
            self._receive()  # these have had this stop's computation to hide under
        for index, turn in enumerate(stop.turns):
            share = slice(*stop.bounds[index : index + 2]) if len(stop.turns) > 1 else ALL
            parcel = Parcel([rows_of(part, share).contiguous() for part in parts or ()])
            arriving = self._arriving(stop, turn)
            room = signature(self.results[stop.piece])
            hop = self.route.inner.exchange([Delivery(-turn, parcel)], arriving, room)
            parcel.drop()
            self._under_way.append((stop, turn, hop))

    def finish(self) -> None:
        """After the last stop: wait for what is still under way."""
        self._receive()
        for piece, hop in list(self._between.items()):
            arrived = hop.wait()
            for running, part, result in zip(
                self._sums.pop((0, piece)), arrived.tensors, self.results[piece], strict=True
            ):
                running.add(part, ALL, into=result)
            arrived.drop()
        assert not self._sums, "a sum is still waiting for somebody"
        self.route.pool.clear()

    def _rows(self, stop: Stop, turn: int) -> slice | None:
        """The rows that arrive at a stop, of the block in this rank's column: sent from `turn` gpus on."""
        mesh = self.route.mesh
        contributor = mesh.rank_at(mesh.node, mesh.gpu + turn)
        return self.covers(self.route.source(stop.window, 0), contributor)

    def _arriving(self, stop: Stop, turn: int) -> Signature:
        rows = self._rows(stop, turn)
        if rows is None:
            return ()
        return signature([result[:, rows] for result in self.results[stop.piece]])

    def _receive(self) -> None:
        """Wait for all that is under way inside the node, which is of one visit, and add it."""
        under_way, self._under_way = self._under_way, []
        arrived = [hop.wait() for _, _, hop in under_way]
        if arrived:
            stop = under_way[0][0]
            rows = [self._rows(stop, turn) for _, turn, _ in under_way]
            given = [(parcel.tensors, met) for parcel, met in zip(arrived, rows) if met is not None]
            # A sum never keeps what arrived, not even its first part: buffers must come free on every rank at
            # the same point, whatever the rank's own rows are (comm/copies.py).
            self._contribute(stop, len(arrived), given, keep=False)
        for parcel in arrived:
            parcel.drop()

    def _contribute(
        self, stop: Stop, count: int, given: Sequence[tuple[Sequence[torch.Tensor], slice]], keep: bool
    ) -> None:
        """Add what `count` GPUs of this node have given for the block in our column, some of them nothing."""
        key, results = (stop.window, stop.piece), self.results[stop.piece]
        sums = self._sums.setdefault(key, [Running(result) for result in results])
        missing = self._missing[key] = self._missing.get(key, self.route.inner.size) - count
        home = self.route.outer.size == 1
        for index, running in enumerate(sums):
            parts = [(tensors[index], rows) for tensors, rows in given]
            running.add_all(parts, into=results[index] if home and not missing else None, keep=keep)
        if missing:
            return
        del self._missing[key]
        if home:
            del self._sums[key]
        elif stop.window:
            self._leave(stop)

    def _leave(self, stop: Stop) -> None:
        """A window's sum is complete, but the node is not its home: on to the next node."""
        key = (stop.window, stop.piece)
        earlier = self._between.pop(stop.piece).wait() if stop.piece in self._between else None
        leaving = self.route.pool.take(signature(self.results[stop.piece], self.outer_dtype))
        for index, running in enumerate(self._sums.pop(key)):
            part = earlier.tensors[index] if earlier is not None else None
            running.add(part, ALL, into=leaving.tensors[index])
        if earlier is not None:
            earlier.drop()
        self._between[stop.piece] = self.route.outer.post(leaving)
        leaving.drop()


class Trailing:
    """Sums that are passed on behind the blocks of a flat ring."""

    def __init__(self, route: Route, results: Sequence[Sequence[torch.Tensor]], wire: str) -> None:
        self.route, self.results = route, results
        self.dtype = wire_dtypes(results[0][0].dtype, wire)[0]
        self._own: dict[int, Sequence[torch.Tensor]] = {}  # the own pair's contribution
        self._under_way: dict[int, Hop] = {}  # everybody else's, behind the block
        self._last: dict[int, Hop] = {}  # the same, on its last hop

    def add(self, stop: Stop, rows: slice = ALL, parts: Sequence[torch.Tensor] | None = None) -> None:
        """This rank's contribution at a stop: `parts` for `rows` of the block, or None for nothing."""
        if stop.own:
            assert parts is not None
            assert parts[0].shape == self.results[stop.piece][0].shape, "the own pair covers every row"
            self._own[stop.piece] = parts
        else:
            begins, ends = stop.turns == (1,), stop.turns == (self.route.inner.size - 1,)
            total = self._start(stop.piece, rows, parts) if begins else self._added(stop.piece, rows, parts)
            if ends:
                self._post_last(stop.piece, total)
            else:
                self._under_way[stop.piece] = self.route.inner.post(total)
            total.drop()
        for piece in [piece for piece in self._last if piece != stop.piece]:
            self._settle(piece)  # its last hop has had this stop's computation to hide under

    def finish(self) -> None:
        """After the last stop: wait for what is still under way."""
        for piece in list(self._own):
            self._settle(piece)
        self.route.pool.clear()

    def _post_last(self, piece: int, total: Parcel) -> None:
        self._last[piece] = self.route.inner.post(total)

    def _settle(self, piece: int) -> None:
        """Round a finished piece into its results, in one pass."""
        arrived = self._last.pop(piece).wait()
        for result, own, others in zip(self.results[piece], self._own.pop(piece), arrived.tensors):
            add_(others, own, into=result)
        arrived.drop()

    def _start(self, piece: int, rows: slice, parts: Sequence[torch.Tensor] | None) -> Parcel:
        """A new sum: `parts` in `rows`, zeros elsewhere; what the kernel returned if that is all rows."""
        kind = signature(self.results[piece])
        if parts is not None and signature(parts) == kind and all(part.is_contiguous() for part in parts):
            return Parcel(parts)
        total = self.route.pool.take(kind)
        for part, buffer in zip(parts or repeat(None), total.tensors):
            place(part, rows, buffer)
        return total

    def _added(self, piece: int, rows: slice, parts: Sequence[torch.Tensor] | None) -> Parcel:
        """What has arrived with `parts` added: in place, or as a wider sum if it was a single part so far."""
        arrived = self._under_way.pop(piece).wait()
        kind = signature(arrived.tensors, self.dtype)
        total = arrived.hold() if signature(arrived.tensors) == kind else self.route.pool.take(kind)
        for before, part, after in zip(arrived.tensors, parts or repeat(None), total.tensors):
            put(before, part, rows, after)
        arrived.drop()
        return total
