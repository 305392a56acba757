"""The order in which blocks visit a rank, as data: what is computed when, and what is posted before it.

A block is what some rank owns, cut into pieces (groups of heads). On a mesh of J nodes x I gpus, rank (j, g)
meets in window o (0..J-1) at visit i the block of rank (j - o, g - i), or several GPUs' blocks at once:

    window 0                     window 1                           I = 4, one piece
    visit 0 -> 1 -> 2 -> 3       visit 0 -> 1 -> 2 -> 3             -> inner hop, to the next gpu
          \\_______________________/                                 \\_ outer hop, to the next node

An inner hop is posted before the visit it hides under; the outer hop of a window at the window's start, one
for each piece, and each is waited for only when its piece is about to start. A flat ring is 1 node.

Homeward plans (backward, where sums end at the blocks' owners) keep the last piece of the own window for the
end, and its own pair for the very end: that hides the last hops of everything else.
"""

from __future__ import annotations

import functools
from typing import NamedTuple


class Block(NamedTuple):
    """The piece of what a rank meets in this window, at this visit; at visit 0 its own column's block."""

    window: int
    piece: int
    visit: int

    @property
    def origin(self) -> Block:
        """The block that the sender of the hop bringing this one holds under its own coordinates."""
        if self.visit:
            return Block(self.window, self.piece, self.visit - 1)
        assert self.window, "a rank's own block arrives from nowhere"
        return Block(self.window - 1, self.piece, 0)


class Step(NamedTuple):
    """One computation: with `block`, after posting the hops that will bring the blocks in `posts`."""

    block: Block
    posts: tuple[Block, ...]
    first: bool  # the first step of its piece
    last: bool  # the last step of its piece


def order(windows: int, visits: int, pieces: int, homeward: bool = False) -> list[Block]:
    """The blocks in the order in which they are computed."""
    units = [(window, piece) for window in range(windows) for piece in range(pieces)]
    if not homeward or pieces == 1:
        return [Block(window, piece, visit) for window, piece in units for visit in range(visits)]
    kept = (0, pieces - 1)
    blocks = [Block(*unit, visit) for unit in units if unit != kept for visit in range(visits)]
    return blocks + [Block(*kept, visit) for visit in [*range(1, visits), 0]]


@functools.cache
def plan(windows: int, visits: int, pieces: int, homeward: bool = False) -> tuple[Step, ...]:
    """Every step of one rank, in order; the same on all ranks."""
    blocks = order(windows, visits, pieces, homeward)
    place = {block: index for index, block in enumerate(blocks)}
    posts: list[list[Block]] = [[] for _ in blocks]
    for block in sorted(blocks, key=lambda block: (block.visit > 0, place[block])):
        if block.visit or block.window:
            posts[_posting_place(block, place)].append(block)
    by_piece = [[place[block] for block in blocks if block.piece == piece] for piece in range(pieces)]
    firsts, lasts = {min(places) for places in by_piece}, {max(places) for places in by_piece}
    return tuple(
        Step(block, tuple(posts[index]), index in firsts, index in lasts)
        for index, block in enumerate(blocks)
    )


def _posting_place(block: Block, place: dict[Block, int]) -> int:
    """The step before whose computation the hop that brings `block` is posted."""
    if block.visit == 0 and block.window == 1:
        return 0  # our own pieces are all there at the start: keep the slow link busy from then on
    # With the computation on its origin; one step ahead of itself where the own pair is kept for the end.
    return min(place[block.origin], place[block] - 1)
