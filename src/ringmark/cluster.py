"""A cluster file: what a site's machines are, how work gets onto them, and what ranks run in.

One YAML file a site (envs/clusters/example.yaml explains every key); a config names it under `cluster`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ringmark import fabric, schema, yamlfile
from ringmark.cell import MeshShape
from ringmark.errors import UserError, nearest

Scheduler = Literal["slurm", "none"]
Runtime = Literal["bare", "docker", "podman", "apptainer", "enroot", "pyxis"]

VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
MOUNT = re.compile(r"/[^:]*:/[^:]*(?::([^:]+))?")
MOUNT_OPTIONS = {  # of docker, podman and apptainer
    *("ro", "rw", "z", "Z", "U", "O", "nocopy", "exec", "noexec", "suid", "nosuid", "dev", "nodev"),
    *("bind", "rbind", "private", "rprivate", "shared", "rshared", "slave", "rslave"),
}


@dataclass(frozen=True)
class Cluster:
    """A site: its nodes, its scheduler, its network and what ranks run in."""

    name: str
    scheduler: Scheduler = "slurm"
    nodes: int = 1
    gpus_per_node: int = 8
    cpus_per_node: int = 8
    partition: str | None = None
    account: str | None = None
    qos: str | None = None
    constraint: str | None = None
    reservation: str | None = None
    mem_mb: int | None = None
    exclusive: bool = True
    request_gpus: bool = True
    time_limit_min: int = 240
    sbatch_extra: list[str] = field(default_factory=list)
    srun_extra: list[str] = field(default_factory=list)
    fabric: str | None = None
    env: dict[str, str] = field(default_factory=dict)
    pass_env: list[str] = field(default_factory=list)
    modules: list[str] = field(default_factory=list)
    scratch: str | None = None
    runtime: Runtime = "bare"
    image: str | None = None
    mounts: list[str] = field(default_factory=list)
    cdi: bool = False
    container_extra: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        for name in ("nodes", "gpus_per_node", "cpus_per_node", "time_limit_min", "mem_mb"):
            number, least = getattr(self, name), 0 if name == "gpus_per_node" else 1  # 0: a CPU cluster
            if number is not None and number < least:
                raise ValueError(f"{name} is {number}: give a number of at least {least}")
        if self.scratch is not None and not self.scratch.startswith("/"):
            raise ValueError(f"scratch is {self.scratch!r}: give a whole path, like /tmp/ringmark")
        for variable in (*self.env, *self.pass_env):
            if not VARIABLE.fullmatch(variable):
                raise ValueError(f"{variable!r} is no variable's name: use letters, digits and _")
        for mount in self.mounts:
            if reason := mount_reason_not(mount, self.runtime):
                raise ValueError(f"mounts: {mount!r} {reason}")
        if self.runtime == "pyxis" and self.scheduler != "slurm":
            raise ValueError("runtime pyxis is a part of srun: choose scheduler slurm, or runtime enroot")
        if self.scheduler == "none" and self.nodes > 1:
            raise ValueError(f"{self.nodes} nodes need a scheduler that starts them: choose scheduler slurm")

    def check_fits(self, mesh: MeshShape, virtual_nodes: bool) -> None:
        """Say at once that a mesh is larger than the cluster."""
        if self.scheduler == "none":
            return
        nodes, gpus = real_geometry(mesh, virtual_nodes)
        if nodes > self.nodes or (self.request_gpus and gpus > self.gpus_per_node):
            raise UserError(
                f"mesh {mesh} needs {nodes} nodes with {gpus} GPUs, cluster {self.name} has {self.nodes} "
                f"with {self.gpus_per_node}: choose a smaller mesh, or correct the cluster file"
            )


def mount_reason_not(mount: str, runtime: Runtime) -> str | None:
    """Why a runtime cannot mount so, or None."""
    if runtime in ("enroot", "pyxis") and mount.startswith("/"):  # they have words of their own
        return None
    if runtime == "apptainer" and mount.startswith("/") and ":" not in mount:
        return None
    found = MOUNT.fullmatch(mount)
    if found is None:
        return "is no mount: write /HOST:/CONTAINER, or /HOST:/CONTAINER:ro"
    unknown = [option for option in (found[1] or "ro").split(",") if option not in MOUNT_OPTIONS]
    return f"has the option {unknown[0]!r}: {nearest(unknown[0], MOUNT_OPTIONS)}" if unknown else None


def real_geometry(mesh: MeshShape, virtual_nodes: bool) -> tuple[int, int]:
    """Nodes and ranks a node of a mesh: virtual nodes all sit on one."""
    return (1, mesh.world_size) if virtual_nodes else (mesh.nodes, mesh.gpus)


def read(path: Path) -> Cluster:
    """The cluster in a YAML file."""
    found = schema.load(Cluster, yamlfile.read(path, "cluster file"), str(path))
    fabric.variables(found.fabric)
    return found
