"""What an answer may be wrong by, and which kernel may be the measure of it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from ringmark import campaign_alone, kernels, methods, tolerance
from ringmark.bench import check, problem
from ringmark.cell import Cell, MeshShape, Shape
from ringmark.comm.mesh import Mesh

CPU = torch.device("cpu")
MANY = 4096  # rows


@pytest.mark.parametrize(
    ("dtype", "own"), [("bf16", 3.2e-3), ("fp16", 4e-4), ("fp32", 1e-6), ("fp64", 4e-15)]
)
def test_what_rounding_explains_is_sane(dtype: str, own: float) -> None:
    assert tolerance.kernel_is_sane(own, dtype, MANY)
    assert tolerance.kernel_is_sane(0.0, dtype, MANY)


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32", "fp64"])
@pytest.mark.parametrize("own", [1.0, math.sqrt(2), 0.05, math.nan, math.inf, -1.0])
def test_zero_gradients_swapped_ones_or_an_ignored_mask_are_not(dtype: str, own: float) -> None:
    assert not tolerance.kernel_is_sane(own, dtype, MANY)


def test_a_kernel_of_fewer_bits_is_no_measure_for_more() -> None:
    assert not tolerance.kernel_is_sane(2.4e-3, "fp16", MANY)  # bf16's error
    assert not tolerance.kernel_is_sane(4.9e-4, "fp32", MANY)  # TF32's


def test_a_short_sequence_of_16_bits_has_more_room() -> None:
    assert tolerance.kernel_is_sane(1.9e-2, "bf16", 64)
    assert not tolerance.kernel_is_sane(2.1e-2, "bf16", 64)
    assert tolerance.own_max("fp32", 64) == tolerance.own_max("fp32", MANY)


@pytest.mark.parametrize(
    ("dtype", "keys", "too_many"),
    [("bf16", 4000, 4200), ("fp16", 260_000, 270_000), ("fp32", 4.2e9, 4.4e9)],
)
def test_one_key_that_is_lost_of_so_many_is_seen_where_all_weigh_alike(
    dtype: str, keys: float, too_many: float
) -> None:
    """A row that lacks a part f of its keys is off by the root of f."""
    assert keys**-0.5 > tolerance.uniform_allowed(dtype) > too_many**-0.5


def test_what_is_allowed_of_two_tensors_follows_from_what_is_of_each() -> None:
    assert tolerance.timed_allowed(1e-3, 3e-3, 2e-3) == 6e-3
    assert tolerance.balance_allowed(3e-3, 4e-3) == pytest.approx(2e-2)
    floors = {dtype: tolerance.allowed(0.0, dtype, MANY) for dtype in ("bf16", "fp16", "fp32", "fp64")}
    assert floors == {"bf16": 2.0**-8, "fp16": 2.0**-11, "fp32": 2.0**-18, "fp64": 2.0**-47}
    assert tolerance.allowed(3e-3, "bf16", MANY) == 6e-3


@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32", "fp64"])
@pytest.mark.parametrize("rows", [1, 8, 64, 4096, 131072, 1 << 20])
def test_a_tensor_of_zeros_is_never_allowed(dtype: str, rows: int) -> None:
    """Its error is 1, whatever the kernel's own error is."""
    own = tolerance.own_max(dtype, rows)
    assert 0 < tolerance.allowed(own, dtype, rows) < 0.5
    assert tolerance.allowed(1.01 * own, dtype, rows) == 0.0


def test_fp16_loses_bits_of_the_small_weights_of_a_long_sequence() -> None:
    """What rounding weights of 1/n to fp16 costs dv, by experiment: 1.4e-3 and 5.6e-3 at these lengths."""
    for keys, own in ((131072, 1.4e-3), (524288, 5.6e-3)):
        assert tolerance.kernel_is_sane(own, "fp16", keys)
        assert not tolerance.kernel_is_sane(own, "fp16", 4096)


@pytest.mark.parametrize("seqlen", [9, 40, 512, 514, 2048])
def test_as_many_rows_are_looked_at_as_the_rule_says(seqlen: int) -> None:
    mesh, kernel, method = Mesh(1, 1, 0, CPU), kernels.load("reference"), methods.load("single")()
    cell = Cell("single", seqlen, Shape(1, 2, 2, 16, "fp32"), mesh=MeshShape(1, 1), kernel="reference")
    method.setup(mesh, kernel, causal=True)
    found = check.check(cell, method, kernel, problem.make(cell, method, mesh, "0", CPU), mesh)
    wanted = tolerance.rows_checked(seqlen, 1)
    assert {name: error.rows_checked for name, error in found.errors.items()} == {
        "out": wanted, "dq": wanted, "dk": seqlen, "dv": seqlen,
    }  # fmt: skip


def test_a_long_or_shared_sequence_is_sampled() -> None:
    assert tolerance.rows_checked(16384, 4) == 32
    assert tolerance.rows_checked(129, 4) == 32
    assert tolerance.rows_checked(128, 4) == 128
    assert tolerance.rows_checked(20, 64) == 20


@pytest.mark.parametrize("phase", ["fwd", "fwd_bwd"])
@pytest.mark.parametrize("mask", ["causal", "full"])
@pytest.mark.parametrize("method", ["ring", "single"])
@pytest.mark.parametrize("world_size", [1, 4])
def test_a_rank_has_the_rows_and_keys_that_the_check_of_a_campaign_expects(
    world_size: int, method: str, mask: str, phase: Any
) -> None:
    cell = Cell(method, 64, Shape(2, 4, 2, 16, "bf16", mask), phase, MeshShape(1, world_size))  # type: ignore[arg-type]
    made = problem.make(cell, methods.load(method)(), Mesh(1, world_size, 0, CPU), "0", CPU)
    assert campaign_alone.rows(cell) == (made.q.shape[1], made.k.shape[1])
    assert campaign_alone.inputs_and_results_mib(cell)[0] == made.inputs_mib
