"""One record as one tidy row: every coordinate, the status, and the figures that a table can show."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ringmark import state
from ringmark.cell import Cell, Dtype, Mask, MeshShape, Shape
from ringmark.record import Memory, Ran, Record, Timing, headline


@dataclass
class CellRow:
    """A row of cells.csv; the fields are its columns, in this order. None: there is no such figure."""

    campaign: str
    key: str
    method: str
    options: str  # JSON, sorted
    row: str
    label: str
    implementation: str | None
    seqlen_global: int
    batch: int
    num_heads_q: int
    num_heads_kv: int
    head_dim: int
    dtype: Dtype
    mask: Mask
    phase: str
    nodes: int
    gpus: int
    world_size: int
    kernel_asked: str
    kernel_ran: str | None
    kernel_version: str | None
    repeat: int
    run_id: str | None
    order: int | None
    status: str
    reason: str | None
    failed_stage: str | None
    failed_rank: int | None
    protocol: str | None
    median_ms: float | None
    ci_low_ms: float | None
    ci_high_ms: float | None
    ci_level: float | None
    p5_ms: float | None
    p95_ms: float | None
    n: int | None
    stopped_by: str | None
    tflops_per_gpu: float | None
    tflops_ci_low: float | None
    tflops_ci_high: float | None
    bound_ms: float | None
    fraction_of_bound: float | None
    bound_from: str | None  # "run": `single` in the same run; "campaign": another, of one program (bound.py)
    pipelined_median_ms: float | None
    pipelined_ci_low_ms: float | None
    pipelined_ci_high_ms: float | None
    first_call_ms: float | None
    floor_ms: float | None
    clock: str | None
    error_out: float | None
    error_dq: float | None
    error_dk: float | None
    error_dv: float | None
    error_of_allowed: float | None  # the worst tensor's error as a part of what is allowed, of both checks
    memory_above_inputs_mib: float | None
    memory_peak_mib: float | None
    memory_inputs_mib: float | None
    memory_device_used_mib: float | None
    bytes_sent_intra: int | None
    bytes_sent_inter: int | None
    layout: str | None
    device: str | None
    backend: str | None
    transport: str | None
    opt_bwd: bool | None
    deterministic: bool | None
    settings: str | None  # JSON, sorted
    flags: str  # JSON list
    checks: int  # how often the answer was checked: before the timing, and after it
    profile: str | None  # JSON: the figures of the slowest rank
    environment_id: str
    program: str | None  # ringmark's version and state: commit, local changes
    started_at: str | None
    path: str

    @property
    def shape(self) -> str:
        heads = (self.num_heads_q, self.num_heads_kv)
        return str(Shape(self.batch, *heads, self.head_dim, self.dtype, self.mask))

    @property
    def mesh(self) -> str:
        return str(MeshShape(self.nodes, self.gpus))

    @property
    def passed(self) -> bool:
        return self.status == "passed"


COLUMNS = tuple(CellRow.__dataclass_fields__)


def from_record(record: Record, environment_id: str) -> CellRow:
    """The row of a record; the bound is joined later, from other rows."""
    cell, ran = record.cell, record.ran
    figures: dict[str, Any] = dict.fromkeys(COLUMNS)
    figures.update(_coordinates(cell))
    figures.update(
        campaign=record.campaign,
        label=(ran.label if ran else "") or cell.method,
        repeat=record.asked.repeat,
        status=record.status.value,
        flags=_flags(record),
        checks=0 if record.check is None else 1 if record.check.again is None else 2,
        environment_id=environment_id,
        program=program_of(record.environment.get("source") or {}),
        path=record.path.as_posix(),
    )
    if ran:
        figures.update(_what_ran(ran))
    if record.failure:
        figures.update(
            reason=record.failure.reason,
            failed_stage=record.failure.stage,
            failed_rank=record.failure.rank,
        )
    if record.timing:
        figures.update(_times(record.timing))
    if record.check:
        figures.update(_errors(record))
    if record.memory:
        figures.update(_memory(record.memory))
    if record.profile:
        figures["profile"] = _slowest_rank(record.profile)
    return CellRow(**figures)


def program_of(source: Mapping[str, Any]) -> str | None:
    """What measured, in words; an environment that does not say it has none."""
    if not source:
        return None
    found = state.named(source)
    return f"{source.get('version')} at {found}" if found else str(source.get("version"))


def _json(value: object) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, separators=(",", ":"))


def _coordinates(cell: Cell) -> dict[str, Any]:
    shape = cell.shape
    return {
        "key": cell.key,
        "method": cell.method,
        "options": _json(cell.options),
        "row": cell.row,
        "seqlen_global": cell.seqlen_global,
        "batch": shape.batch,
        "num_heads_q": shape.num_heads_q,
        "num_heads_kv": shape.num_heads_kv,
        "head_dim": shape.head_dim,
        "dtype": shape.dtype,
        "mask": shape.mask,
        "phase": cell.phase,
        "nodes": cell.mesh.nodes,
        "gpus": cell.mesh.gpus,
        "world_size": cell.world_size,
        "kernel_asked": cell.kernel,
    }


def _what_ran(ran: Ran) -> dict[str, Any]:
    counted = ran.implementation == "ringmark"  # a peer's own communication is not: its record holds zeros
    return {
        "implementation": ran.implementation,
        "kernel_ran": ran.kernel,
        "kernel_version": ran.kernel_version,
        "run_id": ran.run_id,
        "order": ran.order,
        "bytes_sent_intra": ran.bytes_sent_intra if counted else None,
        "bytes_sent_inter": ran.bytes_sent_inter if counted else None,
        "layout": ran.layout,
        "device": ran.device,
        "backend": ran.backend,
        "transport": ran.transport,
        "opt_bwd": ran.opt_bwd,
        "deterministic": ran.deterministic,
        "settings": _json(ran.settings),
        "started_at": ran.started_at,
    }


def _times(timing: Timing) -> dict[str, Any]:
    protocol = headline(timing.series)
    series, summary = timing.headline, timing.headline.summary
    figures: dict[str, Any] = {
        "protocol": protocol,
        "median_ms": summary.median,
        "ci_low_ms": summary.ci_low,
        "ci_high_ms": summary.ci_high,
        "ci_level": summary.ci_level,
        "p5_ms": summary.p5,
        "p95_ms": summary.p95,
        "n": summary.n,
        "stopped_by": series.stopped_by,
        "clock": series.clock,
        "tflops_per_gpu": timing.tflops_per_gpu,
        # A rate is work over time: the long end of the time is the low end of the rate.
        "tflops_ci_low": timing.tflops_per_gpu * summary.median / max(summary.ci_high, 1e-9),
        "tflops_ci_high": timing.tflops_per_gpu * summary.median / max(summary.ci_low, 1e-9),
        "first_call_ms": timing.first_call_ms,
        "floor_ms": timing.floor_ms,
    }
    if protocol == "isolated" and "pipelined" in timing.series:
        back_to_back = timing.series["pipelined"].summary
        figures["pipelined_median_ms"] = back_to_back.median
        figures["pipelined_ci_low_ms"] = back_to_back.ci_low
        figures["pipelined_ci_high_ms"] = back_to_back.ci_high
    return figures


def _errors(record: Record) -> dict[str, Any]:
    assert record.check is not None
    errors = record.check.errors
    figures: dict[str, Any] = {
        f"error_{name}": errors[name].relative_error for name in ("out", "dq", "dk", "dv") if name in errors
    }
    again = record.check.again.errors if record.check.again else {}
    both = (*errors.values(), *again.values())
    parts = [error.relative_error / error.allowed for error in both if error.allowed > 0]
    figures["error_of_allowed"] = max(parts, default=None)
    return figures


def _memory(memory: Memory) -> dict[str, Any]:
    return {
        "memory_above_inputs_mib": memory.peak_above_inputs_mib,
        "memory_peak_mib": memory.peak_mib,
        "memory_inputs_mib": memory.inputs_mib,
        "memory_device_used_mib": memory.device_used_mib,
    }


def _flags(record: Record) -> str:
    flags = [
        flag for series in (record.timing.series.values() if record.timing else ()) for flag in series.flags
    ]
    return _json(sorted(set(flags)))


def _slowest_rank(profile: dict[str, Any]) -> str | None:
    """The profile of the rank whose iteration took longest; those of all ranks are in the record."""
    ranks = [rank for rank in profile.get("ranks", []) if isinstance(rank, dict) and rank.get("span_ms")]
    return _json(max(ranks, key=lambda rank: rank["span_ms"])) if ranks else None
