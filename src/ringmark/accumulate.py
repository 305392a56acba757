"""Local sums over the stops of a route, piece by piece: float32 while a piece is under way, rounded once.

An accumulator exists from the first stop of its piece to the last, so pieces that follow each other share
one allocation. A stop that meets nothing is told as well (without a part): it may be the last.
"""

from __future__ import annotations

import torch

from ringmark.comm.route import Stop
from ringmark.kernels.merge import add_, fold_, wide

NOTHING = slice(0, 0)
Part = tuple[torch.Tensor, torch.Tensor]


class Output:
    """(out, lse) of the local queries, folded block by block."""

    def __init__(self, q: torch.Tensor) -> None:
        batch, seqlen, heads, _ = q.shape
        self.out = torch.empty_like(q, memory_format=torch.contiguous_format)
        self.lse = torch.empty(batch, heads, seqlen, dtype=wide(q.dtype), device=q.device)
        self._sums: dict[int, torch.Tensor] = {}

    def fold(self, stop: Stop, heads: slice, rows: slice = NOTHING, part: Part | None = None) -> None:
        """Fold what `rows` of `heads` see at this stop; the first stop of a piece is its whole own pair."""
        out, lse = self.out[:, :, heads], self.lse[:, heads]
        if stop.first:
            assert part is not None
            assert part[0].shape == out.shape, "the own pair comes first, and covers every row"
            into = out if stop.last else None
            sums = torch.empty(0) if stop.last else torch.empty(out.shape, dtype=lse.dtype, device=out.device)
            self._sums[stop.piece] = sums
            fold_(sums if into is None else out, lse, *part, first=True, into=into)
        elif part is not None:
            into = out[:, rows] if stop.last else None
            fold_(self._sums[stop.piece][:, rows], lse[:, :, rows], *part, into=into)
        if stop.last:
            sums = self._sums.pop(stop.piece)
            if not stop.first:
                _round_rest(out, sums, rows)


class Gradient:
    """One gradient of a tensor that stays here, added up block by block."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.result = torch.empty_like(tensor, memory_format=torch.contiguous_format)
        self._sums: dict[int, torch.Tensor] = {}

    def add(self, stop: Stop, heads: slice, rows: slice = NOTHING, part: torch.Tensor | None = None) -> None:
        """Add what `rows` of `heads` get at this stop."""
        result = self.result[:, :, heads]
        if stop.first:
            whole = part is not None and part.shape == result.shape
            make = torch.empty if whole else torch.zeros
            self._sums[stop.piece] = make(result.shape, dtype=wide(result.dtype), device=result.device)
        sums = self._sums[stop.piece]
        if part is not None:
            add_(sums[:, rows], part, first=stop.first)
        if stop.last:
            result.copy_(self._sums.pop(stop.piece))


def _round_rest(result: torch.Tensor, sums: torch.Tensor, done: slice) -> None:
    """Write the sums of the rows outside `done` into the result."""
    result[:, : done.start].copy_(sums[:, : done.start])
    result[:, done.stop :].copy_(sums[:, done.stop :])
