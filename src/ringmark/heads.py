"""Groups of heads: the pieces into which a block is cut on its way round.

Attention treats heads one by one, so a block may travel group by group. While a group is under way only its
share of the travelling buffers, float32 sums and scratch is needed: memory beyond the inputs falls with the
number of groups. Between nodes, the next window starts when the first group has arrived instead of the last.
The price is smaller kernels.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

# A piece of this size keeps a kernel busy for milliseconds: cutting on costs nothing that can be measured.
PIECE_BYTES = 160 << 20
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


def groups_for(q: torch.Tensor, k: torch.Tensor, count: int, nodes: int) -> list[HeadGroup]:
    """The groups of a rank's q and k (B, S, H, D): `count`, or the count that suits their size if it is 0."""
    num_heads_kv = k.shape[2]
    return head_groups(q.shape[2], num_heads_kv, count or automatic(q.nbytes, num_heads_kv, nodes))


def automatic(block_bytes: int, num_heads_kv: int, nodes: int) -> int:
    """How many groups a block is cut into: the fewest that keep a piece within its size."""
    wanted = -(-block_bytes // PIECE_BYTES)
    if nodes > 1:
        wanted = max(wanted, min(PIECES_BETWEEN_NODES, block_bytes // PIECE_BYTES_BETWEEN_NODES))
    divisors = [count for count in range(1, num_heads_kv + 1) if num_heads_kv % count == 0]
    return next((count for count in divisors if count >= wanted), num_heads_kv)


def reason_not(count: object, num_heads_kv: int) -> str | None:
    """Why so many head groups cannot be, or None."""
    if not isinstance(count, int) or isinstance(count, bool) or count < 0:
        return f"head_groups is {count}: give a whole number, 0 for automatic"
    if count and num_heads_kv % count:
        return (
            f"head_groups {count} does not divide {num_heads_kv} kv heads: take a divisor, or 0 for automatic"
        )
    return None
