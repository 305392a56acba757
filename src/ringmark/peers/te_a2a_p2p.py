"""Transformer Engine, all-to-all inside teams of neighbours and a ring across the teams.

The option a2a is the size of a team; 0, the default, is a node.
"""

from __future__ import annotations

from typing import Any, ClassVar

from ringmark.cell import Cell
from ringmark.comm.mesh import Mesh
from ringmark.peers._peer import degree_misfit, heads_misfit
from ringmark.peers._te import TransformerEngine


class Method(TransformerEngine):
    label = "Transformer Engine a2a+p2p"
    comm_type = "a2a+p2p"
    default_options: ClassVar = {"a2a": 0}

    def _team(self, gpus: int) -> int:
        return int(self.options["a2a"]) or gpus

    def impossible(self, cell: Cell) -> str | None:
        team = self._team(cell.mesh.gpus)
        return degree_misfit(cell.world_size, team, "a2a") or heads_misfit(cell, team, "a2a")

    def parallel(self, mesh: Mesh) -> dict[str, Any]:
        """[the all-to-all group, the ring's group]; where one of them has one rank, the other kind alone."""
        team = self._team(mesh.gpus)
        view = mesh.view(mesh.world_size // team, team)
        inside, across = view.group("intra", "te_a2a_p2p_a2a"), view.group("inter", "te_a2a_p2p_p2p")
        groups: Any = [inside.process_group, across.process_group]
        comm_type = self.comm_type
        if inside.size == 1 or across.size == 1:
            groups = across.process_group if inside.size == 1 else inside.process_group
            comm_type = "p2p" if inside.size == 1 else "a2a"
        return {
            "cp_group": groups,
            "cp_global_ranks": list(range(mesh.world_size)),
            "cp_stream": self.stream(mesh),
            "cp_comm_type": comm_type,
        }

    def settings(self) -> dict[str, Any]:
        found = super().settings()
        if hasattr(self, "mesh"):
            team = self._team(self.mesh.gpus)
            found |= {"a2a_degree": team, "p2p_degree": self.mesh.world_size // team}
        return found
