"""What a record was measured on: hosts, devices, software, variables; machine-readable, node by node.

A fact that cannot be had stands as {"value": null, "reason": ...}. Nothing private goes in: of the
environment only the variables that steer the libraries (VARIABLE_PREFIXES) and the scheduler's ids, and of
these no value that is a path or whose name speaks of a secret.
"""

from __future__ import annotations

import ctypes
import os
import platform
import re
import subprocess
from collections.abc import Mapping
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

import ringmark
from ringmark.bench import nvml
from ringmark.bench.nvml import absent, ask
from ringmark.comm.mesh import Mesh
from ringmark.state import git_environ, tree_here

VARIABLE_PREFIXES = (
    "NCCL_",
    "TORCH_",
    "CUDA_",
    "OMP_",
    "NVTE_",
    "PYTORCH_",
    "GLOO_",
    "UCX_",
    "FI_",
    "RINGMARK_FABRIC",
)
SCHEDULER_IDS = (
    *("SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_JOB_PARTITION", "SLURM_JOB_NUM_NODES"),
    *("PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID"),
)
LIBRARIES = (
    *(
        "torch",
        "triton",
        "numpy",
        "nvidia-ml-py",
        "flash-attn",
        "flash-attn-4",
        "yunchang",
        "ring-flash-attn",
    ),
    *("transformer-engine", "transformer-engine-torch", "magi-attention"),
    *("nvidia-cudnn-cu12", "nvidia-cudnn-cu13", "nvidia-nccl-cu12", "nvidia-nccl-cu13"),
)
_SECRET = re.compile(r"KEY|TOKEN|SECRET|PASS|CREDENTIAL|AUTH", re.IGNORECASE)


def collect(mesh: Mesh) -> dict[str, Any]:
    """The environment of all nodes, equal on every rank; `before` is the devices' state at this moment."""
    on_cuda = mesh.device.type == "cuda"
    mine = {
        "rank": mesh.rank,
        "gpu": nvml.identity(mesh.device) if on_cuda else absent("the device is a CPU"),
        "cpus_allowed": ask(lambda: len(os.sched_getaffinity(0))),
        "threads": torch.get_num_threads(),
    }
    node = _node(mesh) if mesh.gpu == 0 else None
    everyone = gathered(mesh, (mine, node))
    nodes = []
    for first in range(0, mesh.world_size, mesh.gpus):
        ranks = [rank for rank, _ in everyone[first : first + mesh.gpus]]
        nodes.append({**everyone[first][1], "ranks": ranks})
    return {"nodes": nodes, "source": source(), "image_digest": _image_digest(), "before": state(mesh)}


def state(mesh: Mesh) -> dict[str, Any]:
    """What changes during a campaign, of every rank in order: clocks, power, throttling, load."""
    device = nvml.state(mesh.device) if mesh.device.type == "cuda" else absent("the device is a CPU")
    mine = {"gpu": device, "load_1min": ask(lambda: os.getloadavg()[0])}
    return {"ranks": gathered(mesh, mine)}


def device_name(mesh: Mesh) -> str:
    """The own name of what this rank computes on."""
    return torch.cuda.get_device_name(mesh.device) if mesh.device.type == "cuda" else cpu_name()


def cpu_name() -> str:
    """The processor's own name."""
    try:
        text = Path("/proc/cpuinfo").read_text()
    except OSError:
        return platform.processor() or platform.machine()
    found = re.search(r"^(?:model name|Model|cpu model)\s*:\s*(.+)$", text, re.MULTILINE)
    return found[1].strip() if found else platform.machine()


def variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that steer the libraries, without paths and secrets."""
    kept = {}
    for name in sorted(environ):
        if name.startswith(VARIABLE_PREFIXES):
            kept[name] = "(withheld)" if _SECRET.search(name) else _without_paths(environ[name])
    return kept


def scheduler(environ: Mapping[str, str]) -> dict[str, Any]:
    """The ids under which a scheduler knows this run."""
    found: dict[str, Any] = {name: environ[name] for name in SCHEDULER_IDS if name in environ}
    return found or absent("not started by a scheduler that is known here")


def source() -> dict[str, Any]:
    """The version of ringmark itself: its commit, whether the package differs from it, and what it is.

    A commit may be given by name, where there is no checkout; `tree` is read off the files, and is what
    `git rev-parse COMMIT:src/ringmark` says of the commit that they are of.
    """
    folder = Path(ringmark.__file__).parent
    return {"version": ringmark.__version__, **_commit(folder), "tree": ask(tree_here)}


def _commit(folder: Path) -> dict[str, Any]:
    given = os.environ.get("RINGMARK_GIT_COMMIT")
    if given:  # an image of a changed checkout says so behind the name (ringmark image)
        changed = given.endswith("-dirty") or absent("the commit was given by name")
        return {"git_commit": given.removesuffix("-dirty"), "git_dirty": changed}

    def git(*words: str) -> str:
        asked = ["git", "-C", str(folder), *words]
        done = subprocess.run(
            asked, capture_output=True, text=True, timeout=20, check=False, env=git_environ()
        )
        if done.returncode:
            raise RuntimeError("the package is not in a git checkout")
        return done.stdout.strip()

    def commit() -> str:
        git("ls-files", "--error-unmatch", "__init__.py")  # in somebody else's repository it is not tracked
        return git("rev-parse", "HEAD")

    found = ask(commit)
    # Only the package's own folder: results written into the checkout do not change the program.
    dirty = ask(lambda: bool(git("status", "--porcelain", "--", "."))) if isinstance(found, str) else found
    return {"git_commit": found, "git_dirty": dirty}


def nccl_runtime_version() -> str:
    """The version of the NCCL that is loaded, asked of itself: torch only knows what it was built with."""
    maps = Path("/proc/self/maps").read_text()
    loaded = sorted({line.split()[-1] for line in maps.splitlines() if "libnccl.so" in line})
    places = loaded or sorted({line.split()[-1] for line in maps.splitlines() if "libtorch_cuda.so" in line})
    for place in places:
        number = ctypes.c_int()
        if ctypes.CDLL(place).ncclGetVersion(ctypes.byref(number)) == 0:
            value = number.value
            major, rest = divmod(value, 10000) if value >= 10000 else divmod(value, 1000)
            return f"{major}.{rest // 100}.{rest % 100}"
    raise RuntimeError("no NCCL is loaded")


def _nccl_compiled_version() -> str:
    version: tuple[int, ...] = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    return ".".join(map(str, version))


def _node(mesh: Mesh) -> dict[str, Any]:
    """What one node is; asked by its first rank."""
    devices = [torch.device("cuda", index) for index in range(torch.cuda.device_count())]
    return {
        "hostname": platform.node(),
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "cpu": cpu_name(),
        "num_cpus": os.cpu_count(),
        "memory_mib": ask(lambda: os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20),
        "python": platform.python_version(),
        "libraries": {name: version for name in LIBRARIES if (version := _version(name)) is not None},
        "driver": nvml.driver_version(),
        "cuda": torch.version.cuda or absent("this torch is built without CUDA"),
        "cudnn": ask(torch.backends.cudnn.version) or absent("this torch has no cuDNN"),
        "nccl_runtime": ask(nccl_runtime_version),
        "nccl_compiled": ask(_nccl_compiled_version),
        "topology": nvml.topology(devices) if devices else absent("no GPU is visible"),
        "network": _network(),
        "variables": variables(os.environ),
        "scheduler": scheduler(os.environ),
    }


def _network() -> Any:
    """The RDMA adapters and the rate that each port says it has."""
    rates = {}
    for path in sorted(Path("/sys/class/infiniband").glob("*/ports/*/rate")):
        rates[f"{path.parts[-4]}/{path.parts[-2]}"] = ask(partial(path.read_text, "utf-8"))
    return rates or absent("no RDMA adapter is visible")


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _image_digest() -> Any:
    reason = "RINGMARK_IMAGE_DIGEST is not set: not started from the image"
    return os.environ.get("RINGMARK_IMAGE_DIGEST") or absent(reason)


def _without_paths(value: str) -> str:
    return re.sub(r"(?<![\w.-])~?/[^\s:,;=]+", "(path)", value)


def gathered(mesh: Mesh, mine: Any) -> list[Any]:
    """One object of every rank, in rank order."""
    if mesh.world_size == 1:
        return [mine]
    everyone: list[Any] = [None] * mesh.world_size
    dist.all_gather_object(everyone, mine)
    return everyone
