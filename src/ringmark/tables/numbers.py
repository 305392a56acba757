"""Numbers as text: as many digits as the smallest of a column needs, the same for the whole column."""

from __future__ import annotations

import math
from collections.abc import Iterable


def decimals(values: Iterable[float], digits: int = 4, most: int = 7) -> int:
    """How many decimals give the smallest of `values` so many significant digits."""
    sizes = [abs(value) for value in values if value]
    if not sizes:
        return 0
    return min(most, max(0, digits - 1 - math.floor(math.log10(min(sizes)))))


def fixed(value: float, places: int) -> str:
    return f"{value:.{places}f}"


def plain(value: float | int | None, digits: int = 4) -> str:
    """One number by itself: whole numbers whole, others with so many significant digits."""
    if value is None:
        return "none"
    if isinstance(value, int):
        return str(value)
    return fixed(value, decimals([value], digits))
