"""A made campaign and ways of changing its records, for the tests of `ringmark check`."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import make_records
from ringmark.cell import Cell, MeshShape, Shape

MESH = MeshShape(1, 2)
SHAPE = Shape(1, 4, 4, 64, "fp32", "causal")
PAPER = Shape(1, 40, 40, 128, "bf16", "causal")
LONG_RING = "records/ring/b1-hq40-hkv40-d128-bf16-causal/1x2/auto/S131072_fwd.r0.json"
RING_BOTH = "records/ring/b1-hq4-hkv4-d64-fp32-causal/1x2/auto/S512_fwd_bwd.r0.json"
Change = Callable[[dict[str, Any]], None]


def cell_of(method: str, phase: Any = "fwd_bwd", shape: Shape = SHAPE, seqlen: int = 512) -> Cell:
    return Cell(method, seqlen, shape, phase, MESH)


def write(folder: Path) -> Path:
    """Eight records that hold together: three methods on a CPU, two on GPUs."""
    cells = [cell_of(method, phase) for method in ("single", "ring", "burst") for phase in ("fwd", "fwd_bwd")]
    cells += [cell_of(method, "fwd", PAPER, 131072) for method in ("single", "ring")]
    times = {"fwd": 10.0, "fwd_bwd": 35.0}
    made = [
        make_records.make(
            cell,
            rng=random.Random(order),
            median_ms=None if cell.shape == PAPER else times[cell.phase] * (1 + (cell.method != "single")),
            order=order,
        )
        for order, cell in enumerate(cells)
    ]
    return make_records.write_campaign(folder, made)


def edit(campaign: Path, where: str, change: Change) -> None:
    path = campaign / where
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def headline(data: dict[str, Any]) -> dict[str, Any]:
    return data["timing"]["series"]["isolated"]  # type: ignore[no-any-return]


def put(*keys: Any, to: Any) -> Change:
    def change(data: dict[str, Any]) -> None:
        for key in keys[:-1]:
            data = data[key]
        data[keys[-1]] = to(data[keys[-1]]) if callable(to) else to

    return change


def of_headline(*keys: Any, to: Any) -> Change:
    return lambda data: put(*keys, to=to)(headline(data))


def scaled_times(data: dict[str, Any], factor: float) -> None:
    """Consistent in itself, and impossible beside the forward."""
    series = headline(data)
    for name in ("samples_ms", "wall_ms"):
        series[name] = [[value * factor for value in row] for row in series[name]]
    for name in ("median", "ci_low", "ci_high", "p5", "p95"):
        series["summary"][name] *= factor
    data["timing"]["tflops_per_gpu"] /= factor
