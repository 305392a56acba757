"""USP: Ulysses inside teams of ranks, a zigzag ring across the teams.

    2 x 4 ranks, teams of 4 and rings of 2, or teams of 2 and rings of 4

    head_first   node 0   [0 1 2 3]     teams are neighbours: the all-to-all stays inside a node,
                 node 1   [4 5 6 7]     the ring goes between nodes: 0 -> 4 -> 0, ...
    ring_first   node 0    0 1 2 3      rings are neighbours: 0 -> 1 -> 2 -> 3 -> 0,
                 node 1    4 5 6 7      the all-to-all goes between nodes: teams {0,4} {1,5} {2,6} {3,7}

The tokens are dealt in zigzag to the teams, and a team's rows in turn to its members, so the all-to-all turns
a team into one rank of a zigzag ring. `ulysses` is the size of a team, any divisor of the ranks; 0 takes the
gpus of a node (head_first) or the number of nodes (ring_first). Teams of one are the ring alone, one team of
everybody is Ulysses alone. A ring with several members on each of several nodes turns as a double ring.

Fang, Zhao: USP: A Unified Sequence Parallelism Approach for Long Context Generative AI, 2024.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from ringmark import layout
from ringmark.cell import Cell, MeshShape, OptionValue
from ringmark.comm.all_to_all import head_exchange
from ringmark.comm.line import Line, line
from ringmark.comm.mesh import Axis, Mesh
from ringmark.kernels.base import Kernel
from ringmark.methods import base, double_ring, single, ulysses


class Method(ulysses.Method):
    """Ulysses with a zigzag ring in the middle."""

    label = "USP"
    layout = "zigzag"  # over the teams; the full name depends on the mesh and is set by setup
    default_options: ClassVar[dict[str, OptionValue]] = {
        "placement": "head_first",
        "ulysses": 0,
        "head_groups": 0,
        "wire": "auto",
    }
    choices: ClassVar[dict[str, tuple[OptionValue, ...]]] = {
        "placement": ("head_first", "ring_first"),
        "wire": ("auto", "native", "float32"),
    }
    degree = "ulysses"

    @property
    def head_first(self) -> bool:
        return self.options["placement"] == "head_first"

    def team_size(self, gpus: int, world_size: int) -> int:
        return int(self.options["ulysses"]) or (gpus if self.head_first else world_size // gpus)

    def layout_on(self, gpus: int, world_size: int) -> str:
        return layout.shared("zigzag", self.team_size(gpus, world_size), world_size, self.head_first)

    def unsupported(self, cell: Cell) -> str | None:
        ranks = self.team_size(cell.mesh.gpus, cell.world_size)
        if cell.world_size % ranks:
            return f"ulysses is {ranks}: it must divide the {cell.world_size} ranks"
        return super().unsupported(cell)

    def moves(self, mesh: MeshShape) -> str:
        """The all-to-all inside a team, and the ring through the teams with a team's heads of each block."""
        ring = Line(self.seen(Mesh(mesh.nodes, mesh.gpus, 0, torch.device("cpu"))), self.ring_axis)
        moves = self.ring_method().moves(MeshShape(ring.nodes, ring.gpus))
        return f"{super().moves(mesh)}; ring of {ring.world_size}: {moves}"

    @property
    def ring_axis(self) -> Axis:
        return "inter" if self.head_first else "intra"

    def seen(self, mesh: Mesh) -> Mesh:
        """The ranks by teams and rings: teams are the rows (head_first) or the columns (ring_first)."""
        team = self.team_size(mesh.gpus, mesh.world_size)
        ring = mesh.world_size // team
        return mesh.view(ring, team) if self.head_first else mesh.view(team, ring)

    def ring_method(self) -> double_ring.Method:
        """The ring in the middle."""
        return double_ring.Method(wire=self.options["wire"], transport=self.options["transport"])

    def setup(self, mesh: Mesh, kernel: Kernel, *, causal: bool, scale: float | None = None) -> None:
        base.Method.setup(self, mesh, kernel, causal=causal, scale=scale)
        self.layout = self.layout_on(mesh.gpus, mesh.world_size)
        seen = self.seen(mesh)
        heads_axis: Axis = "intra" if self.head_first else "inter"
        self.team = head_exchange(seen, heads_axis, "heads", self.lane(mesh))
        self.inner = single.Method() if self.team.size == mesh.world_size else self.ring_method()
        self.inner.setup(line(seen, self.ring_axis), kernel, causal=causal, scale=scale)

    def settings(self) -> dict[str, Any]:
        found = super().settings()
        if hasattr(self, "mesh"):
            ranks = self.team.size
            found |= {"ulysses_degree": ranks, "ring_degree": self.mesh.world_size // ranks}
            # What moves the heads, then what moves the ring's blocks, where both are there and differ.
            used = [self.team.transport] if ranks > 1 else []
            used += [self.inner.settings()["transport"]] if found["ring_degree"] > 1 else []
            found["transport"] = "+".join(dict.fromkeys(used)) or self.team.transport
        return found
