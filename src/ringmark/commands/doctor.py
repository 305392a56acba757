"""ringmark doctor: what of ringmark works on this machine, and what to do about the rest."""

from __future__ import annotations

import argparse
import importlib.util
import platform
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from ringmark import checkup, cluster
from ringmark.commands.image import usable

HELP = "say what this machine can run and what is missing"
Finding = tuple[str, str, str]  # "ok" | "note" | "missing", what, what to do


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--cluster", type=Path, metavar="FILE", help="also check a cluster file")


def run(args: argparse.Namespace) -> int:
    found = [*python(), *torch_findings(), *libraries(), *container_tools()]
    if args.cluster is not None:
        found += checkup.check(cluster.read(args.cluster))
    for state, what, advice in found:
        print(f"{state:<8} {what}" + (f": {advice}" if advice else ""))
    return 1 if any(state == "missing" for state, _, _ in found) else 0


def python() -> Iterator[Finding]:
    version = platform.python_version()
    if sys.version_info < (3, 11):
        yield "note", f"Python {version}", "enough to measure; the workflow (Snakemake) needs 3.11"
    else:
        yield "ok", f"Python {version}", ""


def torch_findings() -> Iterator[Finding]:
    if importlib.util.find_spec("torch") is None:
        yield "note", "torch is not installed", "tables work without it; to measure, run 'make env'"
        return
    import torch

    from ringmark import kernels
    from ringmark.comm import symmetric

    yield "ok", f"torch {torch.__version__}", ""
    if not torch.distributed.is_available():
        yield "missing", "torch.distributed", "this torch build has none: install another build"
    count = torch.cuda.device_count()
    if count:
        yield "ok", f"{count} x {torch.cuda.get_device_name(0)}", ""
    else:
        yield "note", "no GPU", "cells run on the CPU with gloo ranks"
    for name, reason in kernels.availability().items():
        yield ("note" if reason else "ok"), f"kernel {name}", reason or ""
    if count > 1:
        reason = symmetric.unavailable()
        advice = f"hops inside a node go through NCCL: {reason}" if reason else ""
        yield ("note" if reason else "ok"), "copy engines between GPUs", advice
    shared = Path("/dev/shm")
    if count and shared.exists() and shutil.disk_usage(shared).total < 2**30:
        yield (
            "note",
            "/dev/shm is under 1 GiB",
            "NCCL may fail: start with --ipc=host or --shm-size=8g",
        )


def libraries() -> Iterator[Finding]:
    for name, use in (
        ("jinja2", "tables"),
        ("matplotlib", "plots"),
        ("pynvml", "the GPUs' clocks in records"),
    ):
        if importlib.util.find_spec(name) is None:
            yield "note", f"{name} is not installed", f"needed for {use}"
        else:
            yield "ok", f"{name} ({use})", ""


def container_tools() -> Iterator[Finding]:
    tools = [tool for tool in ("docker", "podman", "buildah", "apptainer", "enroot") if shutil.which(tool)]
    if not tools:
        yield "note", "no container tool", ""
    if "docker" in tools and not usable("docker"):
        tools.remove("docker")
        yield "note", "docker without its daemon", "start the daemon, or use podman or buildah"
    if tools:
        yield "ok", "container tools: " + ", ".join(tools), ""
    yield ("ok", "Slurm", "") if shutil.which("sbatch") else ("note", "no Slurm here", "")
