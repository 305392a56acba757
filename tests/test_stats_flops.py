"""The statistics and the FLOPs formula against their definitions."""

from __future__ import annotations

import math
import random
import statistics
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ringmark import flops, stats

samples = st.lists(st.floats(0.001, 1e6), min_size=1, max_size=200)


@given(samples)
def test_summary_is_of_all_samples(values: list[float]) -> None:
    found = stats.summarize(values)
    assert found.n == len(values)
    assert found.median == pytest.approx(statistics.median(values))
    assert min(values) <= found.ci_low <= found.median <= found.ci_high <= max(values)
    assert found.p5 <= found.median <= found.p95
    assert found.ci_low in values
    assert found.ci_high in values


@pytest.mark.parametrize(
    ("n", "low", "high"), [(6, 0, 5), (9, 1, 7), (20, 5, 14), (50, 17, 32), (100, 39, 60)]
)
def test_interval_takes_the_textbook_order_statistics(n: int, low: int, high: int) -> None:
    """Ranks of the 95% sign-test interval for the median, as the tables of order statistics print them."""
    found_low, found_high, level = stats.median_interval(list(range(n)))
    assert (found_low, found_high) == (low, high)
    assert level >= 0.95


@pytest.mark.parametrize("n", [6, 7, 40, 1500])
def test_interval_is_the_narrowest_and_says_its_exact_level(n: int) -> None:
    """Where 2^n is beyond a float, too."""

    def reached(depth: int) -> float:
        return float(1 - Fraction(2 * sum(math.comb(n, below) for below in range(depth)), 2**n))

    low, high, level = stats.median_interval(list(range(n)))
    assert low == n - 1 - high
    assert level == pytest.approx(reached(int(low) + 1), rel=1e-12)
    assert reached(int(low) + 2) < 0.95 <= level


def test_too_few_samples_say_what_level_they_reach() -> None:
    assert stats.median_interval([1.0, 2.0, 3.0]) == (1.0, 3.0, 0.75)
    assert stats.median_interval([1.0])[2] == 0.0


def test_interval_covers_the_true_median_as_often_as_it_says() -> None:
    rng = random.Random(3)
    covered = 0
    for _ in range(2000):
        low, high, _ = stats.median_interval([rng.expovariate(1.0) for _ in range(25)])
        covered += low <= 0.6931 <= high
    assert covered / 2000 >= 0.94


def test_slowest_rank_makes_the_iteration() -> None:
    assert stats.slowest_per_iteration([[1, 5, 2], [3, 1, 2]]) == [3, 5, 2]
    with pytest.raises(ValueError, match="zip"):
        stats.slowest_per_iteration([[1, 2], [1]])


def test_flops_formula() -> None:
    cell = {"batch": 2, "seqlen_global": 100, "num_heads_q": 3, "head_dim": 8}
    full = flops.attention_flops(**cell, causal=False, phase="fwd")
    assert full == 4 * 2 * 100**2 * 3 * 8
    assert flops.attention_flops(**cell, causal=True, phase="fwd") == full / 2
    assert flops.attention_flops(**cell, causal=False, phase="bwd") == 2.5 * full
    assert flops.attention_flops(**cell, causal=False, phase="fwd_bwd") == 3.5 * full
    # 1 TFLOP over 4 ranks in half a second is half a TFLOP/s each.
    assert flops.tflops_per_gpu(1e12, 500.0, 4) == pytest.approx(0.5)


def test_published_row_follows_from_the_formula() -> None:
    """40 heads x 128, 131072 tokens, 32 GPUs, 148.48 ms: 129.59 TFLOP/s, as a published row prints."""
    total = flops.attention_flops(
        batch=1, seqlen_global=131072, num_heads_q=40, head_dim=128, causal=True, phase="fwd_bwd"
    )
    assert flops.tflops_per_gpu(total, 148.48, 32) == pytest.approx(129.59, abs=0.01)


def test_peaks_are_found_by_the_name_with_the_most_words() -> None:
    found = flops.peak_tflops("NVIDIA H200", "bf16")
    assert found is not None
    assert found.tflops > 900
    desktop = flops.peak_tflops("NVIDIA GeForce RTX 4090 D", "bf16")
    assert desktop is not None
    assert desktop.tflops < 165
    assert flops.peak_tflops("some CPU", "bf16") is None
    assert flops.peak_tflops("NVIDIA H200", "fp7") is None


@pytest.mark.parametrize(
    ("device", "tflops", "nvlink"),
    [
        ("NVIDIA H200", 989.4, 450),
        ("NVIDIA H100 80GB HBM3", 989.4, 450),
        ("NVIDIA H800", 989.4, 200),
        ("NVIDIA A100-SXM4-80GB", 312.0, 300),
        ("A100-SXM4-40GB", 312.0, 300),
        ("NVIDIA A800-SXM4-80GB", 312.0, 200),
        ("NVIDIA A100-PCIE-40GB", 312.0, None),
        ("NVIDIA A100 80GB PCIe", 312.0, None),
        ("NVIDIA A800 80GB PCIe", 312.0, None),
        ("NVIDIA A800 40GB Active", 312.0, None),
        ("NVIDIA H100 PCIe", 756.5, None),
        ("NVIDIA H100 NVL", 835.5, None),
        ("NVIDIA H200 NVL", 835.5, None),
        ("NVIDIA GH200 480GB", 990.0, None),
        ("NVIDIA RTX A1000", None, None),
        ("NVIDIA GeForce RTX 4090D", 147.0, None),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", None, None),
    ],
)
def test_a_device_has_the_figures_of_its_own_name(
    device: str, tflops: float | None, nvlink: float | None
) -> None:
    found = flops.peak_tflops(device, "bf16")
    assert (found.tflops if found else None) == tflops
    assert flops.nvlink_gb_per_s(device) == nvlink
