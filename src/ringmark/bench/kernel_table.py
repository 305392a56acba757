"""The text table that torch's profiler prints, read back: rows with their units, and shares that add up.

Published logs carry such tables, and summaries made of them by hand that took milliseconds for a fraction or
missed the rows printed in seconds. Here a time is read with its unit, and a share is of the stated total.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ringmark.bench.timeline import KINDS, Kind, kind_of

_UNIT_MS = {"ns": 1e-6, "us": 1e-3, "ms": 1.0, "s": 1e3}
_TIME = re.compile(r"([\d.]+)(ns|us|ms|s)\Z")


@dataclass(frozen=True)
class Row:
    """A kernel of the table: its own time on the device, over all its calls."""

    name: str
    device_ms: float
    stated_percent: float
    calls: int

    @property
    def kind(self) -> Kind:
        return kind_of(self.name)


@dataclass(frozen=True)
class Table:
    """The kernels of one profile and the device time that it states in all."""

    rows: list[Row]
    total_ms: float

    def share(self, kind: Kind) -> float:
        """The fraction of the device's time that kernels of a kind took."""
        return sum(row.device_ms for row in self.rows if row.kind == kind) / self.total_ms

    def shares(self) -> dict[Kind, float]:
        return {kind: self.share(kind) for kind in KINDS}


def time_ms(text: str) -> float:
    """'14.531s' -> 14531.0"""
    found = _TIME.match(text.strip())
    if not found:
        raise ValueError(f"{text!r} is no time with a unit")
    return float(found[1]) * _UNIT_MS[found[2]]


def parse(text: str) -> Table:
    """The first profiler table in a log; a prefix that a launcher put before each line does not matter."""
    lines = text.splitlines()
    head = next((i for i, line in enumerate(lines) if "Self CUDA" in line and "# of Calls" in line), None)
    if head is None:
        raise ValueError("there is no profiler table with device times in this text")
    start = lines[head].index("Name") + len("Name")
    columns = ["Name", *re.split(r"\s{2,}", lines[head][start:].strip())]
    own, percent, calls = (columns.index(c) for c in ("Self CUDA", "Self CUDA %", "# of Calls"))
    rows, total_ms = [], None
    for line in lines[head + 1 :]:
        found = re.search(r"Self CUDA time total:\s*(\S+)", line)
        if found:
            total_ms = time_ms(found[1])
            break
        cells = re.split(r"\s{2,}", re.sub(r"^\w+:\s", "", line).strip())
        if len(cells) != len(columns) or set(cells[0]) == {"-"}:
            continue
        if (device_ms := time_ms(cells[own])) > 0:
            rows.append(Row(cells[0], device_ms, float(cells[percent].rstrip("%")), int(cells[calls])))
    if total_ms is None:
        raise ValueError("the profiler table states no total device time")
    return Table(rows, total_ms)
