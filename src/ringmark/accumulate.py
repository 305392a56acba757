"""Local sums over the stops of a route, piece by piece: no pass over memory that adds nothing.

    first stop     what the kernel returned is kept as it is
    second stop    kept + part  -> a float32 sum
    then           sum += part
    last stop      sum + part   -> the result, rounded once

A sum exists from the first stop of its piece to the last, so pieces that follow each other share one
allocation. A stop that meets nothing is told as well (without a part): it may be the last.
"""

from __future__ import annotations

from collections.abc import Callable

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
        self._sums = _Sums()

    def fold(self, stop: Stop, heads: slice, rows: slice = NOTHING, part: Part | None = None) -> None:
        """Fold what `rows` of `heads` see at this stop; the first stop of a piece is its whole own pair."""
        lse = self.lse[:, heads]

        def fold(held: torch.Tensor, into: torch.Tensor) -> None:
            assert part is not None
            fold_(held, lse[:, :, rows], *part, into=into)

        if stop.first:
            assert part is not None
            assert part[1].shape == lse.shape, "the own pair comes first, and covers every row"
            lse.copy_(part[1])
        self._sums.add(stop, heads, self.out, rows, part and part[0], fold)


class Gradient:
    """One gradient of a tensor that stays here, added up block by block."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.result = torch.empty_like(tensor, memory_format=torch.contiguous_format)
        self._sums = _Sums()

    def add(self, stop: Stop, heads: slice, rows: slice = NOTHING, part: torch.Tensor | None = None) -> None:
        """Add what `rows` of `heads` get at this stop."""

        def add(held: torch.Tensor, into: torch.Tensor) -> None:
            assert part is not None
            add_(held, part, into=into)

        self._sums.add(stop, heads, self.result, rows, part, add)


class _Sums:
    """The pieces under way, by their first head."""

    def __init__(self) -> None:
        self._held: dict[int, torch.Tensor] = {}

    def add(
        self,
        stop: Stop,
        heads: slice,
        whole: torch.Tensor,
        rows: slice,
        part: torch.Tensor | None,
        combine: Callable[[torch.Tensor, torch.Tensor], None],
    ) -> None:
        """One stop of a piece; `combine(held rows, target rows)` writes them with the part put in."""
        result = whole[:, :, heads]
        if stop.first:
            if stop.last:
                _place(result, rows, part)
            elif part is not None and part.shape == result.shape:
                self._held[heads.start] = part
            else:
                self._held[heads.start] = _place(_wide_like(result), rows, part)
            return
        held = self._held.pop(heads.start)
        target = result if stop.last else held if held.dtype == wide(held.dtype) else _wide_like(held)
        if part is not None:
            combine(held[:, rows], target[:, rows])
        if target is not held:
            target[:, : rows.start].copy_(held[:, : rows.start])
            target[:, rows.stop :].copy_(held[:, rows.stop :])
        if not stop.last:
            self._held[heads.start] = target


def _wide_like(tensor: torch.Tensor) -> torch.Tensor:
    return torch.empty(tensor.shape, dtype=wide(tensor.dtype), device=tensor.device)


def _place(target: torch.Tensor, rows: slice, part: torch.Tensor | None) -> torch.Tensor:
    """The part in its rows, and zeros elsewhere."""
    target[:, : rows.start].zero_()
    target[:, rows.stop :].zero_()
    if part is not None:
        target[:, rows].copy_(part)
    return target
