"""What can be said of a cluster file from the login node, before anything is submitted."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from ringmark import fabric, image
from ringmark.cluster import Cluster
from ringmark.errors import UserError

Finding = tuple[str, str, str]  # "ok" | "note" | "missing", what, what to do
SLURM_TOOLS = ("sbatch", "srun", "squeue", "scontrol", "sinfo")
NODE_TOOL = {"docker": "docker", "podman": "podman", "apptainer": "apptainer", "enroot": "enroot"}
SHARED = ("nfs", "lustre", "gpfs", "beegfs", "ceph", "wekafs", "panfs", "fuse", "9p", "virtiofs", "orangefs")


def check(cluster: Cluster) -> Iterator[Finding]:
    yield from scheduler(cluster)
    yield from network(cluster)
    yield from runtime(cluster)
    yield from checkout(cluster)


def scheduler(cluster: Cluster) -> Iterator[Finding]:
    """Slurm's commands, and whether the partition has what the file promises."""
    if cluster.scheduler == "none":
        yield "ok", "no scheduler", ""
        return
    missing = [tool for tool in SLURM_TOOLS if shutil.which(tool) is None]
    if missing:
        yield "missing", f"Slurm's {', '.join(missing)}", "run this on the login node"
        return
    wanted = ["--partition", cluster.partition] if cluster.partition else []
    listed = _ask("sinfo", "-h", *wanted, "-o", "%P|%D|%G|%c|%l|%T")
    if listed is None:
        yield "missing", "Slurm's controller", "sinfo gets no answer: is this the login node?"
        return
    rows = [line.split("|") for line in listed.splitlines() if line.strip()]
    if not cluster.partition:  # a job then goes to the default one, which sinfo marks with a star
        rows = [row for row in rows if row[0].endswith("*")]
    if not rows:
        what = f"partition {cluster.partition}" if cluster.partition else "a default partition"
        yield "missing", what, "'sinfo' lists those that there are: name one in the cluster file"
        return
    usable = [row for row in rows if not row[5].startswith(("down", "drain", "fail"))]
    there = sum(int(row[1]) for row in usable)
    name = f"partition {rows[0][0].rstrip('*')}"
    if there < cluster.nodes:
        yield (
            "missing",
            f"{cluster.nodes} nodes in {name}",
            f"{there} can be used: lower nodes, or ask the site",
        )
    else:
        yield "ok", f"{name}: {there} nodes can be used", ""
    yield from shape_of_nodes(cluster, name, usable or rows)


def shape_of_nodes(cluster: Cluster, name: str, rows: list[list[str]]) -> Iterator[Finding]:
    """GPUs, cores and the longest job, as sinfo says them."""
    gpus = max(_gpus(row[2]) for row in rows)
    if cluster.request_gpus and gpus < cluster.gpus_per_node:
        advice = "correct gpus_per_node, or set request_gpus: false where the site counts none"
        yield "missing", f"{cluster.gpus_per_node} GPUs a node in {name} (Slurm knows {gpus})", advice
    cores = max(int(row[3].rstrip("+")) for row in rows)
    if cores < cluster.cpus_per_node:
        yield "missing", f"{cluster.cpus_per_node} cores a node (there are {cores})", "lower cpus_per_node"
    longest = _minutes(rows[0][4])
    if longest is not None and longest < cluster.time_limit_min:
        yield (
            "missing",
            f"jobs of {cluster.time_limit_min} min ({name} ends at {longest})",
            "lower time_limit_min",
        )


def network(cluster: Cluster) -> Iterator[Finding]:
    if cluster.fabric is None:
        if cluster.nodes > 1:
            yield (
                "note",
                "no fabric is named",
                f"NCCL chooses by itself; {', '.join(fabric.names())} are there",
            )
        return
    try:
        found = fabric.variables(cluster.fabric)
        yield "ok", f"fabric {cluster.fabric}: {len(found) - 1} variables", ""
    except UserError as error:
        yield "missing", f"fabric {cluster.fabric}", str(error)


def runtime(cluster: Cluster) -> Iterator[Finding]:
    """The runtime and its image; a tool may be on the nodes alone."""
    if cluster.runtime == "pyxis":
        help_text = _ask("srun", "--help") or ""
        for option in ("--container-image", "--container-env"):
            if option not in help_text:
                advice = "ask the site for pyxis 0.15 or newer, or choose runtime enroot"
                yield "missing", f"pyxis: srun has no {option}", advice
                break
    elif cluster.runtime in NODE_TOOL and shutil.which(NODE_TOOL[cluster.runtime]) is None:
        advice = "not on this host: make sure that it is on the nodes (perhaps by a module)"
        yield "note", f"runtime {cluster.runtime}", advice
    if cluster.runtime == "bare":
        return
    suffix = image.ARCHIVES[cluster.runtime]
    if cluster.image is None and cluster.scheduler == "slurm" and suffix is None:
        advice = (
            f"{cluster.runtime} keeps what is built here on this host: push it to a registry, and name it"
        )
        yield "missing", "no image is named that the nodes can pull", advice
    elif cluster.image is None:
        yield "note", "no image is named", "the workflow builds it here with docker, podman or buildah"
    elif cluster.image.endswith((image.SIF, image.SQSH)) and not Path(cluster.image).exists():
        yield "missing", f"image {cluster.image}", "make it with 'ringmark image', or correct its path"
    elif suffix and not cluster.image.endswith(suffix):
        yield "note", f"image {cluster.image}", f"a {suffix} starts faster on many nodes"


def checkout(cluster: Cluster) -> Iterator[Finding]:
    """Every node must see this folder, and with runtime bare this Python."""
    if cluster.scheduler == "none":
        return
    places = [("this folder", Path.cwd())]
    if cluster.runtime == "bare":
        places.append(("this Python", Path(sys.executable)))
    for what, path in places:
        kind = file_system(path)
        if kind is None or not kind.startswith(SHARED):
            yield (
                "note",
                f"{what} is on {kind or 'a file system that is not known'}",
                "every node must see it",
            )
        else:
            yield "ok", f"{what} is on {kind}", ""


def file_system(path: Path) -> str | None:
    """The kind of file system that a path is on."""
    try:
        lines = Path("/proc/mounts").read_text().splitlines()
    except OSError:
        return None
    real = os.path.realpath(path)
    best, kind = "", None
    for line in lines:
        _, where, found, *_ = line.split()
        if (real == where or real.startswith(where.rstrip("/") + "/")) and len(where) >= len(best):
            best, kind = where, found
    return kind


def _gpus(gres: str) -> int:
    """GPUs in sinfo's words: gpu:h100:8(S:0-1),nvme:1 -> 8."""
    total = 0
    for one in gres.split(","):
        words = one.split("(")[0].split(":")
        if words[0] == "gpu":
            total += int(words[-1]) if words[-1].isdigit() else 1
    return total


def _minutes(limit: str) -> int | None:
    """sinfo's time limit ([days-]hours:minutes:seconds) in minutes; None: unlimited."""
    days, _, rest = limit.rpartition("-")
    words = rest.split(":")
    if not all(word.isdigit() for word in words):
        return None
    numbers = [0, 0, *map(int, words)][-3:]
    return int(days or 0) * 1440 + numbers[0] * 60 + numbers[1]


def _ask(*argv: str) -> str | None:
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
