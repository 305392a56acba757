"""A running sum of parts of one tensor: no pass over memory that adds nothing.

    first part     kept as it came, if it covers every row
    second part    kept + part  -> a float32 sum
    then           sum += part
    last part      sum + part   -> the result, rounded once

A part covers some rows; a last call may come without one. Parts that come together are added in one pass.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ringmark.kernels.merge import add_, copy_, sum_, wide

# (held, part, rows, into): write `held` with a part put into its rows; `into` may be `held` itself.
Combine = Callable[[torch.Tensor, torch.Tensor, slice, torch.Tensor], None]
NOTHING = slice(0, 0)


def place(part: torch.Tensor | None, rows: slice, into: torch.Tensor) -> None:
    """Write a part into its rows, and zeros into the others."""
    begin, end, _ = (rows if part is not None else NOTHING).indices(into.shape[1])
    into[:, :begin].zero_()
    into[:, end:].zero_()
    if part is not None:
        copy_(part, into[:, begin:end])


def put(
    held: torch.Tensor,
    part: torch.Tensor | None,
    rows: slice,
    into: torch.Tensor,
    combine: Combine | None = None,
) -> None:
    """Write `held` with a part added to its rows, or combined with them; `into` may be `held` itself."""
    if part is not None:
        (combine or add_)(held, part, rows, into)
    elif into is not held:
        copy_(held, into)


class Running:
    """The sum of what has been added so far to a tensor like `like` (B, S, H, D)."""

    def __init__(self, like: torch.Tensor) -> None:
        self._like = like
        self._held: torch.Tensor | None = None

    def add(
        self,
        part: torch.Tensor | None,
        rows: slice,
        *,
        into: torch.Tensor | None = None,
        combine: Combine | None = None,
        keep: bool = True,
    ) -> None:
        """Put a part in; `into` says that it is the last, and where the result goes.

        `combine` puts it in; None adds. `keep`: the part is ours, so a first one may become the sum itself.
        """
        if self._held is not None:
            self._go_on(lambda held, target: put(held, part, rows, target, combine), into)
        elif keep and into is None and part is not None and part.shape == self._like.shape:
            self._held = part
        else:
            target = self._wide() if into is None else into
            place(part, rows, target)
            self._held = target if into is None else None

    def add_all(
        self,
        parts: Sequence[tuple[torch.Tensor, slice]],
        *,
        into: torch.Tensor | None = None,
        keep: bool = True,
    ) -> None:
        """Add several parts at once, or none; more than one in a single pass."""
        if self._held is None or len(parts) < 2:
            part, rows = parts[0] if parts else (None, NOTHING)
            parts = parts[1:]
            self.add(part, rows, into=None if parts else into, keep=keep)
        if parts:
            self._go_on(lambda held, target: sum_(held, parts, target), into)

    def _go_on(self, write: Callable[[torch.Tensor, torch.Tensor], None], into: torch.Tensor | None) -> None:
        """From what is held to the next sum: `write(held, target)`."""
        held, self._held = self._held, None
        assert held is not None
        target = into if into is not None else held if held.dtype == wide(held.dtype) else self._wide()
        write(held, target)
        self._held = target if into is None else None

    def _wide(self) -> torch.Tensor:
        return torch.empty(self._like.shape, dtype=wide(self._like.dtype), device=self._like.device)
