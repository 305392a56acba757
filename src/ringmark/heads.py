"""Groups of heads: the pieces into which a block is cut on its way round.

Attention treats heads one by one, so a block may travel group by group. While a group is under way only its
share of the travelling buffers, float32 sums and scratch is needed: memory beyond the inputs falls with the
number of groups. Between nodes, the next window starts when the first group has arrived instead of the last.
The price is smaller kernels.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

# Two pieces of this size are under way at a time, one on each track. Larger ones take more memory and
# leave more to wait for at the end; smaller ones are kernels too short for a GPU.
PIECE_BYTES = 64 << 20
# Where several blocks are met in one call of a kernel it is large enough with smaller pieces of each.
PIECE_BYTES_ABREAST = 32 << 20
# A second track pays where kernels take longer than the host needs to launch what goes with them.
PIECE_BYTES_FOR_TWO_TRACKS = 32 << 20
# Between nodes a window must not wait for a whole block: this many pieces, if they are not too small.
PIECES_BETWEEN_NODES = 4
PIECE_BYTES_BETWEEN_NODES = 10 << 20


class HeadGroup(NamedTuple):
    """Some query heads and the kv heads that they use."""

    q: slice
    kv: slice


def head_groups(num_heads_q: int, num_heads_kv: int, count: int) -> list[HeadGroup]:
    """The heads cut into `count` equal groups."""
    if num_heads_kv % count:
        raise ValueError(f"{count} head groups do not divide {num_heads_kv} kv heads")
    step_q, step_kv = num_heads_q // count, num_heads_kv // count
    return [
        HeadGroup(slice(i * step_q, (i + 1) * step_q), slice(i * step_kv, (i + 1) * step_kv))
        for i in range(count)
    ]


def plan_for(
    q: torch.Tensor, k: torch.Tensor, count: int, tracks: int, nodes: int, abreast: int = 1
) -> tuple[list[HeadGroup], int]:
    """The groups of q and k (B, S, H, D), and how many tracks they go on; 0 leaves either to their size."""
    num_heads_kv = k.shape[2]
    count = count or automatic(q.nbytes, num_heads_kv, nodes, tracks, abreast)
    if not tracks:
        large = q.nbytes // count * abreast >= PIECE_BYTES_FOR_TWO_TRACKS
        tracks = 2 if count % 2 == 0 and large else 1
    return head_groups(q.shape[2], num_heads_kv, count), min(tracks, count)


def automatic(block_bytes: int, num_heads_kv: int, nodes: int, tracks: int = 0, abreast: int = 1) -> int:
    """How many groups a block is cut into: the fewest that keep a piece within its size."""
    wanted = -(-block_bytes // (PIECE_BYTES_ABREAST if abreast > 1 else PIECE_BYTES))
    two = tracks == 2 or (not tracks and block_bytes * abreast >= 2 * PIECE_BYTES_FOR_TWO_TRACKS)
    if nodes > 1:
        wanted = max(wanted, min(PIECES_BETWEEN_NODES, block_bytes // PIECE_BYTES_BETWEEN_NODES))
    divisors = [count for count in range(1, num_heads_kv + 1) if num_heads_kv % count == 0]
    enough = [count for count in divisors if count >= wanted]
    even = [count for count in enough if count % 2 == 0]  # as many for each of two tracks
    return next(iter(even if two and even else enough), num_heads_kv)


def reason_not(count: int, num_heads_kv: int) -> str | None:
    """Why so many head groups cannot be, or None."""
    if count and num_heads_kv % count:
        return (
            f"head_groups {count} does not divide {num_heads_kv} kv heads: take a divisor, or 0 for automatic"
        )
    return None
