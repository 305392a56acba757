"""The bound: the local kernel alone, with one GPU's share of the work and no communication.

On one GPU this is plain attention. On N each rank gets a problem of its own with the work of the cell: S/N
queries against S/2 keys unmasked where the cell is causal (as many pairs as a balanced method gives a rank),
against S keys where it is full. With the same kernel a method is faster than this only where the kernel is
slower in one such call than in the smaller ones that the method makes; tables say where that is so.
"""

from __future__ import annotations

import torch

from ringmark.cell import MeshShape
from ringmark.methods import base


class Method(base.Method):
    """One kernel call forward, one backward."""

    label = "Kernel alone (bound)"
    layout = "contiguous"
    private_problem = True

    def moves(self, mesh: MeshShape) -> str:
        return "nothing moves"

    def masked(self) -> bool:
        return self.causal and self.mesh.world_size == 1

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        return self.kernel.forward(q, k, v, scale, self.masked())

    def gradients(
        self,
        dout: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        lse: torch.Tensor,
        scale: float,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        delta = base.delta_for(self.kernel, dout, out, lse)
        needed = out if self.kernel.needs_out else None
        return self.kernel.backward(dout, q, k, v, lse, delta, scale, self.masked(), out=needed)
