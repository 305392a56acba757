"""The mesh: ranks seen as nodes x gpus, with the process groups that a method asks for.

    rank = node * gpus + gpu

           gpu 0  gpu 1
    node 0   0      1      intra groups: the rows    {0,1} {2,3}
    node 1   2      3      inter groups: the columns {0,2} {1,3}
                           flat group:   everybody   {0,1,2,3}

Two rings that share one group serialise or deadlock, so a group is asked for with a purpose and each
purpose has its own communicator. `view(nodes, gpus)` sees the same ranks in other degrees.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist

from ringmark.errors import UserError

Axis = Literal["flat", "intra", "inter"]


@dataclass
class Traffic:
    """Bytes that this rank has sent, by the kind of link; counted by the communication layer itself."""

    intra: int = 0
    inter: int = 0

    def count(self, num_bytes: int, same_node: bool) -> None:
        if same_node:
            self.intra += num_bytes
        else:
            self.inter += num_bytes

    def reset(self) -> None:
        self.intra = self.inter = 0


@dataclass(frozen=True)
class Group:
    """A process group with its members as global ranks, in ring order, and this rank's place among them."""

    members: tuple[int, ...]
    position: int
    process_group: dist.ProcessGroup | None = field(compare=False)  # None: one member, nothing to say

    @property
    def size(self) -> int:
        return len(self.members)


@dataclass(frozen=True)
class Lane:
    """How transfers share a GPU with the computation that they run beside.

    Each of NCCL's blocks occupies a multiprocessor while data moves: fewer blocks are slower and leave more
    to the attention kernel. With high priority a transfer goes before blocks of a kernel that wait beside it.
    Copy engines take no multiprocessor, and reach only inside a node (comm/copies.py).
    """

    max_ctas: int = 0  # 0: as many as NCCL likes
    high_priority: bool = False
    copy_engine: bool = False

    def options(self) -> Any:
        """The options of a process group, or None where there is nothing to say."""
        if self == Lane() or dist.get_backend() != "nccl":
            return None
        options = dist.ProcessGroupNCCL.Options(is_high_priority_stream=self.high_priority)
        if self.max_ctas:
            options.config.min_ctas = 1
            options.config.max_ctas = self.max_ctas
        return options


OPEN_LANE = Lane()


class Mesh:
    """This rank's place among nodes x gpus, and its groups."""

    def __init__(
        self, nodes: int, gpus: int, rank: int, device: torch.device, base: Mesh | None = None
    ) -> None:
        self.nodes, self.gpus, self.rank, self.device = nodes, gpus, rank, device
        self.node, self.gpu = divmod(rank, gpus)
        self._base = base
        self._groups: dict[tuple[str, str, Lane], Group] = {}
        self._views: dict[tuple[int, int], Mesh] = {}
        self.traffic: Traffic = base.traffic if base else Traffic()

    @property
    def world_size(self) -> int:
        return self.nodes * self.gpus

    @property
    def backend(self) -> str:
        return dist.get_backend() if dist.is_initialized() else "none"

    @property
    def real(self) -> Mesh:
        """The mesh that this one is a view of, or itself: its nodes are the machine's."""
        return self._base or self

    def view(self, nodes: int, gpus: int) -> Mesh:
        """The same ranks as nodes x gpus of another degree; bytes go on counting by the real nodes."""
        if nodes * gpus != self.world_size:
            raise UserError(
                f"a {nodes}x{gpus} view needs {nodes * gpus} ranks, the mesh has {self.world_size}"
            )
        real = self.real
        if (nodes, gpus) == (real.nodes, real.gpus):
            return real
        if (nodes, gpus) not in real._views:  # one of each, so that methods of one process share its groups
            real._views[nodes, gpus] = Mesh(nodes, gpus, self.rank, self.device, base=real)
        return real._views[nodes, gpus]

    def same_node(self, rank: int) -> bool:
        """Whether another rank sits on this rank's real node."""
        return rank // self.real.gpus == self.real.node

    def rank_at(self, node: int, gpu: int) -> int:
        """The rank at a place, both counted round."""
        return node % self.nodes * self.gpus + gpu % self.gpus

    def one_node(self, ranks: Sequence[int]) -> bool:
        """Whether all of them sit on this rank's real node."""
        return all(self.same_node(rank) for rank in ranks)

    def members(self, axis: Axis, rank: int | None = None) -> tuple[int, ...]:
        """The ranks of an axis's group around `rank` (this rank where none is given), in ring order."""
        node, gpu = divmod(self.rank if rank is None else rank, self.gpus)
        if axis == "intra":
            return tuple(node * self.gpus + g for g in range(self.gpus))
        if axis == "inter":
            return tuple(j * self.gpus + gpu for j in range(self.nodes))
        return tuple(range(self.world_size))

    def by_copy_engine(self, axis: Axis, lane: Lane) -> bool:
        """Whether copy engines move what goes over an axis: where a lane asks for them, and they reach."""
        members = self.members(axis)
        return lane.copy_engine and len(members) > 1 and self.one_node(members)

    def group(self, axis: Axis, purpose: str, lane: Lane = OPEN_LANE) -> Group:
        """The group of an axis for one purpose; collective at the first call of each."""
        key = (axis, purpose, lane)
        if key not in self._groups:
            self._groups[key] = self._make_group(axis, lane)
        return self._groups[key]

    def _make_group(self, axis: Axis, lane: Lane) -> Group:
        mine, process_group = self.members(axis), None
        # Every rank makes every group, in the same order: new_group is collective over the world.
        for members in dict.fromkeys(self.members(axis, rank) for rank in range(self.world_size)):
            if len(members) > 1:
                made = dist.new_group(list(members), pg_options=lane.options())
                process_group = made if members == mine else process_group
        return Group(mine, mine.index(self.rank), process_group)


def start(nodes: int, *, device: torch.device | None = None, timeout_s: float = 600.0) -> Mesh:
    """The mesh of a torchrun world: joins the process group if that has not been done, one device a rank."""
    rank, world_size = int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))
    if world_size % nodes:
        raise UserError(f"{world_size} ranks do not make {nodes} equal nodes: start a multiple of {nodes}")
    if device is None:
        local = int(os.environ.get("LOCAL_RANK", rank % (world_size // nodes)))
        device = torch.device("cuda", local) if torch.cuda.is_available() else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    if world_size > 1 and not dist.is_initialized():
        backend = "nccl" if device.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=timedelta(seconds=timeout_s))
    return Mesh(nodes, world_size // nodes, rank, device)
