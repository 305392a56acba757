"""Bugs that more than one test plants, as patches."""

from __future__ import annotations

import itertools
from typing import Any
from unittest import mock

import torch

from ringmark import accumulate
from ringmark.comm import homeward
from ringmark.kernels import running


def skip_one_merge() -> Any:
    """One fold of several is left out."""
    calls, real = itertools.count(), accumulate.fold_
    return mock.patch.object(accumulate, "fold_", lambda *a, **k: None if next(calls) == 2 else real(*a, **k))


def lose_a_contribution() -> Any:
    """What one rank sent straight home arrives as zeros."""
    real, calls = homeward.Straight._contribute, itertools.count()

    def contribute(self: homeward.Straight, stop: Any, count: int, given: Any, keep: bool) -> None:
        arrived = given and not keep
        if arrived and next(calls) == 0:
            for tensor in given[0][0]:
                tensor.zero_()
        real(self, stop, count, given, keep)

    return mock.patch.object(homeward.Straight, "_contribute", contribute)


def sum_in_bf16() -> Any:
    """Sums are rounded after every addition, those that stay and those that travel."""
    real = running.add_

    def add_(acc: torch.Tensor, part: torch.Tensor, rows: slice, into: torch.Tensor) -> None:
        real(acc, part, rows, into)
        into.copy_(into.bfloat16())

    return mock.patch.object(running, "add_", add_)
