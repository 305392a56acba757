"""Local sums over the stops of a route, piece by piece: float32 while a piece is under way, rounded once.

A sum exists from the first stop of its piece to the last, so pieces that follow each other share one
allocation. A stop that meets nothing is told as well (without a part): it may be the last.
"""

from __future__ import annotations

import torch

from ringmark.comm.route import Stop
from ringmark.kernels.merge import fold_, wide
from ringmark.kernels.running import NOTHING, Running

Part = tuple[torch.Tensor, torch.Tensor]


class Output:
    """(out, lse) of the local queries, folded block by block."""

    def __init__(self, q: torch.Tensor) -> None:
        batch, seqlen, heads, _ = q.shape
        self.out = torch.empty_like(q, memory_format=torch.contiguous_format)
        self.lse = torch.empty(batch, heads, seqlen, dtype=wide(q.dtype), device=q.device)
        self._sums: dict[int, Running] = {}  # by the first head of the piece

    def fold(self, stop: Stop, heads: slice, rows: slice = NOTHING, part: Part | None = None) -> None:
        """Fold what `rows` of `heads` see at this stop; the first stop of a piece is its whole own pair."""
        out, lse = self.out[:, :, heads], self.lse[:, heads]
        part_out, part_lse = part or (None, None)
        if stop.first:
            assert part_lse is not None
            assert part_lse.shape == lse.shape, "the own pair comes first, and covers every row"
            lse.copy_(part_lse)

        def fold(held: torch.Tensor, part: torch.Tensor, rows: slice, into: torch.Tensor) -> None:
            assert part_lse is not None
            fold_(held, lse, part, part_lse, rows, into=into)

        sums = _of_piece(self._sums, stop, heads, out)
        sums.add(part_out, rows, into=out if stop.last else None, combine=fold)


class Gradient:
    """One gradient of a tensor that stays here, added up block by block."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.result = torch.empty_like(tensor, memory_format=torch.contiguous_format)
        self._sums: dict[int, Running] = {}

    def add(self, stop: Stop, heads: slice, rows: slice = NOTHING, part: torch.Tensor | None = None) -> None:
        """Add what `rows` of `heads` get at this stop."""
        result = self.result[:, :, heads]
        sums = _of_piece(self._sums, stop, heads, result)
        sums.add(part, rows, into=result if stop.last else None)


def _of_piece(sums: dict[int, Running], stop: Stop, heads: slice, like: torch.Tensor) -> Running:
    """The sum of a piece: a new one at its first stop, forgotten at its last."""
    if stop.first:
        sums[heads.start] = Running(like)
    return sums.pop(heads.start) if stop.last else sums[heads.start]
