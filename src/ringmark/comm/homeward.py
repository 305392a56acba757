"""Homeward: sums that trail the blocks round the mesh and end at the rank that owns them.

Each rank adds its contribution to what has arrived from the previous one and posts it on; the sum for a block
always goes where the block itself goes next. What a rank computes for its own block never travels:

    own pair         stays                                    (window 0, turn 0)
    own window       turns 1 .. I-1, kept one gpu before home           I - 2 inner hops
    other windows    turns 0 .. I-1, then on to the next node, where    I - 1 inner hops, 1 outer hop each
                     the next window's sum is added to it
    at the end       the outer sum meets the kept one and goes home     1 inner hop

A mesh of J x I needs J (I - 1) inner and J - 1 outer hops: as many as the blocks themselves, so every hop can
hide under a computation. (One more of each is needed where the own contribution travels too.)

Sums of two or more are float32 wherever they lie. `wire` says what the hops carry of them: 'float32', the
model's dtype ('native'), or 'auto': float32 inside a node, where links are fast, and the model's dtype
between nodes, where it is rounded once for each node. What a single rank contributed is in the model's dtype
already: it waits, and makes its first hop, as the kernel returned it.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ringmark.comm.parcel import Parcel, signature
from ringmark.comm.ring import Hop
from ringmark.comm.route import Route, Stop
from ringmark.kernels.merge import add_, wide

WIRES = ("auto", "native", "float32")
ALL = slice(None)


def wire_dtypes(native: torch.dtype, wire: str) -> tuple[torch.dtype, torch.dtype]:
    """What inner and outer hops carry."""
    if wire not in WIRES:
        raise ValueError(f"wire is {wire!r}: choose one of {', '.join(WIRES)}")
    return native if wire == "native" else wide(native), wide(native) if wire == "float32" else native


class Homeward:
    """Brings home sums for every piece, each into its view of the results."""

    def __init__(self, route: Route, results: Sequence[Sequence[torch.Tensor]], wire: str = "auto") -> None:
        """`results[piece]`: the views (B, S, H of the piece, D) that the finished sums are written into."""
        native = results[0][0].dtype
        self.route, self.results = route, results
        self.wide = wide(native)
        self.inner_dtype, self.outer_dtype = wire_dtypes(native, wire)
        self._own: dict[int, Sequence[torch.Tensor]] = {}  # the own pair's contribution
        self._kept: dict[int, Parcel] = {}  # the own window's, one gpu before home
        self._trailing: dict[int, Hop] = {}  # this window's, behind the block
        self._between: dict[int, Hop] = {}  # the earlier windows', between nodes
        self._last: dict[int, Hop] = {}  # everything but the own pair's, on its last hop

    def add(self, stop: Stop, rows: slice = ALL, parts: Sequence[torch.Tensor] | None = None) -> None:
        """This rank's contribution at a stop: `parts` for `rows` of the block, or None for nothing."""
        if stop.window == 0 and stop.turn == 0:
            assert parts is not None
            assert parts[0].shape == self.results[stop.piece][0].shape, "the own pair covers every row"
            self._own[stop.piece] = parts
        else:
            self._pass_on(stop, rows, parts)
        for piece in [piece for piece in self._last if piece != stop.piece]:
            self._settle(piece)  # its last hop has had this stop's computation to hide under

    def finish(self) -> None:
        """After the last stop: wait for what is still under way."""
        for piece, hop in list(self._between.items()):
            arrived, kept = hop.wait(), self._kept.pop(piece, None)
            if kept is None:
                self._post_last(piece, arrived)
                continue
            total = self._added(kept, arrived.tensors, self.inner_dtype)
            arrived.drop()
            self._post_last(piece, total)
        self._between.clear()
        for piece in list(self._own):
            self._settle(piece)
        self.route.pool.clear()

    def _pass_on(self, stop: Stop, rows: slice, parts: Sequence[torch.Tensor] | None) -> None:
        begins = stop.turn == (1 if stop.window == 0 else 0)
        if begins:
            total = self._start(stop.piece, rows, parts)
        else:
            arrived = self._trailing.pop(stop.piece).wait()
            total = self._added(arrived, parts, self.inner_dtype, rows)
        if stop.turn < self.route.inner.size - 1:
            self._trailing[stop.piece] = self.route.inner.post(total)
            total.drop()
        else:
            self._end_window(stop, total)

    def _end_window(self, stop: Stop, total: Parcel) -> None:
        """A window's sum, one gpu before home: on to the next node, or kept if this node is its home."""
        if stop.window == 0:
            if self.route.outer.size == 1:
                self._post_last(stop.piece, total)
            else:
                self._kept[stop.piece] = total
            return
        earlier = self._between.pop(stop.piece).wait() if stop.piece in self._between else None
        total = self._added(total, None if earlier is None else earlier.tensors, self.outer_dtype)
        if earlier is not None:
            earlier.drop()
        self._between[stop.piece] = self.route.outer.post(total)
        total.drop()

    def _post_last(self, piece: int, total: Parcel) -> None:
        self._last[piece] = self.route.inner.post(total)
        total.drop()

    def _settle(self, piece: int) -> None:
        """Round a finished piece into its results, in one pass."""
        own, hop = self._own.pop(piece), self._last.pop(piece, None)
        arrived = hop.wait() if hop is not None else None
        for index, (result, part) in enumerate(zip(self.results[piece], own)):
            if arrived is None:
                result.copy_(part)
            else:
                add_(arrived.tensors[index], part, into=result)
        if arrived is not None:
            arrived.drop()

    def _start(self, piece: int, rows: slice, parts: Sequence[torch.Tensor] | None) -> Parcel:
        """A new sum that holds `parts` in `rows`, and zeros elsewhere."""
        kind = signature(self.results[piece])
        if parts is not None and signature(parts) == kind and all(part.is_contiguous() for part in parts):
            return Parcel(parts)
        total = self.route.pool.take(kind)
        for index, buffer in enumerate(total.tensors):
            begin, end, _ = (slice(0, 0) if parts is None else rows).indices(buffer.shape[1])
            buffer[:, :begin].zero_()
            buffer[:, end:].zero_()
            if parts is not None:
                buffer[:, rows].copy_(parts[index])
        return total

    def _added(
        self,
        total: Parcel,
        parts: Sequence[torch.Tensor] | None,
        dtype: torch.dtype,
        rows: slice = ALL,
    ) -> Parcel:
        """`total` with `parts` added to its `rows`, as `dtype`: in place if that is what it is."""
        if signature(total.tensors, dtype) == signature(total.tensors):
            into = total.hold()
        else:
            into = self.route.pool.take(signature(total.tensors, dtype))
        for index, (buffer, target) in enumerate(zip(total.tensors, into.tensors)):
            begin, end, _ = (slice(0, 0) if parts is None else rows).indices(buffer.shape[1])
            if parts is not None:
                add_(buffer[:, rows], parts[index], into=target[:, rows])
            if target is not buffer:
                target[:, :begin].copy_(buffer[:, :begin])
                target[:, end:].copy_(buffer[:, end:])
        total.drop()
        return into
