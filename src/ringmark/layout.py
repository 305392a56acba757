"""Which tokens a rank owns: three permutations of the sequence, and their inverses.

    4 ranks, 8 blocks or tokens; the digit is the owner

    contiguous   0 0 1 1 2 2 3 3     rank r owns the r-th part
    zigzag       0 1 2 3 3 2 1 0     2N half-blocks; rank r owns r and 2N-1-r
    striped      0 1 2 3 0 1 2 3     token t belongs to rank t mod N
    zigzag_by2   0 0 2 2 3 3 1 1     pairs of neighbours {0,1} {2,3}: zigzag over the pairs, each pair's rows
                                     (0 0 . . . . 1 1) dealt in turn to its members
    zigzag_across2   0 0 1 1 3 3 2 2     the same with pairs of ranks N/2 apart: {0,2} {1,3}

A layout is pure: `tokens(layout, seqlen_global, rank, world_size)` are the global positions of a rank's
rows, in the order in which it holds them. Everything else follows from that.
"""

from __future__ import annotations

import math
import re
from typing import Literal

import torch

from ringmark.errors import UserError, nearest

LayoutName = Literal["contiguous", "zigzag", "striped"]
LAYOUTS: tuple[LayoutName, ...] = ("contiguous", "zigzag", "striped")
_SHARED = re.compile(r"(contiguous|zigzag|striped)_(by|across)(\d+)\Z")


def shared(layout: str, sharers: int, world_size: int, neighbours: bool = True) -> str:
    """The layout over teams of `sharers` ranks, each team's rows dealt out in turn to its members: what an
    all-to-all inside the teams turns into `layout` over the teams. A team's members are neighbours, or the
    ranks that are world_size / sharers apart."""
    if sharers < 1 or world_size % sharers:
        raise UserError(f"teams of {sharers} do not divide {world_size} ranks: choose a divisor")
    if sharers == world_size:
        return "contiguous"
    if sharers == 1 or (layout == "contiguous" and neighbours):
        return layout
    return f"{layout}_{'by' if neighbours else 'across'}{sharers}"


def _split(layout: str) -> tuple[str, int, bool]:
    found = _SHARED.match(layout)
    return (found[1], int(found[3]), found[2] == "by") if found else (layout, 1, True)


def divisor(layout: str, world_size: int) -> int:
    """The number that must divide seqlen_global so that every rank gets its equal part."""
    kind, sharers, _ = _split(layout)
    return math.lcm(2 * (world_size // sharers), world_size) if kind == "zigzag" else world_size


def unknown(layout: object) -> str | None:
    """What to say of a word that is no layout's name, with the nearest that is, or None."""
    if isinstance(layout, str) and _split(layout)[0] in LAYOUTS:
        return None
    return f"there is no layout {layout!r}: {nearest(str(layout), LAYOUTS)}"


def reason_not(layout: str, seqlen_global: int, world_size: int) -> str | None:
    """Why a sequence cannot be dealt out so, or None."""
    if reason := unknown(layout):
        return reason
    must = divisor(layout, world_size)
    if seqlen_global % must:
        below, above = seqlen_global // must * must, (seqlen_global // must + 1) * must
        offer = f"{above}" if below == 0 else f"{below} or {above}"
        return (
            f"seqlen_global {seqlen_global} does not divide by {must}, as the {layout} layout over "
            f"{world_size} ranks needs: take {offer}"
        )
    return None


def tokens(layout: str, seqlen_global: int, rank: int, world_size: int) -> torch.Tensor:
    """Global positions of the rows of `rank`, in its own order (int64)."""
    reason = reason_not(layout, seqlen_global, world_size)
    if reason:
        raise ValueError(reason)
    kind, sharers, neighbours = _split(layout)
    if sharers > 1:
        teams = world_size // sharers
        team, place = divmod(rank, sharers) if neighbours else (rank % teams, rank // teams)
        return tokens(kind, seqlen_global, team, teams).view(sharers, -1)[place]
    seqlen_local = seqlen_global // world_size
    if layout == "contiguous":
        return torch.arange(rank * seqlen_local, (rank + 1) * seqlen_local)
    if layout == "striped":
        return torch.arange(rank, seqlen_global, world_size)
    half, mirror = seqlen_local // 2, 2 * world_size - 1 - rank  # zigzag
    return torch.cat([torch.arange(b * half, (b + 1) * half) for b in (rank, mirror)])


def permutation(layout: str, seqlen_global: int, world_size: int) -> torch.Tensor:
    """All ranks' tokens, rank after rank: position i of the sharded order holds global token p[i]."""
    return torch.cat([tokens(layout, seqlen_global, rank, world_size) for rank in range(world_size)])


def inverse(permuted: torch.Tensor) -> torch.Tensor:
    """The permutation that undoes another."""
    undo = torch.empty_like(permuted)
    undo[permuted] = torch.arange(permuted.numel())
    return undo


def shard(full: torch.Tensor, layout: str, rank: int, world_size: int, dim: int = 1) -> torch.Tensor:
    """The rows of `full` that `rank` owns."""
    index = tokens(layout, full.shape[dim], rank, world_size)
    return full.index_select(dim, index.to(full.device))
