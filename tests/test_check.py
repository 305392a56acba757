"""The check before the clock: healthy methods pass at the measured size, and each planted bug is `wrong`.

The bugs sit where a merge, a hop or a buffer goes wrong in practice; several touch one half-block, one head
or one element of one rank. All of them run at a length where only a few rows are sampled.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch

import planted
from ringmark import kernels, methods, tolerance
from ringmark.bench import check, exact, problem
from ringmark.cell import Cell, MeshShape, Shape
from ringmark.comm import homeward
from ringmark.comm.mesh import Mesh
from ringmark.kernels import running
from ringmark.methods.base import Method
from ringmark.record import Check
from world import run_world

LONG = 2048
FP32 = Shape(1, 4, 2, 16, "fp32", "causal")
Tensors = tuple[torch.Tensor, ...]


def _checked(mesh: Mesh, method: Method, cell: Cell, seed: int = 0) -> Check:
    kernel = kernels.load("reference")
    method.setup(mesh, kernel, causal=cell.shape.causal)
    inputs = problem.make(cell, method, mesh, str(seed), mesh.device)
    before = inputs.dout.clone() if inputs.dout is not None else None
    found = check.check(cell, method, kernel, inputs, mesh)
    assert inputs.q.grad is None
    assert inputs.k.grad is None
    if before is not None:
        assert torch.equal(inputs.dout, before), "the check gives back what it borrowed"
    return found


def _cell(method: str, mesh: Mesh, seqlen: int = LONG, shape: Shape = FP32, phase: Any = "fwd_bwd") -> Cell:
    return Cell(method, seqlen, shape, phase, MeshShape(mesh.nodes, mesh.gpus), "reference")


# Bugs in what a rank returns: method, where, what becomes of (out, lse) or (dq, dk, dv), what tells it, rank.


def _on(rank: int, change: Callable[[Tensors], None]) -> Callable[[Mesh, Tensors], None]:
    return lambda mesh, tensors: change(tensors) if mesh.rank == rank else None


def _scale_half(number: int, factor: float) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        rows = tensors[number].shape[1]
        tensors[number][:, rows // 2 :] *= factor

    return change


def _swap_halves(tensors: Tensors) -> None:
    for tensor in tensors:
        if tensor.dim() == 4:
            tensor.copy_(tensor.roll(tensor.shape[1] // 2, 1))


def _round_half(number: int) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        half = tensors[number][:, : tensors[number].shape[1] // 2]
        half.copy_(half.bfloat16())

    return change


def _stray(tensors: Tensors) -> None:
    tensors[0][0, 7, 1, 3] += 5.0  # a row whose dout was zero


def _one_head(tensors: Tensors) -> None:
    tensors[1][:, :, 1] *= 1.0001


def _put(number: int, value: float) -> Callable[[Tensors], None]:
    def change(tensors: Tensors) -> None:
        tensors[number][0, 11, 0, 2] = value

    return change


RESULT_BUGS: dict[str, tuple[str, str, Callable[[Mesh, Tensors], None], set[str], int | None]] = {
    "one half-block of one rank a hundredth off": (
        "zigzag",
        "attend",
        _on(3, _scale_half(0, 1.01)),
        {"out"},
        3,
    ),
    "out with its halves swapped": ("zigzag", "attend", _on(2, _swap_halves), {"out"}, 2),
    "nan in one row that is not sampled": ("ring", "attend", _on(1, _put(0, float("nan"))), {"out"}, None),
    "inf in one gradient": ("ring", "gradients", _on(2, _put(2, float("inf"))), {"dv"}, None),
    "dk and dv with their halves swapped": (
        "double_ring",
        "gradients",
        _on(1, lambda tensors: _swap_halves(tensors[1:])),
        {"dk", "dv"},
        1,
    ),
    "dk of one head a ten-thousandth off": ("stripe", "gradients", _on(0, _one_head), {"dk"}, 0),
    "dv of one half-block summed in bf16": ("ring", "gradients", _on(2, _round_half(2)), {"dv"}, 2),
    "dq where no dout was": ("burst", "gradients", _on(3, _stray), {"dq"}, 3),
    "dq of one half-block never written": ("burst", "gradients", _on(1, _scale_half(0, 0.0)), {"dq"}, 1),
}


def _bugged(name: str, where: str, bug: Callable[[Mesh, Tensors], None]) -> Method:
    """A method whose results go through a bug."""
    real = methods.load(name)

    def attend(self: Any, *args: Any) -> Any:
        out, lse = real.attend(self, *args)
        if where == "attend":
            out = out.clone()
            bug(self.mesh, (out, lse))
        return out, lse

    def gradients(self: Any, *args: Any) -> Any:
        grads = tuple(grad.clone() for grad in real.gradients(self, *args))
        if where == "gradients":
            bug(self.mesh, grads)
        return grads

    return type("Bugged", (real,), {"attend": attend, "gradients": gradients})()  # type: ignore[no-any-return]


# Bugs in how ranks work together: (the method, the patch, what must betray it).


def _uncleared() -> Any:
    class Dirty(running.Running):
        """A sum that begins with what its buffer held."""

        def add(self, *args: Any, **named: Any) -> None:
            begins = self._held is None
            super().add(*args, **named)
            if begins and self._held is not None:
                self._held.view(-1)[::97] += 0.01

    return mock.patch.object(homeward, "Running", Dirty)


TEAM_BUGS: dict[str, tuple[str, Callable[[], Any], set[str]]] = {
    "a merge is skipped": ("zigzag", planted.skip_one_merge, {"out", "dq", "dk"}),
    "a contribution to dq is lost": ("burst", planted.lose_a_contribution, {"dq"}),
    "a contribution to dk and dv is lost": ("double_ring", planted.lose_a_contribution, {"dk", "dv"}),
    "gradients are summed in bf16": ("ring", planted.sum_in_bf16, {"dq"}),
    "an accumulator is not cleared": ("burst", _uncleared, {"dq"}),
}


class _NoGradient(Method):
    """An implementation that forgets to differentiate v."""

    label, layout = "no gradient", "contiguous"

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return methods.load("single").forward(self.alone, q, k, v.detach())  # type: ignore[attr-defined]


class _Mislaid(methods.load("zigzag")):  # type: ignore[misc]
    """Computes the zigzag deal on what it was dealt as contiguous."""

    layout = "contiguous"

    def attend(self, *args: Any) -> Any:
        self.layout = "zigzag"
        return super().attend(*args)


class _Scribbler(methods.load("ring")):  # type: ignore[misc]
    """Scales its queries in place."""

    def attend(self, q: Any, k: Any, v: Any, scale: float) -> Any:
        q.detach().mul_(2.0)
        return super().attend(q, k, v, scale / 2)


def _all_of_it(mesh: Mesh) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, (base, where, bug, _, _) in RESULT_BUGS.items():
        found[name] = _checked(mesh, _bugged(base, where, bug), _cell(base, mesh))
    for name, (base, plant, _) in TEAM_BUGS.items():
        with plant():
            options = {"side": "q"} if base == "burst" else {}
            found[name] = _checked(mesh, methods.load(base)(**options), _cell(base, mesh))
    found["mislaid"] = _checked(mesh, _Mislaid(), _cell("zigzag", mesh))
    try:
        _checked(mesh, _Scribbler(), _cell("ring", mesh))
    except check.InputsChangedError as error:
        found["scribbler"] = str(error)
    full = Shape(2, 2, 2, 16, "fp32", "full")
    for name in methods.names():
        for cell in (_cell(name, mesh), _cell(name, mesh, 256, full), _cell(name, mesh, 64, phase="fwd")):
            if methods.load(name)().unsupported(cell) is None:
                found[f"healthy {cell.key}"] = _checked(mesh, methods.load(name)(), cell)
    for name, dtype in itertools.product(("stripe", "burst", "single"), ("bf16", "fp16")):
        cell = _cell(name, mesh, LONG, Shape(1, 2, 2, 32, dtype, "causal"))
        found[f"healthy {cell.key}"] = _checked(mesh, methods.load(name)(), cell)
    found["bounds"] = _bounded(mesh)
    return found


def _bounded(mesh: Mesh) -> tuple[Any, Any]:
    """dk, dv and dq of sampled rows beside autograd's, in one process: the reference's own test."""
    torch.manual_seed(mesh.rank)
    q, k, v, dout = (torch.randn(1, 24, 4, 8, dtype=torch.float64, requires_grad=True) for _ in range(4))
    positions = torch.tensor([1, 4, 5, 20])
    sparse = torch.zeros_like(q)
    sparse[:, positions] = dout[:, positions]
    scores = torch.einsum("bqhd,bkhd->bhqk", q, k) * 0.3
    scores = scores.masked_fill(torch.ones(24, 24, dtype=torch.bool).triu(1), float("-inf"))
    plain = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), v)
    plain.backward(sparse.detach())
    rows = exact.Rows(
        q.detach()[:, positions], dout.detach()[:, positions], positions, positions + 1, True, 0.3, None
    )
    keys = exact.Keys(k, v, torch.arange(24))
    out, lse = exact.forward(rows, keys)
    backward = exact.Backward(rows, keys, out, lse)
    parts = [backward.gradients(slice(start, start + 5)) for start in range(0, 24, 5)]
    ours = [out, backward.dq(), *(torch.cat(grads, 1) for grads in zip(*parts, strict=True))]
    theirs = [plain[:, positions], q.grad[:, positions], k.grad, v.grad]
    return [t.tolist() for t in ours], [t.tolist() for t in theirs]


@pytest.fixture(scope="module")
def found() -> list[dict[str, Any]]:
    return run_world(4, _all_of_it, nodes=2)


def _failed(checked: Check) -> set[str]:
    return {name for name, error in checked.errors.items() if not error.ok}


@pytest.mark.parametrize("bug", RESULT_BUGS)
def test_a_bug_in_one_place_of_one_rank_is_wrong(bug: str, found: list[dict[str, Any]]) -> None:
    *_, betrayed, rank = RESULT_BUGS[bug]
    assert found[0][bug] == found[3][bug], "all ranks come to the same verdict"
    assert betrayed <= _failed(found[0][bug])
    if rank is not None:
        assert {found[0][bug].errors[name].worst_rank for name in betrayed} == {rank}


@pytest.mark.parametrize("bug", TEAM_BUGS)
def test_a_bug_between_ranks_is_wrong(bug: str, found: list[dict[str, Any]]) -> None:
    assert TEAM_BUGS[bug][2] <= _failed(found[0][bug])


def test_numbers_that_are_none_are_counted_and_never_pass(found: list[dict[str, Any]]) -> None:
    out = found[0]["nan in one row that is not sampled"].errors["out"]
    assert out.nonfinite == 1
    assert out.relative_error <= out.allowed, "the row was not sampled: the count alone betrays it"
    assert found[0]["inf in one gradient"].errors["dv"].nonfinite == 1


def test_a_layout_that_is_not_what_it_says_is_wrong(found: list[dict[str, Any]]) -> None:
    assert _failed(found[0]["mislaid"]) == {"out", "dq", "dk", "dv"}


def test_a_method_that_writes_into_its_inputs_is_told_so(found: list[dict[str, Any]]) -> None:
    assert "wrote into its input q" in found[0]["scribbler"]


def test_healthy_methods_pass_in_every_dtype(found: list[dict[str, Any]]) -> None:
    healthy = {name: check for name, check in found[0].items() if name.startswith("healthy")}
    assert len(healthy) >= 3 * 6 + 6
    assert {name: _failed(check) for name, check in healthy.items() if not check.ok} == {}
    for name, checked in healthy.items():
        assert set(checked.errors) == ({"out"} if name.endswith("_fwd") else {"out", "dq", "dk", "dv"})
        for tensor, error in checked.errors.items():
            assert error.rows_checked <= error.rows_total
            every = "S2048" not in name or tensor in ("dk", "dv")
            assert (error.rows_checked == error.rows_total) == every, (name, tensor)


def test_the_reference_is_what_autograd_says(found: list[dict[str, Any]]) -> None:
    ours, theirs = found[1]["bounds"]
    for mine, autograd in zip(ours, theirs, strict=True):
        torch.testing.assert_close(torch.tensor(mine), torch.tensor(autograd), rtol=1e-12, atol=1e-12)


def test_what_is_allowed_is_twice_the_kernel_whatever_a_method_says() -> None:
    """A method cannot grade itself; a small problem is allowed more, in 16 bits only."""
    assert tolerance.allowed(2.5e-3, "bf16", 10**6) == 5.0e-3
    assert tolerance.allowed(1e-9, "fp32", 10**6) == pytest.approx(64 * 2.0**-24)
    assert tolerance.allowed(2.5e-3, "bf16", 64) == pytest.approx(1.0e-2)
    assert tolerance.allowed(1e-6, "fp32", 64) == tolerance.allowed(1e-6, "fp32", 10**6)


def test_one_gpu_is_checked_without_any_world() -> None:
    mesh = Mesh(1, 1, 0, torch.device("cpu"))
    cell = Cell("ring", 64, FP32, mesh=MeshShape(1, 1), kernel="reference")
    method = _NoGradient()
    alone = methods.load("single")()
    alone.setup(mesh, kernels.load("reference"), causal=True)
    method.alone = alone
    assert _failed(_checked(mesh, method, cell)) == {"dv"}
    assert _checked(mesh, methods.load("ring")(), cell).ok


NO_ANSWERS: dict[str, tuple[str, Any, str]] = {
    "no out": ("attend", lambda *_: (None, torch.ones(1)), "gives (None, a Tensor): return (out, lse), 2"),
    "nothing": ("attend", lambda *_: None, "attend() of single gives None: return (out, lse), 2 tensors"),
    "no lse": ("attend", lambda q, *_: q, "gives a Tensor: return (out, lse), 2 tensors"),
    "no dv": ("gradients", lambda dout, q, k, *_: (q, k), "(a Tensor, a Tensor): return (dq, dk, dv), 3"),
    "no output": ("forward", lambda *_: None, "single gave None as its output: return a tensor"),
    "detached": (
        "forward",
        lambda q, *_: q.detach(),
        "gave an output that has no gradient: its forward must",
    ),
}


@pytest.mark.parametrize("case", NO_ANSWERS)
def test_what_a_method_should_return_is_told_in_words(case: str) -> None:
    name, wrong, says = NO_ANSWERS[case]
    mesh = Mesh(1, 1, 0, torch.device("cpu"))
    method = methods.load("single")()
    setattr(method, name, wrong)
    with pytest.raises((TypeError, check.NoAnswerError)) as told:
        _checked(mesh, method, _cell("single", mesh, 64))
    assert says in str(told.value)


def _tiny_bounds(mesh: Mesh) -> dict[tuple[int, str, str], list[str]]:
    """Of every tiny bound why it is refused, or the verdicts on it."""
    told: dict[tuple[int, str, str], list[str]] = {}
    for seqlen, phase, mask in itertools.product(range(1, 10), ("fwd", "fwd_bwd"), ("causal", "full")):
        shape = Shape(1, 2, 2, 16, "fp32", mask)  # type: ignore[arg-type]
        cell, alone = _cell("single", mesh, seqlen, shape, phase), methods.load("single")()
        reason = alone.unsupported(cell)
        seeds = range(0 if reason else 4)
        verdicts = ["ok" if _checked(mesh, alone, cell, seed).ok else "wrong" for seed in seeds]
        told[seqlen, phase, mask] = [reason] if reason else verdicts
    return told


def test_a_bound_too_short_for_its_ranks_is_refused_and_every_other_is_right() -> None:
    for (seqlen, phase, mask), told in run_world(4, _tiny_bounds)[0].items():
        least = 4 if phase == "fwd" else 8
        if seqlen >= least:
            assert told == ["ok"] * 4, (seqlen, phase, mask)
        else:
            assert f"seqlen_global {seqlen} over 4 ranks" in told[0]
            assert told[0].endswith(f"take {least} or more")
