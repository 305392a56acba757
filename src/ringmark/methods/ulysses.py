"""Ulysses: an all-to-all turns few rows of all heads into all rows of few heads; attention itself is local.

    forward   Q, K, V -> heads; attention; O -> rows          each T (u - 1) / u, u being the ranks
    backward  dO -> heads; backward; dQ, dK, dV -> rows       the same

What the backward needs (Q, K, V, O and lse, by heads) is kept from the forward rather than moved again, which
takes 4 T of memory. As O is among it, O does not travel in the backward either.

Where the ranks are on several nodes, a rank's heads are handled in groups: while the kernel works on one, the
next is on its way in and the last on its way out, so only the first and the last group's transfers are
exposed. Inside a node the transfers are shorter than what smaller kernels lose. The number of ranks must
divide the heads.

Jacobs et al.: DeepSpeed Ulysses, 2023.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any, ClassVar

import torch

from ringmark import layout
from ringmark.cell import Cell, MeshShape, OptionValue
from ringmark.comm import all_to_all, symmetric
from ringmark.comm.all_to_all import Pending, head_exchange
from ringmark.comm.mesh import Lane, Mesh
from ringmark.kernels.base import Kernel
from ringmark.methods import base, single

# A group whose queries take less than this keeps the kernel too short to hide a transfer under.
GROUP_BYTES = 32 << 20


class Method(base.Method):
    """All-to-all around local attention; usp.py puts a ring in the middle."""

    label = "DeepSpeed Ulysses"
    layout = "contiguous"
    default_options: ClassVar[dict[str, OptionValue]] = {"head_groups": 0, "transport": "auto"}
    choices: ClassVar[dict[str, tuple[OptionValue, ...]]] = {
        "transport": ("auto", "send_recv", "copy_engine")
    }
    degree: ClassVar[str | None] = None  # the option that says how many ranks a team has

    def unavailable(self) -> str | None:
        return symmetric.unavailable() if self.options["transport"] == "copy_engine" else None

    def unsupported(self, cell: Cell) -> str | None:
        ranks, shape = self.team_size(cell.mesh.gpus, cell.world_size), cell.shape
        dealt = self.layout_on(cell.mesh.gpus, cell.world_size)
        return (
            all_to_all.reason_not(shape.num_heads_q, shape.num_heads_kv, ranks, self.degree)
            or layout.reason_not(dealt, cell.seqlen_global, cell.world_size)
            or self.too_many_groups(ranks, shape.num_heads_kv)
        )

    def too_many_groups(self, ranks: int, num_heads_kv: int) -> str | None:
        """A rank's heads are cut into groups: no more than it gets, and none where nothing is dealt."""
        count = int(self.options["head_groups"])
        if count > 1 and ranks == 1:
            return f"head_groups is {count}, but no heads are dealt to teams of one rank: leave it at 0"
        most = all_to_all.local_heads(num_heads_kv, ranks)
        if count > most:
            return f"head_groups is {count}, but a rank gets {most} kv heads: take fewer, or 0 for automatic"
        return None

    def team_size(self, gpus: int, world_size: int) -> int:
        """How many ranks deal their heads among each other."""
        return world_size

    def moves(self, mesh: MeshShape) -> str:
        """Q, K, V go and O comes back; in the backward dO goes and dQ, dK, dV come back."""
        team = self.team_size(mesh.gpus, mesh.world_size)
        each = 4 * (team - 1) / team
        return f"all-to-all over {team}: {each:.3g}T forward and {each:.3g}T backward"

    def setup(self, mesh: Mesh, kernel: Kernel, *, causal: bool, scale: float | None = None) -> None:
        super().setup(mesh, kernel, causal=causal, scale=scale)
        self.team = head_exchange(mesh, "flat", "heads", self.lane(mesh))
        self.inner: base.Method = single.Method()
        self.inner.setup(Mesh(1, 1, 0, mesh.device), kernel, causal=causal, scale=scale)

    def lane(self, mesh: Mesh) -> Lane:
        """How the all-to-all travels."""
        return Lane(copy_engine=symmetric.chosen(str(self.options["transport"]), mesh))

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        if self.team.size == 1:  # nothing to move: no copies either
            self._num_groups = 1
            return self.inner(q, k, v)
        scale = self.scale if self.scale is not None else q.shape[-1] ** -0.5
        return _ByHeads.apply(self, q, k, v, scale)  # type: ignore[no-any-return, no-untyped-call]

    def settings(self) -> dict[str, Any]:
        used = getattr(self, "_num_groups", self.options["head_groups"])
        transport = self.team.transport if hasattr(self, "team") else self.options["transport"]
        return {**super().settings(), "head_groups": used, "transport": transport}

    def head_spans(self, q: torch.Tensor, k: torch.Tensor) -> list[tuple[slice, slice]]:
        """The groups of the heads that a rank gets: which of its query heads, which of its kv heads."""
        heads_q = all_to_all.local_heads(q.shape[2], self.team.size)
        heads_kv = all_to_all.local_heads(k.shape[2], self.team.size)
        wanted = int(self.options["head_groups"])
        if not wanted:
            wanted = q.nbytes // GROUP_BYTES if self.team.crosses_nodes else 1
        count = max(1, min(wanted, heads_kv))
        self._num_groups = count
        cuts = [heads_kv * index // count for index in range(count + 1)]
        share = heads_q // heads_kv
        return [(slice(a * share, b * share), slice(a, b)) for a, b in pairwise(cuts)]

    def attend_by_heads(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> tuple[torch.Tensor, list[torch.Tensor]]:
        """This rank's rows of out, and per group its q, k, v, out, lse by heads."""
        team, spans = self.team, self.head_spans(q, k)
        out = torch.empty_like(q, memory_format=torch.contiguous_format)
        kept: list[torch.Tensor] = []
        leaving: list[Pending] = []
        arriving = self._post(0, spans, (q, k, v))
        for index, (span_q, _) in enumerate(spans):
            q_group, k_group, v_group = arriving.wait()
            if index + 1 < len(spans):
                arriving = self._post(index + 1, spans, (q, k, v))
            part, lse = self.inner.attend(q_group, k_group, v_group, scale)
            leaving.append(team.to_sequence([part], [span_q], [out]))
            kept += [q_group, k_group, v_group, part, lse]
        for pending in leaving:
            pending.wait()
        return out, kept

    def gradients_by_heads(
        self, dout: torch.Tensor, kept: list[torch.Tensor], kv_like: torch.Tensor, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """This rank's rows of (dq, dk, dv)."""
        team, spans = self.team, self.head_spans(dout, kv_like)
        dq = torch.empty_like(dout)
        dk, dv = (torch.empty_like(kv_like, memory_format=torch.contiguous_format) for _ in range(2))
        leaving: list[Pending] = []
        arriving = self._post(0, spans, (dout,))
        for index, (span_q, span_kv) in enumerate(spans):
            (dout_group,) = arriving.wait()
            if index + 1 < len(spans):
                arriving = self._post(index + 1, spans, (dout,))
            q, k, v, out, lse = kept[5 * index : 5 * index + 5]
            parts = self.inner.gradients(dout_group, q, k, v, out, lse, scale)
            leaving.append(team.to_sequence(parts, [span_q, span_kv, span_kv], [dq, dk, dv]))
        for pending in leaving:
            pending.wait()
        return dq, dk, dv

    def _post(
        self, index: int, spans: list[tuple[slice, slice]], tensors: tuple[torch.Tensor, ...]
    ) -> Pending:
        """Send a group on its way to its heads: q (or dout), then k and v where they are given."""
        span_q, span_kv = spans[index]
        return self.team.to_heads(tensors, [span_q, span_kv, span_kv][: len(tensors)])


class _ByHeads(torch.autograd.Function):
    """Ties the two together for autograd; what is kept is by heads, the inputs are not kept at all."""

    @staticmethod
    def forward(ctx: Any, method: Method, q: Any, k: Any, v: Any, scale: float) -> torch.Tensor:
        out, kept = method.attend_by_heads(q, k, v, scale)
        ctx.save_for_backward(*kept)
        ctx.method, ctx.scale = method, scale
        ctx.kv_like = torch.empty((), dtype=k.dtype, device=k.device).expand(k.shape)  # its shape, no memory
        return out

    @staticmethod
    def backward(ctx: Any, dout: torch.Tensor) -> Any:
        kept = list(ctx.saved_tensors)
        grads = ctx.method.gradients_by_heads(dout.contiguous(), kept, ctx.kv_like, ctx.scale)
        return None, *grads, None
