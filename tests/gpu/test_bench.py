"""The measuring core on a real GPU: clock, inputs, check, memory, profile, environment, and real failures.

    python -m pytest tests/gpu/test_bench.py
    RINGMARK_REPORT=folder ...     also writes folder/bench.json: what the check costs, how launches agree

Worlds of several ranks need as many GPUs; what is not here is skipped with its reason.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from ringmark import flops, kernels, methods, record, supervise  # noqa: E402
from ringmark import job as jobs  # noqa: E402
from ringmark.bench import check, environment, memory, preflight, problem, profile, timer  # noqa: E402
from ringmark.cell import Cell, MeshShape, Shape  # noqa: E402
from ringmark.comm.mesh import Mesh  # noqa: E402
from ringmark.record import Asked, Status  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
GPUS = torch.cuda.device_count()
CUDA = torch.device("cuda", 0)
ALONE = Mesh(1, 1, 0, CUDA)
SHAPE = Shape(1, 8, 8, 128, "bf16", "causal")
TEN = Asked(min_iterations=10, max_iterations=10)
REPORT: dict[str, Any] = {}


@pytest.fixture(scope="module", autouse=True)
def _report():
    yield
    if "RINGMARK_REPORT" in os.environ:
        folder = Path(os.environ["RINGMARK_REPORT"])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "bench.json").write_text(json.dumps(REPORT, indent=1))


def _ready(cell: Cell, method: Any = None) -> tuple[Any, Any, Any]:
    method, kernel = method or methods.load(cell.method)(), kernels.select("auto", cell.shape, CUDA)
    method.setup(ALONE, kernel, causal=cell.shape.causal)
    return method, kernel, problem.make(cell, method, ALONE, "0", CUDA)


def _body(method: Any, inputs: Any) -> Any:
    def body() -> None:
        inputs.clear_grads()
        method.forward(inputs.q, inputs.k, inputs.v).backward(inputs.dout)

    return body


def _spin(ms: float) -> Any:
    """A kernel that keeps the device busy for about so long."""
    cycles = int(ms * 1e-3 * 1.8e9)
    return lambda: torch.cuda._sleep(cycles)


def test_inputs_are_those_of_a_cpu() -> None:
    cell = Cell("zigzag", 4096, Shape(2, 4, 2, 64, "fp32", "causal"), mesh=MeshShape(2, 2))
    method = methods.load("zigzag")()
    for rank in (0, 3):
        here, there = (
            problem.make(cell, method, Mesh(2, 2, rank, device), "5", device)
            for device in (CUDA, torch.device("cpu"))
        )
        for name in ("q", "k", "v", "dout"):
            torch.testing.assert_close(getattr(here, name).cpu(), getattr(there, name), rtol=1e-5, atol=1e-5)


def test_events_and_wall_clock_agree_on_work_of_the_stream() -> None:
    for protocol in ("isolated", "pipelined"):
        series = timer.measure(_spin(20.0), ALONE, protocol, TEN)  # type: ignore[arg-type]
        assert series.clock == "cuda_events"
        assert series.flags == []
        assert series.clock_disagreement < 0.02
        assert 15 < series.summary.median < 40
    REPORT["floor_ms"] = timer.floor_ms(ALONE)
    assert 0 < REPORT["floor_ms"] < 0.2


def test_work_that_escapes_to_another_stream_is_flagged() -> None:
    side, spin = torch.cuda.Stream(), _spin(20.0)

    def escapes() -> None:
        with torch.cuda.stream(side):
            spin()

    series = timer.measure(escapes, ALONE, "isolated", TEN)
    assert series.summary.median < 1.0
    assert series.flags == ["clocks_disagree"]


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("mask", ["causal", "full"])
def test_a_healthy_kernel_passes_its_check(dtype: Any, mask: Any) -> None:
    for seqlen in (384, 16384):
        cell = Cell("single", seqlen, Shape(1, 8, 2, 128, dtype, mask))
        method, kernel, inputs = _ready(cell)
        before = inputs.dout.clone()
        found = check.check(cell, method, kernel, inputs, ALONE)
        assert found.ok, (seqlen, found.errors)
        assert torch.equal(inputs.dout, before)
        REPORT.setdefault("check", {})[cell.key] = {
            name: [error.relative_error, error.allowed] for name, error in found.errors.items()
        }


def test_one_half_block_off_is_wrong_at_the_measured_size() -> None:
    real = methods.load("single")

    class Off(real):
        def attend(self, *args):
            out, lse = super().attend(*args)
            out[:, out.shape[1] // 2 :, 3] *= 1.02
            return out, lse

    cell = Cell("single", 65536, SHAPE)
    method, kernel, inputs = _ready(cell, Off())
    found = check.check(cell, method, kernel, inputs, ALONE)
    assert not found.errors["out"].ok


def test_the_check_costs_little_beside_the_cell() -> None:
    cell = Cell("single", 65536, SHAPE)
    method, kernel, inputs = _ready(cell)
    body = _body(method, inputs)
    check.check(cell, method, kernel, inputs, ALONE)  # compilation, autotuning
    found = check.check(cell, method, kernel, inputs, ALONE)
    iteration_ms = timer.measure(body, ALONE, "isolated", TEN).summary.median
    cell_ms = iteration_ms * (1 + TEN.warmup + 10)
    REPORT["check_cost"] = {"check_ms": found.check_ms, "iteration_ms": iteration_ms, "cell_ms": cell_ms}
    # The method's own iteration is in it: a cell runs it fourteen times.
    assert found.check_ms - iteration_ms < 0.1 * cell_ms


def test_memory_is_the_allocators_peak_without_the_inputs() -> None:
    cell = Cell("single", 4096, SHAPE)
    _, _, inputs = _ready(cell)
    used = memory.measure(lambda: torch.empty(256 << 20, dtype=torch.uint8, device=CUDA), inputs, ALONE)
    assert used.source == "cuda_allocator"
    assert used.inputs_mib == 4 * 4096 * 8 * 128 * 2 / 2**20
    assert used.peak_above_inputs_mib >= 256
    assert used.peak_mib == pytest.approx(used.peak_above_inputs_mib + used.inputs_mib)
    assert used.device_used_mib is not None
    assert used.device_used_mib >= used.peak_mib


def test_a_profile_finds_the_attention_kernels(tmp_path: Path) -> None:
    cell = Cell("single", 16384, SHAPE)
    method, _, inputs = _ready(cell)
    found = profile.profile(_body(method, inputs), ALONE, str(tmp_path / "a.json"))
    rank = found["ranks"][0]
    REPORT["profile"] = {**rank, "top": found["top"][:6]}
    assert rank["attention_ms"] > 0.6 * rank["span_ms"]
    assert rank["send_recv_ms"] == 0
    assert (tmp_path / found["trace"]).stat().st_size > 1000


def test_the_environment_names_the_gpu_and_its_state() -> None:
    found = environment.collect(ALONE)
    gpu = found["nodes"][0]["ranks"][0]["gpu"]
    REPORT["environment"] = found
    assert gpu["name"] == torch.cuda.get_device_name()
    assert isinstance(gpu["uuid"], str)
    assert isinstance(found["nodes"][0]["cuda"], str)
    json.dumps(found, allow_nan=False)


def test_preflight_on_one_gpu() -> None:
    found = preflight.measure(ALONE)
    REPORT["preflight"] = found
    peak = flops.peak_tflops(torch.cuda.get_device_name(), "bf16")
    if peak is not None:
        assert 0.4 * peak.tflops < found["slowest"]["matmul_tflops"] < peak.tflops
    assert found["slowest"]["copy_gb_per_s"] > 100


def _job(cells: list[Cell], folder: Path, asked: Asked = TEN) -> list[record.Record]:
    items = [jobs.Item(cell, asked, str(folder / record.record_path(cell, asked.repeat))) for cell in cells]
    made = jobs.Job("gpu", "gpu", cells[0].mesh, items, str(folder / "job"), device="cuda", cell_limit_s=120)
    jobs.save(made, folder / "gpu.job.json")
    return supervise.run(made, folder / "gpu.job.json")


def test_a_cell_too_large_for_the_gpu_is_oom_and_the_next_one_is_measured(tmp_path: Path) -> None:
    large, small = Cell("single", 1 << 20, Shape(1, 1024, 1024, 128, "bf16")), Cell("single", 8192, SHAPE)
    first, second = _job([large, small], tmp_path)
    assert first.status is Status.OOM
    assert first.failure is not None
    assert first.failure.rank == 0
    assert "out of memory" in first.failure.reason
    assert second.status is Status.PASSED


def test_two_launches_agree(tmp_path: Path) -> None:
    """Their intervals overlap, each taken at least one percent wide: clocks differ from launch to launch."""
    cell = Cell("zigzag" if GPUS > 1 else "single", 65536, SHAPE, mesh=MeshShape(1, min(GPUS, 8)))
    asked = Asked(min_iterations=20, max_iterations=50, ci_target=0.005)
    told = []
    for launch in ("first", "second"):
        found = _job([cell], tmp_path / launch, asked)[0]
        assert found.status is Status.PASSED, found.failure
        assert found.timing is not None
        told.append(found.timing.headline.summary)
    REPORT["launches"] = [[one.ci_low, one.median, one.ci_high] for one in told]
    low, high = sorted(told, key=lambda one: one.median)
    assert max(low.ci_high, low.median * 1.01) >= min(high.ci_low, high.median * 0.99)


def test_planted_faults_end_as_they_must(tmp_path: Path) -> None:
    path = Path(__file__).parents[1] / "faults" / "inject.py"
    spec = importlib.util.spec_from_file_location("inject", path)
    assert spec is not None
    assert spec.loader is not None
    inject = importlib.util.module_from_spec(spec)
    sys.modules["inject"] = inject
    spec.loader.exec_module(inject)
    ranks = min(GPUS, 4)
    kinds = ["exception", "device_memory", "kill", "wrong_answer"] + (["stop"] if ranks > 1 else ["hang"])
    faults = inject.draw(len(kinds), ranks, 1, kinds, "cuda")
    assert inject.run(faults, ranks, tmp_path, print, "cuda") == []
