"""Statistics of repeated timings: the median, its nonparametric interval, quantiles. Nothing is dropped."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

LEVEL = 0.95  # what an interval covers, where there are samples enough for it


@dataclass(frozen=True)
class Summary:
    """What is reported of a list of samples; every field can be re-derived from them (docs/metrics.md)."""

    median: float
    ci_low: float
    ci_high: float
    ci_level: float
    p5: float
    p95: float
    n: int


def quantile(samples: Sequence[float], fraction: float) -> float:
    """The quantile at `fraction`, linear between order statistics (position fraction * (n - 1))."""
    if not samples:
        raise ValueError("a quantile of no samples does not exist")
    ordered = sorted(samples)
    position = fraction * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (position - below)


def median_interval(samples: Sequence[float], level: float = LEVEL) -> tuple[float, float, float]:
    """(low, high, level reached): the narrowest symmetric pair of order statistics covering the median.

    The number of samples under the true median is Binomial(n, 1/2), whatever the distribution, so the k-th
    smallest and k-th largest sample enclose it with probability 1 - 2 P(X < k). With n < 6 no pair reaches
    95%: the whole range is returned with the level that it does reach.
    """
    ordered = sorted(samples)
    n = len(ordered)
    if n == 0:
        raise ValueError("an interval of no samples does not exist")
    depth, ways, below = 1, 1, 1  # of 2^n, equally likely: `below` put fewer than `depth` samples on one side
    while depth < n // 2:
        ways = ways * (n - depth + 1) // depth
        if 1 - 2 * (below + ways) / (1 << n) < level:
            break
        depth, below = depth + 1, below + ways
    reached = max(0.0, 1 - 2 * below / (1 << n))
    return ordered[depth - 1], ordered[n - depth], reached


def summarize(samples: Sequence[float], level: float = LEVEL) -> Summary:
    """The summary of `samples`, all of them."""
    low, high, reached = median_interval(samples, level)
    return Summary(
        median=quantile(samples, 0.5),
        ci_low=low,
        ci_high=high,
        ci_level=reached,
        p5=quantile(samples, 0.05),
        p95=quantile(samples, 0.95),
        n=len(samples),
    )


def slowest_per_iteration(ranks_by_iterations: Sequence[Sequence[float]]) -> list[float]:
    """The time of each iteration: the slowest rank's (rule 1)."""
    return [max(column) for column in zip(*ranks_by_iterations, strict=True)]


def known_within(summary: Summary, target: float, level: float = LEVEL) -> bool:
    """Whether both ends of the median's interval lie within `target` of it, as a fraction."""
    spread = max(summary.ci_high - summary.median, summary.median - summary.ci_low)
    return summary.ci_level >= level and spread <= target * summary.median


def clock_disagreement(
    samples_ms: Sequence[Sequence[float]], wall_ms: Sequence[Sequence[float]]
) -> tuple[float, float]:
    """The rank whose clock and witness differ most: (as a fraction of its time, in ms per iteration)."""
    worst = (0.0, 0.0)
    for clock, witness in zip(samples_ms, wall_ms, strict=True):
        total = math.fsum(clock)
        gap = abs(math.fsum(witness) - total)
        worst = max(worst, (gap / total if total > 0 else 0.0, gap / len(clock)))
    return worst
