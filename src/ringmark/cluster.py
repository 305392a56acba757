"""A cluster file: what a site's machines are, how work gets onto them, and what ranks run in.

One YAML file a site (envs/clusters/example.yaml explains every key); a config names it under `cluster`.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ringmark import fabric, schema, yamlfile
from ringmark.cell import MeshShape
from ringmark.errors import UserError

Scheduler = Literal["slurm", "none"]
Runtime = Literal["bare", "docker", "podman", "apptainer", "enroot", "pyxis"]


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


def real_geometry(mesh: MeshShape, virtual_nodes: bool) -> tuple[int, int]:
    """Nodes and ranks a node of a mesh: virtual nodes all sit on one."""
    return (1, mesh.world_size) if virtual_nodes else (mesh.nodes, mesh.gpus)


def read(path: Path) -> Cluster:
    """The cluster in a YAML file."""
    found = schema.load(Cluster, yamlfile.read(path, "cluster file"), str(path))
    fabric.variables(found.fabric)
    return found
