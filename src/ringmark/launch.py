"""How a world of ranks is started: cell + cluster -> argv and environment. Pure: it starts nothing."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field

from ringmark.cell import MeshShape

NO_VARIABLES: Mapping[str, str] = {}


@dataclass(frozen=True)
class Command:
    """What to execute: the words, and the variables to add to the environment."""

    argv: list[str]
    env: dict[str, str] = field(default_factory=dict)


def local_world(
    mesh: MeshShape, job_file: str, items: list[int], run_id: str, env: Mapping[str, str] = NO_VARIABLES
) -> Command:
    """All ranks on this host, under one elastic agent."""
    argv = [sys.executable, "-m", "ringmark.bench.agent"]
    argv += ["--nproc-per-node", str(mesh.world_size), "--run-id", run_id]
    argv += [job_file, ",".join(map(str, items))]
    return Command(argv, {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **env})
