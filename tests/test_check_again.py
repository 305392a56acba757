"""The check after the clock: what was timed is what was checked, and rows that no sample saw count as well.

Every method here is right when it is checked first, at a length where a few rows are sampled.
"""

from __future__ import annotations

import gc
import itertools
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from ringmark import kernels, methods
from ringmark.bench import check, measure
from ringmark.bench.progress import Reporter
from ringmark.cell import Cell, MeshShape, Shape
from ringmark.comm.mesh import Mesh
from ringmark.job import Item
from ringmark.methods.base import Method
from ringmark.record import Asked, Record, Status
from world import run_world

FP32 = Shape(1, 2, 2, 16, "fp32", "causal")
SEQLEN = 2048
QUICK = Asked(min_iterations=1, max_iterations=1)
BURST = methods.load("burst")


class _ZerosFromTheSecondCall(BURST):  # type: ignore[valid-type, misc]
    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        self.calls = getattr(self, "calls", 0) + 1
        return super().forward(*tensors) * float(self.calls == 1)


class _KeepsItsAnswer(BURST):  # type: ignore[valid-type, misc]
    """As fast as can be: the numbers of a timing are always the same."""

    def attend(self, *tensors: Any) -> Any:
        if not hasattr(self, "kept"):
            self.kept = super().attend(*tensors)
        return self.kept


def _losing(number: int) -> type[Method]:
    class Loses(BURST):  # type: ignore[valid-type, misc]
        """Rows that are not sampled, a sixteenth of them all, are never written: of out, dq, dk or dv."""

        def attend(self, q: torch.Tensor, *rest: Any) -> Any:
            out, lse = super().attend(q, *rest)
            return (self._lost(out), lse) if number == 0 else (out, lse)

        def gradients(self, *tensors: Any) -> Any:
            grads = list(super().gradients(*tensors))
            dense = bool((tensors[0].norm(dim=-1) > 0).all())  # else it is a check's
            if number and dense:
                grads[number - 1] = self._lost(grads[number - 1])
            return tuple(grads)

        def _lost(self, tensor: torch.Tensor) -> torch.Tensor:
            rows, tensor = tensor.shape[1], tensor.clone()
            sampled = [check._sample(rows, self.mesh, numbers).tolist() for numbers in ("0", "0.1")]
            tile = range(rows // 2, rows // 2 + rows // 8)
            lost = [row for row in tile if row not in itertools.chain(*sampled)]
            if self.mesh.rank == 1:
                tensor[:, lost] = 0
            return tensor

    return Loses


def _dense(change: Callable[[list[torch.Tensor], Mesh], None]) -> type[Method]:
    class WrongWhereDoutIsDense(BURST):  # type: ignore[valid-type, misc]
        """Right for the check's dout, which is zero but for some rows."""

        def gradients(self, *tensors: Any) -> Any:
            grads = [grad.clone() for grad in super().gradients(*tensors)]
            if bool((tensors[0].norm(dim=-1) > 0).all()):
                change(grads, self.mesh)
            return tuple(grads)

    return WrongWhereDoutIsDense


def _scale(factor: float) -> Callable[[list[torch.Tensor], Mesh], None]:
    def change(grads: list[torch.Tensor], mesh: Mesh) -> None:
        grads[0] *= factor
        grads[1] *= factor

    return change


def _a_little(grads: list[torch.Tensor], mesh: Mesh) -> None:
    grads[1] *= 1 + 1e-3


def _put(number: int, value: float) -> Callable[[list[torch.Tensor], Mesh], None]:
    def change(grads: list[torch.Tensor], mesh: Mesh) -> None:
        if mesh.rank == 1:
            grads[number][0, 77, 1, 3] = value

    return change


class _HalvesItsGradient(BURST):  # type: ignore[valid-type, misc]
    def gradients(self, dout: torch.Tensor, *tensors: Any) -> Any:
        grads = super().gradients(dout, *tensors)
        self.calls = getattr(self, "calls", 0) + 1
        if self.calls > 1:
            dout.mul_(0.5)
        return grads


class _TurnsItsQueries(BURST):  # type: ignore[valid-type, misc]
    """The same numbers in other places."""

    def gradients(self, dout: torch.Tensor, q: torch.Tensor, *tensors: Any) -> Any:
        grads = super().gradients(dout, q, *tensors)
        with torch.no_grad():
            q.detach().copy_(q.detach().flip(1))
        return grads


class _TakesAnotherScale(BURST):  # type: ignore[valid-type, misc]
    def setup(self, mesh: Mesh, kernel: Any, **asked: Any) -> None:
        super().setup(mesh, kernel, **{**asked, "scale": 1e-9})


class _RestsWhileItIsTimed(BURST):  # type: ignore[valid-type, misc]
    """Python's garbage collector is off then."""

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        return super().forward(*tensors) * float(gc.isenabled())


class _RestsBetweenTheChecks(BURST):  # type: ignore[valid-type, misc]
    """From its third call on, for as many as a timing makes."""

    factor = 0.0

    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        self.calls = getattr(self, "calls", 0) + 1
        timed = 3 + QUICK.warmup + QUICK.max_iterations  # after a check and a first call
        return super().forward(*tensors) * (self.factor if 3 <= self.calls < timed else 1.0)


class _MissesKeysInAFewRows(BURST):  # type: ignore[valid-type, misc]
    """Eight rows that no sample has see the keys of their own rank alone."""

    def attend(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float) -> Any:
        out, lse = super().attend(q, k, v, scale)
        sampled = {
            row for draw in ("0", "0.1") for row in check._sample(q.shape[1], self.mesh, draw).tolist()
        }
        lost = [row for row in range(q.shape[1] // 2 + 1, q.shape[1]) if row not in sampled][:8]
        if self.mesh.rank == 1:
            for row in lost:
                keys = slice(0, row + 1)
                part = self.kernel.forward(q[:, row : row + 1], k[:, keys], v[:, keys], scale, False)[0]
                out[:, row : row + 1] = part
        return out, lse


class _IsALittleOffWhereKeysWeighAlike(BURST):  # type: ignore[valid-type, misc]
    """One row, by two in ten thousand."""

    def attend(self, q: torch.Tensor, *rest: Any) -> Any:
        out, lse = super().attend(q, *rest)
        if self.mesh.rank == 1 and not bool(q.any()):
            out[:, 77] *= 1 + 2e-4
        return out, lse


class _IsALittleOffWhileItIsTimed(_RestsBetweenTheChecks):
    factor = 1 + 2e-4


class _GivesTwice(BURST):  # type: ignore[valid-type, misc]
    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        return torch.cat([super().forward(*tensors)] * 2, 1)


class _GivesWide(BURST):  # type: ignore[valid-type, misc]
    def forward(self, *tensors: torch.Tensor) -> torch.Tensor:
        return super().forward(*tensors).double()


class _IsTheBoundInDisguise(methods.load("single")):  # type: ignore[valid-type, misc]
    """A method that resembles the bound has everybody's problem all the same."""


FAULTS: dict[str, Callable[[], type[Method]]] = {
    "zeros from the second call": lambda: _ZerosFromTheSecondCall,
    "keeps its first answer": lambda: _KeepsItsAnswer,
    "loses rows of out": lambda: _losing(0),
    "loses rows of dq": lambda: _losing(1),
    "loses rows of dk": lambda: _losing(2),
    "loses rows of dv": lambda: _losing(3),
    "has no dq and no dk": lambda: _dense(_scale(0.0)),
    "halves dq and dk": lambda: _dense(_scale(0.5)),
    "has an inf in dk": lambda: _dense(_put(1, float("inf"))),
    "has a nan in dv": lambda: _dense(_put(2, float("nan"))),
    "halves its dout": lambda: _HalvesItsGradient,
    "turns its queries": lambda: _TurnsItsQueries,
    "takes another scale": lambda: _TakesAnotherScale,
    "rests while it is timed": lambda: _RestsWhileItIsTimed,
    "rests between the checks": lambda: _RestsBetweenTheChecks,
    "is a little off where keys weigh alike": lambda: _IsALittleOffWhereKeysWeighAlike,
    "is a little off while it is timed": lambda: _IsALittleOffWhileItIsTimed,
    "is a little off where dout is dense": lambda: _dense(_a_little),
    "is the bound in disguise": lambda: _IsTheBoundInDisguise,
    "gives twice": lambda: _GivesTwice,
    "gives wide": lambda: _GivesWide,
}
REFERENCE = type(kernels.load("reference"))


class _WrongScale(REFERENCE):  # type: ignore[valid-type, misc]
    def forward(self, q: Any, k: Any, v: Any, scale: float, causal: bool) -> Any:
        return super().forward(q, k, v, 1.25 * scale, causal)


class _NoMask(REFERENCE):  # type: ignore[valid-type, misc]
    def forward(self, q: Any, k: Any, v: Any, scale: float, causal: bool) -> Any:
        return super().forward(q, k, v, scale, False)


class _NoGradients(REFERENCE):  # type: ignore[valid-type, misc]
    def backward(self, *tensors: Any, **named: Any) -> Any:
        return tuple(torch.zeros_like(grad) for grad in super().backward(*tensors, **named))


class _Swapped(REFERENCE):  # type: ignore[valid-type, misc]
    def backward(self, *tensors: Any, **named: Any) -> Any:
        dq, dk, dv = super().backward(*tensors, **named)
        return dq, dv, dk


BROKEN = {kernel.__name__: kernel for kernel in (_WrongScale, _NoMask, _NoGradients, _Swapped)}
HEALTHY = [
    Cell("burst", SEQLEN, FP32, mesh=MeshShape(1, 2), kernel="reference"),
    Cell("single", SEQLEN, FP32, mesh=MeshShape(1, 2), kernel="reference"),
    Cell("ulysses", SEQLEN, Shape(2, 4, 2, 16, "bf16", "full"), mesh=MeshShape(1, 2), kernel="reference"),
    Cell("ring", SEQLEN, FP32, "fwd", mesh=MeshShape(1, 2), kernel="reference"),
    Cell("stripe", 256, Shape(1, 4, 1, 16, "bf16", "causal"), mesh=MeshShape(1, 2), kernel="reference"),
]
# Few rows, many numbers: a row that sees two keys is ill-conditioned, however wide its head is.
HEALTHY += [
    Cell(
        "burst",
        seqlen,
        Shape(batch, 4, 4, head_dim, dtype, "causal"),
        mesh=MeshShape(1, 2),
        kernel="reference",
    )
    for dtype in ("bf16", "fp16")
    for batch, head_dim, seqlen in ((4, 128, 8), (1, 256, 16), (2, 128, 32))
]


def _measured(cell: Cell, mesh: Mesh, folder: Path, asked: Asked = QUICK) -> Record:
    item = Item(cell, asked, str(folder / "out.json"))
    return measure.measure_cell(item, "test", mesh, Reporter(folder, "run", mesh.rank), "run", 0, {})


def _all_of_it(mesh: Mesh, folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = {cell.key: _measured(cell, mesh, folder) for cell in HEALTHY}
    found["short"] = [
        _measured(cell, mesh, folder, replace(QUICK, seed=seed)).failure
        for cell in HEALTHY[-6:]
        for seed in range(8)
    ]
    for name, fault in FAULTS.items():
        with mock.patch.object(methods, "load", lambda _, fault=fault: fault()):
            try:
                found[name] = _measured(HEALTHY[0], mesh, folder)
            except (check.InputsChangedError, check.NoAnswerError) as error:
                found[name] = str(error)
    with mock.patch.object(methods, "load", return_value=_MissesKeysInAFewRows):
        found["misses keys"] = _measured(replace(HEALTHY[0], phase="fwd"), mesh, folder)
    for name, kernel in BROKEN.items():
        with mock.patch.object(kernels, "select", lambda *_, kernel=kernel: kernel()):
            found[name] = _measured(HEALTHY[0], mesh, folder)
    return found


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    both = run_world(2, _all_of_it, tmp_path_factory.mktemp("cells"), timeout_s=1200)
    assert {name: getattr(one, "status", one) for name, one in both[0].items()} == {
        name: getattr(one, "status", one) for name, one in both[1].items()
    }
    return both[0]


@pytest.mark.parametrize("cell", HEALTHY, ids=lambda cell: cell.key)
def test_a_healthy_cell_is_checked_before_and_after(cell: Cell, found: dict[str, Any]) -> None:
    one = found[cell.key]
    assert one.status is Status.PASSED, one.failure
    again = one.check.again
    assert set(again.errors) == set(one.check.errors)
    assert set(again.balance) == ({"dout.out - dv.v", "dq.q - dk.k"} if cell.phase == "fwd_bwd" else set())
    assert again.errors["out"].relative_error != one.check.errors["out"].relative_error, "other numbers"
    assert all(sums.gap < 0.6 * sums.allowed for sums in again.balance.values()), again.balance
    assert again.uniform.error < 0.5 * again.uniform.allowed
    assert one.check.uniform is None
    assert (again.timed is None) == (cell.phase == "fwd")
    assert again.timed is None or again.timed.gap == 0.0, "the same bits on a CPU"


def test_a_short_sequence_of_16_bits_raises_no_alarm(found: dict[str, Any]) -> None:
    assert [failure.reason for failure in found["short"] if failure] == []


@pytest.mark.parametrize(
    ("fault", "betrayed"),
    [
        ("zeros from the second call", "out is off by"),
        ("keeps its first answer", "out is off by"),
        ("loses rows of out", "dout.out - dv.v is"),
        ("loses rows of dq", "dq.q - dk.k is"),
        ("loses rows of dk", "dq.q - dk.k is"),
        ("loses rows of dv", "dout.out - dv.v is"),
        ("has no dq and no dk", "dq is off by"),
        ("halves dq and dk", "dq is off by"),
        ("has an inf in dk", "1 of its elements are no numbers"),
        ("has a nan in dv", "1 of its elements are no numbers"),
        ("rests while it is timed", "out is off by"),
        ("rests between the checks", "the last timed iteration left gradients that differ by 1.00e+00"),
        ("is a little off where keys weigh alike", "where all keys weigh alike a row of out is off by 2."),
        (
            "is a little off while it is timed",
            "the last timed iteration left gradients that differ by 2.00e-04",
        ),
        ("is a little off where dout is dense", "dq.q - dk.k is"),
        ("misses keys", "where all keys weigh alike a row of out is off by"),
    ],
)
def test_a_method_that_is_right_only_when_it_is_looked_at_is_wrong(
    fault: str, betrayed: str, found: dict[str, Any]
) -> None:
    one = found[fault]
    assert one.status is Status.WRONG
    assert one.timing is None, "no time without a right answer, also where the time was there first"
    assert one.failure.stage == "check again"
    assert betrayed in one.failure.reason
    assert all(error.ok for error in one.check.errors.values())


@pytest.mark.parametrize("fault", ["takes another scale", "is the bound in disguise"])
def test_the_cell_says_what_is_solved_and_not_the_method(fault: str, found: dict[str, Any]) -> None:
    assert found[fault].status is Status.WRONG
    assert found[fault].failure.stage == "check"


@pytest.mark.parametrize(
    ("fault", "told"),
    [("gives twice", "of shape (1, 2048, 2, 16)"), ("gives wide", "in torch.float64: its q")],
)
def test_an_output_has_the_shape_and_dtype_of_its_queries(
    fault: str, told: str, found: dict[str, Any]
) -> None:
    assert told in found[fault]


@pytest.mark.parametrize(("fault", "named"), [("halves its dout", "dout"), ("turns its queries", "q")])
def test_a_method_that_writes_into_its_inputs_while_it_is_timed_is_told_so(
    fault: str, named: str, found: dict[str, Any]
) -> None:
    assert f"wrote into its input {named}: inputs must stay" in found[fault]


@pytest.mark.parametrize("kernel", BROKEN)
def test_a_broken_kernel_is_no_measure_of_the_method_that_uses_it(kernel: str, found: dict[str, Any]) -> None:
    """Twice its own error would allow anything: the method's error is the kernel's."""
    one = found[kernel]
    assert one.status is Status.WRONG
    assert "nothing is allowed: the kernel alone is off by" in one.failure.reason
