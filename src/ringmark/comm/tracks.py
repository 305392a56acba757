"""Tracks: the pieces of a block go round on two ways at once, so that one computes while the other does not.

    one track     kernel | add, pack, wait | kernel | add, pack, wait | ...
    two tracks    kernel           | add ..| kernel           | add ..|
                         | kernel          |       | kernel           |

A kernel's last blocks leave multiprocessors idle, sums take memory's time and none of the tensor cores', a
hop that is late is waited for: on a second track with pieces of its own all of that runs under a kernel.
Tracks share nothing: each has its communicators, its buffers and, on a GPU, its stream, so that whatever is
safe on one stream is safe here. The price is smaller kernels and two pieces' buffers at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TypeVar

import torch

from ringmark.comm.mesh import Lane, Mesh
from ringmark.comm.route import Route

Piece = TypeVar("Piece")


@dataclass(frozen=True)
class Track:
    """One way round: for the blocks, and for the sums that go home."""

    blocks: Route
    sums: Route
    stream: torch.cuda.Stream | None  # None: the caller's

    def on(self) -> AbstractContextManager[object]:
        """Work enqueued in here is this track's."""
        return torch.cuda.stream(self.stream) if self.stream is not None else nullcontext()


class Tracks:
    """The tracks of a mesh, made at their first use."""

    def __init__(self, mesh: Mesh, lane: Lane) -> None:
        self.mesh, self.lane = mesh, lane
        self._made: list[Track] = []
        self._make()

    @property
    def first(self) -> Track:
        return self._made[0]

    def weave(
        self, count: int, pieces: Sequence[Piece], walk: Callable[[Track, list[Piece]], Iterator[None]]
    ) -> None:
        """Deal the pieces to `count` tracks and walk them all, a stop of one after a stop of the other.

        `walk(track, pieces)` yields after each stop. Every rank does this in the same order, so no rank waits
        on one track for a hop that another has yet to post.
        """
        while len(self._made) < count:
            self._make()
        tracks = self._made[:count]
        for track in tracks:
            if track.stream is not None:
                track.stream.wait_stream(torch.cuda.current_stream())
        walking = [(track, walk(track, list(pieces[i::count]))) for i, track in enumerate(tracks)]
        while walking:
            walking = [(track, steps) for track, steps in walking if _advance(track, steps)]
        for track in tracks:
            if track.stream is not None:
                torch.cuda.current_stream().wait_stream(track.stream)

    def _make(self) -> None:
        number = len(self._made)
        stream: torch.cuda.Stream | None = None
        if number and self.mesh.device.type == "cuda":
            stream = torch.cuda.Stream(self.mesh.device)  # type: ignore[no-untyped-call]
        blocks, sums = (f"{purpose}_{number}" for purpose in ("blocks", "sums"))
        # The blocks and the sums behind them travel at the same time: a communicator for each.
        self._made.append(
            Track(Route(self.mesh, blocks, self.lane), Route(self.mesh, sums, self.lane), stream)
        )


def _advance(track: Track, steps: Iterator[None]) -> bool:
    """One more stop, or False where there is none."""
    with track.on():
        return next(steps, steps) is None
