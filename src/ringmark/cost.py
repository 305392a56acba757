"""What a campaign costs before it runs: an estimate from FLOPs, a rate and the number of iterations."""

from __future__ import annotations

from ringmark import flops
from ringmark.cell import Cell
from ringmark.config import Config
from ringmark.record import Measure

# Assumptions of an estimate, never of a result: a world's start, a cell's set-up and check, rates per rank.
START_S = 15.0
CELL_S = 0.5
UNTIMED = 6  # iterations of one check, of the other (two), the first call, the memory and the profile
ASSUMED_TFLOPS = {"cpu": 0.01, "cuda": 300.0, "auto": 300.0}


def assumed_tflops(config: Config) -> float:
    return ASSUMED_TFLOPS[config.device]


def cell_seconds(cell: Cell, measure: Measure, tflops_per_gpu: float) -> float:
    """About how long one cell takes: warm-up, first call, check and the iterations of each protocol."""
    one = iteration_seconds(cell, tflops_per_gpu)
    timed = measure.min_iterations * one * len(measure.protocols)  # nothing ends a cell before these
    warm = max(measure.warmup * one, measure.warmup_s) * len(measure.protocols)
    return CELL_S + warm + 3 * one + timed


def longest_seconds(cell: Cell, measure: Measure, tflops_per_gpu: float, slower: float) -> float:
    """What one cell takes at most, on something so many times `slower` than is assumed.

    Iterations go on to the last one, or to the first look at the clock after the time limit; ranks look when
    their number has grown by a quarter, and first after the least number, however long that takes.
    """
    one = slower * iteration_seconds(cell, tflops_per_gpu)
    limit = measure.time_limit_s + max(one, measure.time_limit_s / 4)
    timed = max(measure.min_iterations * one, min(measure.max_iterations * one, limit))
    warm = max(measure.warmup * one, measure.warmup_s + one)
    return slower * CELL_S + (warm + timed) * len(measure.protocols) + UNTIMED * one


def iteration_seconds(cell: Cell, tflops_per_gpu: float) -> float:
    return flops.cell_flops(cell) / cell.world_size / (tflops_per_gpu * 1e12)
