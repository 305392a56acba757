"""Valid records with made-up numbers, for the tests of tables and for their speed benchmark."""

from __future__ import annotations

import dataclasses
import math
import random
from itertools import count, product
from pathlib import Path
from typing import Any

from ringmark import catalog, record, stats, tolerance
from ringmark.campaign_alone import inputs_and_results_mib
from ringmark.cell import PHASES, Cell, MeshShape, Shape
from ringmark.flops import cell_flops, tflops_per_gpu

SMALL = Shape(1, 4, 4, 64, "fp32", "causal")
PAPER = Shape(1, 40, 40, 128, "bf16", "causal")
LABELS = {"single": "One GPU alone", "ring": "Ring", "burst": "BurstAttention", "usp": "USP"}
SPEED = {"single": 1.0, "burst": 0.97, "usp": 0.9, "double_ring": 0.88, "zigzag": 0.8, "ring": 0.55}


def environment(mesh: MeshShape, device: str = "Example CPU") -> dict[str, Any]:
    """What a record says of the machine: every rank with its GPU, or without one."""
    on_gpu = device.startswith("NVIDIA")
    none = {"value": None, "reason": "the device is a CPU"}

    def gpu(rank: int) -> dict[str, Any]:
        modes = {"power_limit_w": 700.0, "clock_sm_max_mhz": 1980, "ecc_mode": [1, 1], "mig_mode": [0, 0]}
        return {"name": device, "uuid": f"uuid-{rank}", **modes} if on_gpu else none

    state = {"gpu": {"throttle_reasons": []} if on_gpu else none, "load_1min": 0.5}
    ranks = [{"rank": rank, "gpu": gpu(rank)} for rank in range(mesh.world_size)]
    firsts = range(0, mesh.world_size, mesh.gpus)
    node = {"cpu": "Example CPU", "driver": none}
    nodes = [{**node, "hostname": f"n{first}", "ranks": ranks[first : first + mesh.gpus]} for first in firsts]
    return {
        "nodes": nodes,
        "source": {"version": "0.1.0", "git_commit": "0123456789" * 4, "git_dirty": False},
        "before": {"ranks": [state] * mesh.world_size},
        "after": {"ranks": [state] * mesh.world_size},
    }


def device_of(cell: Cell) -> str:
    return "NVIDIA H200" if cell.shape.dtype == "bf16" else "Example CPU"


def samples(rng: random.Random, typical_ms: float, ranks: int, iterations: int) -> list[list[float]]:
    return [[typical_ms * (1 + abs(rng.gauss(0, 0.004))) for _ in range(iterations)] for _ in range(ranks)]


def series(
    rng: random.Random, typical_ms: float, ranks: int, iterations: int, clock: Any = "cuda_events"
) -> record.Series:
    measured = samples(rng, typical_ms, ranks, iterations)
    walls = [[value * 1.001 for value in rank] for rank in measured]
    return record.Series(
        samples_ms=measured,
        wall_ms=walls,
        summary=stats.summarize(stats.slowest_per_iteration(measured)),
        stopped_by="ci_target",
        clock=clock,
        clock_disagreement=stats.clock_disagreement(measured, walls)[0],
    )


def _ran(
    cell: Cell, kernel: str, run_id: str, order: int, label: str, settings: dict[str, Any]
) -> record.Ran:
    return record.Ran(
        run_id=run_id,
        order=order,
        kernel=kernel,
        kernel_version="2.7.4.post1" if kernel == "flash2" else "2.13.0",
        layout="zigzag",
        opt_bwd=True if cell.method == "burst" else None,
        deterministic=False,
        device=device_of(cell),
        backend="nccl" if cell.shape.dtype == "bf16" else "gloo",
        transport="send_recv",
        world_size=cell.world_size,
        bytes_sent_intra=1 << 20,
        bytes_sent_inter=1 << 18,
        started_at="2026-11-01T10:00:00Z",
        settings=settings,
        label=label,
        implementation="ringmark" if cell.method in catalog.native_names() else "somebody-else 1.0",
    )


def make(
    cell: Cell,
    *,
    campaign: str = "made",
    status: record.Status = record.Status.PASSED,
    repeat: int = 0,
    rng: random.Random | None = None,
    median_ms: float | None = None,
    kernel: str | None = None,
    run_id: str = "run0",
    iterations: int = 12,
    profile: bool = False,
    label: str | None = None,
    settings: dict[str, Any] | None = None,
    reason: str = "the cell needs 9000 MiB and 8000 are there",
    order: int | None = None,
) -> record.Record:
    """A record of `cell`, valid under the status law; a passed one has timings near `median_ms`."""
    rng = rng or random.Random(f"{cell.key}.{repeat}")
    kernel = kernel or (cell.kernel if cell.kernel != "auto" else "reference")
    common: dict[str, Any] = {
        "cell": cell,
        "asked": record.Asked(repeat=repeat, seed=7, profile=profile),
        "status": status,
        "campaign": campaign,
        "environment": environment(cell.mesh, device_of(cell)),
    }
    title = label or LABELS.get(cell.method, cell.method)
    order = next(_ORDER) if order is None else order
    ran = _ran(cell, kernel, run_id, order, title, settings or {})
    if status is record.Status.PASSED:
        measured = _measured(cell, rng, iterations, median_ms)
        profiled = _profile(cell, measured["timing"].headline.summary.median) if profile else None
        return record.Record(**common, ran=ran, **measured, profile=profiled)
    failure = record.Failure(reason=reason, rank=1, stage="timing")
    if status is record.Status.WRONG:
        return record.Record(**common, ran=ran, check=_checked(cell, 300.0), failure=failure)
    started = status not in (record.Status.UNAVAILABLE, record.Status.UNSUPPORTED)
    return record.Record(**common, ran=ran if started else None, failure=failure)


def _profile(cell: Cell, typical_ms: float) -> dict[str, Any]:
    """PROFILE in an iteration of so many ms, with a row for every rank."""
    rows = [PROFILE["ranks"][rank % 2] for rank in range(cell.world_size)]
    scaled = [{name: value * typical_ms / 100.0 for name, value in row.items()} for row in rows]
    return {**PROFILE, "ranks": scaled}


OWN_ERROR = {"fp64": 1e-15, "fp32": 9e-7, "bf16": 2.5e-3, "fp16": 3e-4}


def _checked(cell: Cell, times_the_kernel: float) -> record.Check:
    """A check of an answer that is so many times as wrong as the kernel alone."""
    seqlen, world_size = cell.seqlen_global, cell.world_size
    private = cell.method == "single" and world_size > 1
    rows = {"out": seqlen, "dq": seqlen, "dk": seqlen, "dv": seqlen}
    if private:
        rows["dk"] = rows["dv"] = world_size * seqlen // 2
    looked_at = world_size * tolerance.rows_checked(seqlen // world_size, world_size)
    errors = {}
    for name in ["out"] if cell.phase == "fwd" else rows:
        dtype, own = cell.shape.dtype, OWN_ERROR[cell.shape.dtype]
        errors[name] = record.TensorError(
            own * times_the_kernel,
            own,
            tolerance.allowed(own, dtype, rows[name]),
            looked_at if name in ("out", "dq") else rows[name],
            rows[name],
            0,
        )
    return record.Check(errors, "float64", 3.0)


def _checked_twice(cell: Cell, times_the_kernel: float) -> record.Check:
    """The same before the timing and after it, with sums that agree."""
    first = _checked(cell, times_the_kernel)
    balance = {}
    for name, sides in tolerance.BALANCES.items():
        if cell.phase == "fwd_bwd":
            allowed = tolerance.balance_allowed(*(first.errors[side].allowed for side in sides))
            balance[name] = record.Balance(0.3 * allowed, allowed)
    alike = tolerance.uniform_allowed(cell.shape.dtype)
    uniform = record.Uniform(0.3 * alike, alike, 0)
    timed = None
    if cell.phase == "fwd_bwd":
        allowed = tolerance.timed_allowed(*(first.errors[name].allowed for name in ("dq", "dk", "dv")))
        timed = record.Balance(0.1 * allowed, allowed)
    again = dataclasses.replace(first, balance=balance, uniform=uniform, timed=timed)
    return dataclasses.replace(first, again=again)


def _measured(cell: Cell, rng: random.Random, iterations: int, median_ms: float | None) -> dict[str, Any]:
    flops = cell_flops(cell)
    rate = (600.0 if cell.shape.dtype == "bf16" else 0.02) * SPEED.get(cell.method, 0.7)
    typical_ms = median_ms or flops / cell.world_size / (rate * 1e12) * 1e3 + 0.2
    clock = "cuda_events" if cell.shape.dtype == "bf16" else "monotonic"
    headline = series(rng, typical_ms, cell.world_size, iterations, clock)
    peak = rng.uniform(800, 900) * math.sqrt(cell.seqlen_global / 4096)
    return {
        "timing": record.Timing(
            first_call_ms=typical_ms * 9,
            floor_ms=0.01,
            series={"isolated": headline},
            tflops_per_gpu=tflops_per_gpu(flops, headline.summary.median, cell.world_size),
        ),
        "check": _checked_twice(cell, 1.1),
        "memory": _memory(cell, peak),
    }


def _memory(cell: Cell, above_mib: float) -> record.Memory:
    """So much above the inputs; a CPU's resident set has the process beside them."""
    on_cuda = cell.shape.dtype == "bf16"
    inputs, _ = inputs_and_results_mib(cell)
    peak = above_mib + inputs + (0 if on_cuda else 200)
    above = peak - inputs if on_cuda else above_mib
    source: Any = "cuda_allocator" if on_cuda else "resident_set"
    return record.Memory(above, peak, inputs, None, [peak] * cell.world_size, source)


_ORDER = count()  # no two records are one step of one run
PROFILE: dict[str, Any] = {
    "ranks": [
        {
            **{"span_ms": span, "attention_ms": 70.0, "send_recv_ms": 40.0, "merge_ms": 6.0, "other_ms": 4.0},
            **{
                "compute_busy_ms": 80.0,
                "comm_busy_ms": 40.0,
                "exposed_comm_ms": 12.0,
                "idle_ms": span - 92.0,
            },
        }
        for span in (98.0, 100.0)
    ],
    "top": [{"name": "flash_bwd", "kind": "attention", "calls": 4, "time_ms": 50.0, "share": 0.42}],
    "trace": "trace.json.gz",
}


def grid(campaign: str = "made") -> list[record.Record]:
    """A small campaign with every status, two repeats of one cell, and a profile."""
    mesh = MeshShape(2, 2)
    statuses = list(record.Status)
    made = []
    for method in ("single", "burst", "ring", "usp"):
        for seqlen in (512, 1024, 2048):
            for phase in ("fwd", "fwd_bwd"):
                options = {"placement": "head_first", "ulysses": 2} if method == "usp" else {}
                cell = Cell(method, seqlen, SMALL, phase, mesh, "auto", options)  # type: ignore[arg-type]
                status = record.Status.OOM if (method, seqlen) == ("usp", 2048) else record.Status.PASSED
                made.append(make(cell, campaign=campaign, status=status, profile=seqlen == 2048))
    made.append(make(Cell("ring", 512, SMALL, "fwd", mesh, "auto"), campaign=campaign, repeat=1))
    for status in statuses[1:]:
        cell = Cell("zigzag", 256 * 3 ** statuses.index(status), SMALL, "fwd", mesh, "auto")
        made.append(make(cell, campaign=campaign, status=status))
    return made


METHODS = (
    "single",
    "burst",
    "double_ring",
    "ring",
    "stripe",
    "ulysses",
    "usp",
    "zigzag",
    "te_p2p",
    "torch_cp",
)


def many(size: int, campaign: str = "many") -> list[record.Record]:
    """`size` records over methods, kernels, meshes, lengths and repeats, a tenth of them without a time."""
    meshes, kernels = (MeshShape(1, 8), MeshShape(2, 8), MeshShape(4, 8)), ("flash2", "flash4")
    lengths = [2**exponent for exponent in range(12, 21)]
    rng = random.Random(1)
    made: list[record.Record] = []
    for repeat in range(size):
        for mesh, kernel, length, phase, method in product(meshes, kernels, lengths, PHASES, METHODS):
            cell = Cell(method, length, PAPER, phase, mesh, kernel)
            status = rng.choice(list(record.Status)) if rng.random() < 0.1 else record.Status.PASSED
            made.append(make(cell, campaign=campaign, status=status, repeat=repeat, rng=rng, iterations=12))
            if len(made) == size:
                return made
    return made


def write_campaign(
    folder: Path, records: list[record.Record], preflight: dict[str, Any] | None = None
) -> Path:
    """The records as files under `folder`, where a campaign's folder has them."""
    for made in records:
        record.write(made, folder / made.path)
    return folder
