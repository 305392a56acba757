"""Our records as runs of the published forms: one run for each length of a method (or each phase of it)."""

from __future__ import annotations

import json

from ringmark.tables.forms import Run, form
from ringmark.tables.group import Group, Line
from ringmark.tables.point import NOT_RUN, Point

_RING_TYPES = {"contiguous": "basic", "striped": "stripe", "zigzag": "zigzag"}


def runs(group: Group, line: Line, form_name: str) -> list[Run]:
    """The runs of one method's line, shortest length first."""
    made: list[Run] = []
    for seqlen in sorted({seqlen for _, seqlen in line.points}):
        common = {**_coordinates(group, line), "seqlen_global": str(seqlen)}
        points = {phase: line.points.get((phase, seqlen)) for phase in ("fwd", "fwd_bwd", "bwd")}
        if form(form_name).by_phase:
            for phase in ("fwd", "fwd_bwd"):
                p = points[phase]
                if p is not None:
                    made.append({**common, **_one_phase(phase, p)})
        else:
            made.append({**common, **_all_phases(points)})
    return made


def has_degrees(line: Line) -> bool:
    """Whether the method splits the ranks into Ulysses teams and rings."""
    return bool(_degrees(line))


def _settings(line: Line) -> dict[str, object]:
    """A method's options and settings, as asked or as it ran."""
    row = next((row for p in line.points.values() for row in p.rows), None)
    if row is None:
        return {}
    return {**json.loads(row.settings or "{}"), **json.loads(row.options)}


def _degrees(line: Line) -> dict[str, str]:
    settings = _settings(line)
    row = next((row for p in line.points.values() for row in p.rows), None)
    ulysses = settings.get("ulysses_degree") or settings.get("ulysses")
    if row is None or not isinstance(ulysses, int) or ulysses < 1:
        return {}
    ring = row.world_size // ulysses
    laid = _RING_TYPES.get(str(row.layout).split("_")[0], "zigzag")
    kind = settings.get("ring") or (laid if ring > 1 else "none")
    return {"ring_type": str(kind), "ulysses_degree": str(ulysses), "ring_degree": str(ring)}


def _coordinates(group: Group, line: Line) -> dict[str, str | float]:
    row, settings = group.sample, _settings(line)
    ran = next((r.kernel_ran for p in line.points.values() for r in p.rows if r.kernel_ran), None)
    opt_bwd = next((r.opt_bwd for p in line.points.values() for r in p.rows if r.opt_bwd is not None), False)
    two_levels = row.nodes > 1 and row.gpus > 1
    return {
        "system": line.label,
        "dtype": row.dtype,
        "qkv_format": "bshd",  # the order of every kernel's and method's tensors
        "kernel": ran or row.kernel_asked,
        "batch": str(row.batch),
        "num_heads_q": str(row.num_heads_q),
        "head_dim": str(row.head_dim),
        "causal": str(row.mask == "causal"),
        "cp": str(row.world_size > 1 and not line.is_bound),
        "window": "None",
        "sp_size": str(row.world_size),
        "double_ring": str(bool(settings.get("double_ring", two_levels))),
        "opt_bwd": str(opt_bwd),
        **_degrees(line),
    }


def _all_phases(points: dict[str, Point | None]) -> dict[str, str | float]:
    forward, both, backward = points["fwd"], points["fwd_bwd"], points["bwd"]
    return {
        "fwd_ms": _time(forward),
        "fwd_bwd_ms": _time(both),
        "fwd_s": _time(forward, 1e-3),
        "fwd_bwd_s": _time(both, 1e-3),
        "memory_mb": _memory(both or forward),
        "tflops": _rate(both),
        "fwd_tflops": _rate(forward),
        "bwd_tflops": _rate(backward),
    }


def _one_phase(phase: str, p: Point) -> dict[str, str | float]:
    latency = _time(p)
    return {
        "fwd_only": str(phase == "fwd"),
        "latency_ms": latency,
        "throughput": 1e3 / latency if isinstance(latency, float) else latency,
        "memory_mb": _memory(p),
        "speed": _rate(p),
    }


def _time(p: Point | None, scale: float = 1.0) -> str | float:
    if p is None:
        return NOT_RUN
    return p.status if p.time_ms is None else p.time_ms.value * scale


def _rate(p: Point | None) -> str | float:
    if p is None:
        return NOT_RUN
    return p.status if p.rate is None else p.rate.value


def _memory(p: Point | None) -> str | float:
    if p is None:
        return NOT_RUN
    return p.status if p.memory_peak_mib is None else p.memory_peak_mib
