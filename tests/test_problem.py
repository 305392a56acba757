"""The inputs of a cell: the same numbers in every layout and world size, normal, and never a full tensor."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from ringmark import layout, methods
from ringmark.bench import problem
from ringmark.cell import Cell, MeshShape, Shape
from ringmark.comm.mesh import Mesh
from ringmark.methods.base import Method
from scales import Scales

CPU = torch.device("cpu")
SHAPE = Shape(2, 4, 2, 16, "fp32", "causal")


class _Dealt(Method):
    """A method that only says which tokens its ranks own."""

    label = "dealt"

    def __init__(self, name: str) -> None:
        super().__init__()
        self.layout = name


def _made(method: Method, cell: Cell, seed: int = 3) -> list[problem.Problem]:
    world_size = cell.world_size
    return [
        problem.make(cell, method, Mesh(cell.mesh.nodes, cell.mesh.gpus, rank, CPU), str(seed), CPU)
        for rank in range(world_size)
    ]


def _whole(made: list[problem.Problem], tensor: str) -> torch.Tensor:
    """The ranks' rows put back into the order of the sequence."""
    rows = torch.cat([getattr(one, tensor).detach() for one in made], 1)
    return rows[:, torch.cat([one.positions_q for one in made]).argsort()]


@pytest.mark.parametrize("name", layout.LAYOUTS)
@pytest.mark.parametrize("mesh", [MeshShape(1, 2), MeshShape(2, 4)])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_cell_has_the_same_numbers_in_every_layout_and_world_size(
    name: str, mesh: MeshShape, dtype: Any
) -> None:
    shape = Shape(2, 4, 2, 16, dtype, "causal")
    alone = _made(_Dealt("contiguous"), Cell("ring", 96, shape))
    dealt = _made(_Dealt(name), Cell("ring", 96, shape, mesh=mesh))
    for tensor in ("q", "k", "v", "dout"):
        assert torch.equal(_whole(dealt, tensor), _whole(alone, tensor)), tensor


def test_chunks_leave_no_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    cell = Cell("ring", 100, SHAPE)
    whole = _made(_Dealt("contiguous"), cell)[0]
    monkeypatch.setattr(problem, "CHUNK_ELEMENTS", 7 * 4 * 16)
    pieces = _made(_Dealt("contiguous"), cell)[0]
    assert torch.equal(whole.q, pieces.q)
    assert torch.equal(whole.dout, pieces.dout)


def test_values_are_unit_normal_and_unrelated() -> None:
    cell = Cell("ring", 4096, Shape(1, 4, 4, 16, "fp32", "causal"))
    one, other = (_made(_Dealt("contiguous"), cell, seed)[0] for seed in (0, 1))
    n = one.q.numel()
    flat = {name: getattr(one, name).detach().double().flatten() for name in ("q", "k", "v", "dout")}
    flat["other seed"] = other.q.detach().double().flatten()
    flat["next token"] = one.q.detach().double().roll(1, 1).flatten()
    flat["next element"] = one.q.detach().double().roll(1, 3).flatten()
    for name, values in flat.items():
        assert abs(values.mean()) < 5 / math.sqrt(n), name
        assert abs(values.var() - 1) < 5 * math.sqrt(2 / n), name
        assert abs((values**4).mean() - 3) < 5 * math.sqrt(96 / n), name
        for beside, others in flat.items():
            if beside != name:
                assert abs((values * others).mean()) < 5 / math.sqrt(n), (name, beside)
    tail = (flat["q"].abs() > 3).double().mean()
    assert abs(tail - 0.0027) < 5 * math.sqrt(0.0027 / n)


def test_only_what_differentiates_requires_grad_and_a_forward_has_no_dout() -> None:
    made = _made(_Dealt("zigzag"), Cell("ring", 64, SHAPE, "fwd", MeshShape(1, 2)))[1]
    assert made.dout is None
    assert all(tensor.requires_grad for tensor in (made.q, made.k, made.v))
    assert made.inputs_mib == sum(t.numel() * 4 for t in (made.q, made.k, made.v)) / 2**20
    assert made.keys_total == 64


def test_dout_comes_back_after_its_memory_was_lent() -> None:
    made = _made(_Dealt("striped"), Cell("ring", 64, SHAPE, mesh=MeshShape(1, 2)))[1]
    assert made.dout is not None
    before = made.dout.clone()
    made.dout.zero_()
    made.restore_dout()
    assert torch.equal(made.dout, before)
    assert not made.dout.requires_grad


@pytest.mark.parametrize(("mask", "keys"), [("causal", 48), ("full", 96)])
def test_the_bound_has_the_same_work_on_a_problem_of_each_ranks_own(mask: Any, keys: int) -> None:
    single = methods.load("single")()
    made = _made(single, Cell("single", 96, Shape(1, 2, 2, 8, "fp32", mask), mesh=MeshShape(2, 2)))
    assert [tuple(one.q.shape[:2]) for one in made] == [(1, 24)] * 4
    assert [tuple(one.k.shape[:2]) for one in made] == [(1, keys)] * 4
    assert all(one.private and not one.causal and one.keys_total == keys for one in made)
    assert not torch.equal(made[0].q, made[1].q)
    alone = _made(single, Cell("single", 96, Shape(1, 2, 2, 8, "fp32", mask)))[0]
    assert alone.causal == (mask == "causal")
    assert not alone.private


def test_making_inputs_holds_little_besides_them() -> None:
    tensor, positions = torch.empty(1, 65536, 8, 32, dtype=torch.bfloat16), torch.arange(65536)
    with Scales() as scales:
        scales.weigh(tensor)
        scales.weigh(positions)
        before = scales.now
        problem.fill_(tensor, positions, 5)
    assert tensor.numel() == 8 * problem.CHUNK_ELEMENTS, "of several chunks"
    assert scales.peak - before < 4 * 8 * problem.CHUNK_ELEMENTS, "four of them, in eight bytes each"
