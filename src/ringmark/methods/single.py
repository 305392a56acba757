"""The bound: the local kernel alone, with one GPU's share of the work and no communication.

On one GPU this is plain attention. On N each rank gets a problem of its own with the work of the cell: S/N
queries against S/2 keys unmasked where the cell is causal (as many pairs as a balanced method gives a rank),
against S keys where it is full. With the same kernel a method is faster than this only where the kernel is
slower in one such call than in the smaller ones that the method makes: `head_groups` cuts this one by heads,
and the fastest `single` row is the bound.
"""

from __future__ import annotations

from typing import ClassVar

import torch

from ringmark import heads
from ringmark.cell import Cell, MeshShape, OptionValue
from ringmark.kernels.merge import copy_, wide
from ringmark.methods import base


class Method(base.Method):
    """One kernel call forward, one backward; or one for each group of heads."""

    label = "Kernel alone (bound)"
    layout = "contiguous"
    default_options: ClassVar[dict[str, OptionValue]] = {"head_groups": 1}

    def unsupported(self, cell: Cell) -> str | None:
        count = int(self.options["head_groups"])
        if count == 0:
            return "head_groups is 0: the bound has no automatic choice, give 1 or more"
        return too_short(cell) or heads.reason_not(count, cell.shape.num_heads_kv)

    def moves(self, mesh: MeshShape) -> str:
        return "nothing moves"

    def masked(self) -> bool:
        return self.causal and self.mesh.world_size == 1

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self.options["head_groups"] == 1:
            return self.kernel.forward(q, k, v, scale, self.masked())
        batch, seqlen, num_heads, _ = q.shape
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        lse = torch.empty(batch, num_heads, seqlen, dtype=wide(q.dtype), device=q.device)
        for ours, theirs in self.groups(q, k):
            part, part_lse = self.kernel.forward(
                q[:, :, ours], k[:, :, theirs], v[:, :, theirs], scale, self.masked()
            )
            copy_(part, out[:, :, ours])
            lse[:, ours] = part_lse
        return out, lse

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
        if self.options["head_groups"] == 1:
            return self.kernel.backward(dout, q, k, v, lse, delta, scale, self.masked(), out=needed)
        dq, dk, dv = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
        for ours, theirs in self.groups(q, k):
            parts = self.kernel.backward(
                dout[:, :, ours], q[:, :, ours], k[:, :, theirs], v[:, :, theirs],
                lse[:, ours], delta[:, ours], scale, self.masked(),
                out=None if needed is None else needed[:, :, ours],
            )  # fmt: skip
            for part, whole, of in zip(parts, (dq, dk, dv), (ours, theirs, theirs)):
                copy_(part, whole[:, :, of])
        return dq, dk, dv

    def groups(self, q: torch.Tensor, k: torch.Tensor) -> list[heads.HeadGroup]:
        """The heads of each call."""
        return heads.head_groups(q.shape[2], k.shape[2], int(self.options["head_groups"]))


def too_short(cell: Cell) -> str | None:
    """A share of the work too small to be one: no row, or for a backward one, whose only key in the yardstick
    has the weight 1 whatever q and k are; their exact gradient is zero, and any rounding infinitely wrong."""
    least = 1 if cell.phase == "fwd" else 2
    if cell.world_size == 1 or cell.seqlen_global >= least * cell.world_size:
        return None
    return (
        f"seqlen_global {cell.seqlen_global} over {cell.world_size} ranks is less than {least} a rank, which "
        f"the bound needs for {cell.phase}: take {least * cell.world_size} or more"
    )
