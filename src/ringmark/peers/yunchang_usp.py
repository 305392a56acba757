"""yunchang's unified sequence parallelism: all-to-all inside teams of neighbours, a ring across the teams.

The option ulysses is the size of a team (0, the default, is a node); ring is yunchang's name of the ring.
Its all-to-all puts a team's rows one after the other, so the ring's layout holds for teams, not for ranks:
zigzag over 2 teams of 4 is the layout zigzag_by4.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
import torch.distributed as dist

from ringmark import layout as layouts
from ringmark.cell import Cell
from ringmark.comm.mesh import Mesh
from ringmark.kernels.base import Kernel
from ringmark.peers._peer import Peer, degree_misfit, heads_misfit

_RING_LAYOUTS = {"basic": "contiguous", "zigzag": "zigzag", "strip": "striped"}
_groups: dict[tuple[int, int, int], tuple[Any, Any]] = {}  # communicators cost memory: made once a world


class Method(Peer):
    label = "yunchang USP"
    library = "yunchang"
    distribution = "yunchang"
    obtain = "pip install --no-deps yunchang"
    backends: ClassVar = {"flash2": "FA", "sdpa_flash": "TORCH_FLASH"}
    default_options: ClassVar = {"ulysses": 0, "ring": "zigzag", "backend": "auto"}
    choices: ClassVar = {"ring": ("basic", "zigzag", "strip"), "backend": ("auto", "flash_attn", "torch")}

    @classmethod
    def load(cls) -> Any:
        import yunchang
        import yunchang.globals
        import yunchang.kernels

        return yunchang

    def _team(self, gpus: int) -> int:
        return int(self.options["ulysses"]) or gpus

    def _kernel(self, name: str) -> str:
        """The kernel that runs: the one that the option names, else the cell's, else flash-attn."""
        named = {"flash_attn": "flash2", "torch": "sdpa_flash"}
        return named.get(str(self.options["backend"]), name if name in self.backends else "flash2")

    def layout_on(self, gpus: int, world_size: int) -> str:
        kind = _RING_LAYOUTS[str(self.options["ring"])]
        return layouts.shared(kind, self._team(gpus), world_size)

    def impossible(self, cell: Cell) -> str | None:
        team, ring, runs = self._team(cell.mesh.gpus), self.options["ring"], self._kernel(cell.kernel)
        if cell.kernel not in ("auto", runs):
            return f"backend={self.options['backend']} is kernel {runs}, not {cell.kernel}: leave it at auto"
        if runs == "sdpa_flash" and cell.phase == "fwd_bwd":
            return "yunchang's torch backend has no backward: take phase fwd, or kernel flash2"
        if runs == "sdpa_flash" and cell.shape.num_heads_q != cell.shape.num_heads_kv:
            return "yunchang's torch backend takes as many key heads as query heads"
        if ring != "basic" and not cell.shape.causal:
            return f"yunchang's {ring} ring is written for the causal mask alone: take ring=basic"
        return degree_misfit(cell.world_size, team, "ulysses") or heads_misfit(cell, team, "ulysses")

    def unavailable(self) -> str | None:
        reason = super().unavailable()
        if reason is None and self.options["backend"] != "torch" and not self.load().globals.HAS_FLASH_ATTN:
            return f"{self.implementation} finds no flash-attn; backend=torch needs none, and has no backward"
        return reason

    def setup(self, mesh: Mesh, kernel: Kernel, *, causal: bool, scale: float | None = None) -> None:
        super().setup(mesh, kernel, causal=causal, scale=scale)
        self.kernel_name = self._kernel(kernel.name)
        self.backend = self.backends[self.kernel_name]
        self._attention = self._module(mesh, self.load())

    def _module(self, mesh: Mesh, yunchang: Any) -> Any:
        """yunchang keeps its two groups in a singleton, from which a new layer takes them."""
        team = self._team(mesh.gpus)
        ring = mesh.world_size // team
        kept, key = yunchang.globals.PROCESS_GROUP, (id(dist.group.WORLD), team, ring)
        if key not in _groups:
            yunchang.set_seq_parallel_pg(team, ring, mesh.rank, mesh.world_size)
            _groups[key] = (kept.ULYSSES_PG, kept.RING_PG)
        kept.ULYSSES_PG, kept.RING_PG = _groups[key]
        return yunchang.LongContextAttention(
            ring_impl_type=str(self.options["ring"]), attn_type=yunchang.kernels.AttnType[self.backend]
        )

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self._attention(
            q, k, v, dropout_p=0.0, softmax_scale=self.scale, causal=self.causal, deterministic=False
        )
        return out

    def settings(self) -> dict[str, Any]:
        found = super().settings()
        if hasattr(self, "mesh"):
            team = self._team(self.mesh.gpus)
            found |= {"ulysses_degree": team, "ring_degree": self.mesh.world_size // team}
            found["attn_type"] = self.backend
        return found
