r"""Which query rows of one rank meet which key rows of another: the block pairs of a layout.

    contiguous     zigzag         striped
    k 0 1 2 3      k 0 1 2 3      k 0 1 2 3      \ a causal square     / the same without its diagonal
    0 \            0 \ > > >      0 \ / / /      # all with all        (blank) nothing
    1 # \          1 ^ \ > >      1 \ \ / /      ^ all queries with the first half of the keys
    2 # # \        2 ^ ^ \ >      2 \ \ \ /      > the second half of the queries with all keys
    3 # # # \      3 ^ ^ ^ \      3 \ \ \ \

Pure functions of ranks and lengths: over all pairs of ranks, every causal pair of tokens is met exactly once.
"""

from __future__ import annotations

from typing import NamedTuple


class Meeting(NamedTuple):
    """The rows that meet; `causal`: as a square causal mask (query i sees keys 0..i), else all with all."""

    queries: slice
    keys: slice
    causal: bool


def meeting(layout: str, rank_q: int, rank_k: int, seqlen_local: int, causal: bool) -> Meeting | None:
    """What the queries of `rank_q` compute with the keys of `rank_k`, or None where they meet nothing."""
    every = slice(0, seqlen_local)
    if not causal:
        return Meeting(every, every, False)
    if rank_q == rank_k:  # positions grow along a rank's rows in every layout
        return Meeting(every, every, True)
    if layout == "contiguous":
        return Meeting(every, every, False) if rank_k < rank_q else None
    if layout == "zigzag":
        half = seqlen_local // 2
        if rank_k < rank_q:
            return Meeting(every, slice(0, half), False)
        return Meeting(slice(half, seqlen_local), every, False)
    if layout == "striped":
        if rank_k < rank_q:
            return Meeting(every, every, True)
        # Query i and key i of a later rank: the key comes after, so the diagonal is out. Shift by one row.
        return Meeting(slice(1, seqlen_local), slice(0, seqlen_local - 1), True) if seqlen_local > 1 else None
    raise ValueError(f"no layout named {layout!r}")
