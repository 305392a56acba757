"""What a campaign costs before it runs: an estimate from FLOPs, a rate and the number of iterations."""

from __future__ import annotations

from ringmark import flops
from ringmark.cell import Cell
from ringmark.config import Config, Measure

# Assumptions of an estimate, never of a result: a world's start, a cell's set-up and check, rates per rank.
START_S = 15.0
CELL_S = 0.5
ASSUMED_TFLOPS = {"cpu": 0.01, "cuda": 300.0, "auto": 300.0}


def assumed_tflops(config: Config) -> float:
    return ASSUMED_TFLOPS[config.device]


def cell_seconds(cell: Cell, measure: Measure, tflops_per_gpu: float) -> float:
    """About how long one cell takes: warm-up, first call, check and the iterations of each protocol."""
    total = flops.cell_flops(cell)
    one = total / cell.world_size / (tflops_per_gpu * 1e12)
    timed = min(max(measure.min_iterations * one, 0.0), measure.time_limit_s) * len(measure.protocols)
    warm = max(measure.warmup * one, measure.warmup_s) * len(measure.protocols)
    return CELL_S + warm + 3 * one + timed
