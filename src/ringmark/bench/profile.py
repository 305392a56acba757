"""One profiled iteration: where its time goes on every rank, the top kernels, and the trace for a viewer.

It comes after the timing and is no part of it: a profiled iteration is slower. The trace (Chrome's JSON, for
ui.perfetto.dev too) is that of rank 0, compressed, beside the record.
"""

from __future__ import annotations

import dataclasses
import gzip
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ringmark import record
from ringmark.bench import gather, timeline
from ringmark.comm.mesh import Mesh


def profile(body: Callable[[], object], mesh: Mesh, record_file: str) -> dict[str, Any]:
    """The record's `profile`: every rank's breakdown, rank 0's top kernels, the name of its trace."""
    trace = _trace(body, mesh)
    events = timeline.events_of(trace)
    mine = timeline.breakdown(events)
    names = [field.name for field in dataclasses.fields(mine)]
    ranks = gather.rows(mesh, list(dataclasses.astuple(mine)))
    path = Path(record_file).with_suffix(".trace.json.gz")
    if mesh.rank == 0:
        save(trace, path)
    return {
        "ranks": [dict(zip(names, row, strict=True)) for row in ranks],
        "top": timeline.top(events),
        "trace": path.name,
    }


def save(trace: dict[str, Any], path: Path) -> None:
    """Write a trace, compressed, whole or not at all."""
    with record.in_place_of(path) as temporary, gzip.open(temporary, "wt", encoding="utf-8") as file:
        json.dump(trace, file)


def _trace(body: Callable[[], object], mesh: Mesh) -> dict[str, Any]:
    """The trace of one iteration; one before it, thrown away, sets the profiler up."""
    activities = [torch.profiler.ProfilerActivity.CPU]
    if mesh.device.type == "cuda":
        activities.append(torch.profiler.ProfilerActivity.CUDA)
    for _ in range(2):
        gather.barrier(mesh)
        gather.synchronize(mesh)
        with torch.profiler.profile(activities=activities) as profiler:
            body()
            gather.synchronize(mesh)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "trace.json")
        profiler.export_chrome_trace(str(path))
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    found.pop("traceName", None)  # a path of this machine
    return found
