"""Figures of every rank brought to every rank: the same matrix everywhere, so that all ranks agree."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist

from ringmark.comm.mesh import Mesh


def barrier(mesh: Mesh) -> None:
    """Hold the current stream (on CPU: the process) until every rank has come here; one element travels."""
    group = mesh.group("flat", "bench")
    if group.process_group is not None:
        dist.all_reduce(torch.zeros(1, device=mesh.device), group=group.process_group)


def synchronize(mesh: Mesh) -> None:
    """Wait until everything that this rank's device was given is done, on all its streams."""
    if mesh.device.type == "cuda":
        torch.cuda.synchronize(mesh.device)


def rows(mesh: Mesh, values: Sequence[float]) -> list[list[float]]:
    """Each rank's values, a row per rank; every rank gives equally many."""
    group = mesh.group("flat", "bench")
    mine = torch.tensor(list(values), dtype=torch.float64, device=mesh.device)
    if group.process_group is None:
        return [mine.tolist()]
    everyone = [torch.empty_like(mine) for _ in range(group.size)]
    dist.all_gather(everyone, mine, group=group.process_group)
    return [row.tolist() for row in everyone]


def decided_by_rank_0(mesh: Mesh, choice: int) -> int:
    """Rank 0's choice, known to all: where clocks differ between ranks, one of them decides."""
    group = mesh.group("flat", "bench")
    if group.process_group is None:
        return choice
    told = torch.tensor([choice], dtype=torch.int64, device=mesh.device)
    dist.broadcast(told, src=0, group=group.process_group)
    return int(told.item())
