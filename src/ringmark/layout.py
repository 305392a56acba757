"""Which tokens a rank owns: three permutations of the sequence, and their inverses.

    4 ranks, 8 blocks or tokens; the digit is the owner

    contiguous   0 0 1 1 2 2 3 3     rank r owns the r-th part
    zigzag       0 1 2 3 3 2 1 0     2N half-blocks; rank r owns r and 2N-1-r
    striped      0 1 2 3 0 1 2 3     token t belongs to rank t mod N

A layout is pure: `tokens(layout, seqlen_global, rank, world_size)` are the global positions of a rank's
rows, in the order in which it holds them. Everything else follows from that.
"""

from __future__ import annotations

from typing import Literal

import torch

LayoutName = Literal["contiguous", "zigzag", "striped"]
LAYOUTS: tuple[LayoutName, ...] = ("contiguous", "zigzag", "striped")


def divisor(layout: str, world_size: int) -> int:
    """The number that must divide seqlen_global so that every rank gets its equal part."""
    return 2 * world_size if layout == "zigzag" else world_size


def reason_not(layout: str, seqlen_global: int, world_size: int) -> str | None:
    """Why a sequence cannot be dealt out so, or None."""
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
    seqlen_local = seqlen_global // world_size
    if layout == "contiguous":
        return torch.arange(rank * seqlen_local, (rank + 1) * seqlen_local)
    if layout == "striped":
        return torch.arange(rank, seqlen_global, world_size)
    if layout == "zigzag":
        half, mirror = seqlen_local // 2, 2 * world_size - 1 - rank
        return torch.cat([torch.arange(b * half, (b + 1) * half) for b in (rank, mirror)])
    raise ValueError(f"no layout named {layout!r}: {', '.join(LAYOUTS)}")


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
