"""Before a campaign: how fast every rank multiplies, copies and sends, and whether one of them is slow.

    matmul   each rank alone, its dtype's dense product                        TFLOP/s
    copy     each rank alone, memory to memory; bytes read and written         GB/s
    intra    a ring around every node's ranks, all pairs sending at once       GB/s that a rank sends
    inter    the same around the columns of the mesh, across nodes             GB/s that a rank sends

Figures are medians of some iterations, each the rank's own; the slowest rank is what a table prints, since
an iteration waits for it. Thresholds are data (data/preflight.yaml).
"""

from __future__ import annotations

import json
import platform
import statistics
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ringmark import flops, record, yamlfile
from ringmark.bench import environment, gather, nvml, timer
from ringmark.comm.mesh import Axis, Group, Mesh
from ringmark.errors import UserError

FIGURES = ("matmul_tflops", "copy_gb_per_s", "intra_gb_per_s", "inter_gb_per_s")
_NONE = -1.0  # how "there is no such link" travels among numbers
Rules = Mapping[str, Any]


def rules() -> Rules:
    """The thresholds and sizes of data/preflight.yaml."""
    found: Rules = yamlfile.packaged("data/preflight.yaml")
    return found


def once(mesh: Mesh, path: Path, allow_slow: bool = False) -> list[str]:
    """The preflight of a campaign, measured by the first world that comes and kept in `path`.

    Returns the flags for the campaign's records; what is slow stops it, unless it is allowed.
    """
    there = gather.decided_by_rank_0(mesh, int(mesh.rank == 0 and _is_of(mesh, path)))
    if not there:
        found = measure(mesh)
        if mesh.rank == 0:
            record.write_atomic(path, json.dumps(found, indent=1, allow_nan=False) + "\n")
    # Rank 0 reads it for all: another node may not see the file yet.
    told = json.loads(path.read_text(encoding="utf-8"))["complaints"] if mesh.rank == 0 else []
    complaints: list[str] = environment.gathered(mesh, told)[0]
    if complaints and not allow_slow:
        raise UserError(
            f"preflight: {complaints[0]}; take it out, or allow it (every record then says so) "
            f"and delete {path.name} to measure it again"
        )
    return ["preflight_slow"] if complaints else []


def _is_of(mesh: Mesh, path: Path) -> bool:
    """Whether a preflight is there and of such a world; one of another says nothing of this one's links."""
    if not path.exists():
        return False
    found = json.loads(path.read_text(encoding="utf-8"))
    told = found.get("mesh"), found.get("backend"), found["ranks"][0].get("device")
    return told == (_shape(mesh), mesh.backend, environment.device_name(mesh))


def _shape(mesh: Mesh) -> str:
    return f"{mesh.nodes}x{mesh.gpus}"


def measure(mesh: Mesh) -> dict[str, Any]:
    """What preflight.json holds, equal on every rank."""
    kind = "cuda" if mesh.device.type == "cuda" else "cpu"
    size = rules()["sizes"][kind]
    mine = [
        _matmul_tflops(mesh, size["matmul_side"], size["iterations"]),
        _copy_gb_per_s(mesh, size["copy_mib"], size["iterations"]),
        _link_gb_per_s(mesh, "intra", size["link_mib"], size["iterations"]),
        _link_gb_per_s(mesh, "inter", size["link_mib"], size["iterations"]),
    ]
    uuid = nvml.identity(mesh.device)["uuid"] if kind == "cuda" else None
    who = (platform.node(), environment.device_name(mesh), uuid if isinstance(uuid, str) else None)
    everyone = environment.gathered(mesh, who)
    ranks = []
    for rank, (figures, (host, name, uuid)) in enumerate(zip(gather.rows(mesh, mine), everyone, strict=True)):
        told = {key: None if value == _NONE else value for key, value in zip(FIGURES, figures, strict=True)}
        ranks.append({"rank": rank, "host": host, "device": name, "gpu_uuid": uuid, **told})
    complaints = judge(ranks, mesh.gpus, rules()[kind])
    return {
        "schema": "ringmark.preflight/1",
        "measured_at": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "mesh": _shape(mesh),
        "backend": mesh.backend,
        "slowest": slowest(ranks),
        "verdict": verdict(ranks, complaints),
        "complaints": complaints,
        "ranks": ranks,
    }


def slowest(ranks: list[dict[str, Any]]) -> dict[str, float]:
    """Each figure of the rank that is slowest in it, where there is such a link at all."""
    told = {name: [rank[name] for rank in ranks if rank[name] is not None] for name in FIGURES}
    return {name: min(values) for name, values in told.items() if values}


def judge(ranks: list[dict[str, Any]], gpus: int, thresholds: Rules) -> list[str]:
    """A sentence for each rule that is broken: which rank, how slow, how fast it should be."""
    complaints = []
    for name, share in thresholds["of_median"].items():
        values = [rank[name] for rank in ranks if rank[name] is not None]
        if not values:
            continue
        middle = statistics.median(values)
        for rank in ranks:
            if rank[name] is not None and rank[name] < share * middle:
                complaints.append(
                    f"{_named(rank, gpus, name)} {rank[name]:.4g} {_UNITS[name]}, less than {share:g} of the "
                    f"median {middle:.4g}"
                )
    for name, share in thresholds["of_peak"].items():
        for rank in ranks:
            stated = _stated(rank["device"], name)
            if stated is not None and rank[name] is not None and rank[name] < share * stated:
                complaints.append(
                    f"{_named(rank, gpus, name)} {rank[name]:.4g} {_UNITS[name]}, less than {share:g} of the "
                    f"{stated:.4g} that its maker states"
                )
    return complaints


_UNITS = {"matmul_tflops": "TFLOP/s", **dict.fromkeys(FIGURES[1:], "GB/s")}
_VERBS = dict(
    zip(FIGURES, ("multiplies at", "copies at", "sends inside its node at", "sends between nodes at"))
)


def _stated(device: str, figure: str) -> float | None:
    """What a device's maker says of a figure: dense bf16 products, NVLink in one direction."""
    if flops.is_slice(device):  # what is stated is of the whole GPU
        return None
    if figure == "intra_gb_per_s":
        return flops.nvlink_gb_per_s(device)
    peak = flops.peak_tflops(device, "bf16") if figure == "matmul_tflops" else None
    return peak.tflops if peak else None


def _named(rank: Mapping[str, Any], gpus: int, figure: str) -> str:
    place = f"node {rank['rank'] // gpus}, {rank['host']}"
    gpu = f", {rank['gpu_uuid']}" if rank["gpu_uuid"] else ""
    return f"rank {rank['rank']} ({place}{gpu}) {_VERBS[figure]}"


def verdict(ranks: list[dict[str, Any]], complaints: list[str]) -> str:
    """One sentence for the person who starts a campaign."""
    if complaints:
        return f"not ready: {complaints[0]}" + (f", and {len(complaints) - 1} more" if complaints[1:] else "")
    told = ", ".join(f"{name.replace('_', ' ')} {value:.4g}" for name, value in slowest(ranks).items())
    return f"ready: {len(ranks)} ranks, the slowest of them: {told}"


def _matmul_tflops(mesh: Mesh, side: int, iterations: int) -> float:
    dtype = torch.bfloat16 if mesh.device.type == "cuda" else torch.float32
    a, b = (torch.randn(side, side, device=mesh.device).to(dtype) for _ in range(2))
    out = torch.empty_like(a)
    seconds = _seconds(mesh, lambda: torch.matmul(a, b, out=out), iterations)
    return 2.0 * side**3 / seconds / 1e12


def _copy_gb_per_s(mesh: Mesh, mib: int, iterations: int) -> float:
    source = torch.ones(mib << 18, device=mesh.device)
    target = torch.empty_like(source)
    seconds = _seconds(mesh, lambda: target.copy_(source), iterations)
    return 2.0 * source.numel() * source.element_size() / seconds / 1e9


def _link_gb_per_s(mesh: Mesh, axis: Axis, mib: int, iterations: int) -> float:
    """What this rank sends to the next one of its ring while it receives from the one before."""
    group = mesh.group(axis, "bench")
    outgoing = torch.ones(mib << 18, device=mesh.device)
    incoming = torch.empty_like(outgoing)
    # Every rank goes through the same barriers, also one that has nobody to send to.
    seconds = _seconds(mesh, lambda: _ring_step(group, outgoing, incoming), iterations)
    return outgoing.numel() * outgoing.element_size() / seconds / 1e9 if group.size > 1 else _NONE


def _ring_step(group: Group, outgoing: torch.Tensor, incoming: torch.Tensor) -> None:
    if group.size == 1:
        return
    after = group.members[(group.position + 1) % group.size]
    before = group.members[(group.position - 1) % group.size]
    ops = [
        dist.P2POp(dist.isend, outgoing, after, group.process_group),
        dist.P2POp(dist.irecv, incoming, before, group.process_group),
    ]
    for work in dist.batch_isend_irecv(ops):
        work.wait()


def _seconds(mesh: Mesh, body: Callable[[], object], iterations: int) -> float:
    """The median time of one call on this rank, all ranks starting each one together."""
    return statistics.median(timer.own_times_ms(body, mesh, iterations)) / 1e3
