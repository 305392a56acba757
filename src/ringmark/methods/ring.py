"""Ring attention: queries stay, keys and values go round; the plain deal of tokens, so causal work is uneven.

    forward   K, V travel: 2T a step, T being the bytes of one local tensor
    backward  K, V travel again, dK, dV trail behind them and end at home: 4T a step (more on float32 wires)

With a causal mask a rank has nothing to do for blocks of later ranks, and still passes them on. The zigzag
and striped deals (zigzag.py, stripe.py) even the work out; double_ring.py takes another way round.

Liu, Zaharia, Abbeel: Ring Attention with Blockwise Transformers for Near-Infinite Context, 2023.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from ringmark import heads, layout
from ringmark.accumulate import Gradient, Output
from ringmark.cell import Cell, MeshShape, OptionValue
from ringmark.comm import copy_engine
from ringmark.comm.homeward import WIRES, Homeward, wire_dtypes
from ringmark.comm.mesh import Lane, Mesh
from ringmark.comm.route import Route
from ringmark.geometry import Meeting, meeting
from ringmark.kernels.base import Kernel
from ringmark.methods import base

PRIORITIES = ("normal", "high")
TRANSPORTS = ("send_recv", "copy_engine")


class Method(base.Method):
    """Ring attention; the methods that circulate K and V another way are this one with other attributes."""

    label = "Ring attention"
    layout = "contiguous"
    default_options: ClassVar[dict[str, OptionValue]] = {
        "head_groups": 0,
        "wire": "auto",
        "ctas": 0,
        "priority": "high",
        "transport": "send_recv",
    }

    def unavailable(self) -> str | None:
        return copy_engine.unavailable() if self.options["transport"] == "copy_engine" else None

    def unsupported(self, cell: Cell) -> str | None:
        wire = self.options["wire"]
        if wire not in WIRES:
            return f"wire is {wire}: choose one of {', '.join(WIRES)}"
        if self.options["priority"] not in PRIORITIES:
            return f"priority is {self.options['priority']}: choose one of {', '.join(PRIORITIES)}"
        if self.options["transport"] not in TRANSPORTS:
            return f"transport is {self.options['transport']}: choose one of {', '.join(TRANSPORTS)}"
        return layout.reason_not(self.layout, cell.seqlen_global, cell.world_size) or heads.reason_not(
            self.options["head_groups"], cell.shape.num_heads_kv
        )

    def levels(self, nodes: int, gpus: int) -> tuple[int, int]:
        """The outer and inner ring sizes on a mesh: here one ring over everybody."""
        return 1, nodes * gpus

    def topology(self, mesh: Mesh) -> Mesh:
        """The mesh as this method goes round it."""
        return mesh.view(*self.levels(mesh.nodes, mesh.gpus))

    def moves(self, mesh: MeshShape) -> str:
        """What a rank sends in an iteration, in local tensors T (bf16, as many kv heads as heads)."""
        outer, inner = self.levels(mesh.nodes, mesh.gpus)
        carried = [
            dtype.itemsize / torch.bfloat16.itemsize for dtype in wire_dtypes(torch.bfloat16, self.wire)
        ]
        back_inner, back_outer = (self.backward_hop(one) for one in carried)
        if outer == 1:
            return f"{inner - 1} hops of 2T forward and of {back_inner:.3g}T backward"
        return (
            f"{outer * (inner - 1)} inner and {outer - 1} outer hops of 2T forward, "
            f"of {back_inner:.3g}T and {back_outer:.3g}T backward"
        )

    def backward_hop(self, carried: float) -> float:
        """T in a backward hop: K, V, and dK, dV, each `carried` times as wide as the model's dtype."""
        return 2 + 2 * carried

    def setup(self, mesh: Mesh, kernel: Kernel, *, causal: bool, scale: float | None = None) -> None:
        super().setup(mesh, kernel, causal=causal, scale=scale)
        # The blocks and the sums behind them travel at the same time: a communicator for each.
        by_copy_engine = self.options["transport"] == "copy_engine"
        lane = Lane(int(self.options["ctas"]), self.options["priority"] == "high", by_copy_engine)
        self.blocks = Route(self.topology(mesh), "blocks", lane)
        self.sums = Route(self.topology(mesh), "sums", lane)

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        groups, total = self.groups(q, k), Output(q)
        for stop in self.blocks.travel([(k[:, :, group.kv], v[:, :, group.kv]) for group in groups]):
            group, meet = groups[stop.piece], self.meeting(self.mesh.rank, stop.source, q)
            if meet is None:
                total.fold(stop, group.q)
                continue
            keys, values = (tensor[:, meet.keys] for tensor in stop.tensors)
            queries = q[:, meet.queries, group.q]
            part = self.kernel.forward(queries, keys, values, scale, meet.causal)
            total.fold(stop, group.q, meet.queries, part)
        return total.out, total.lse

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
        groups, delta = self.groups(q, k), base.delta_for(self.kernel, dout, out, lse)
        dq, dk, dv = Gradient(q), torch.empty_like(k), torch.empty_like(v)
        home = Homeward(self.sums, [(dk[:, :, g.kv], dv[:, :, g.kv]) for g in groups], self.wire)
        blocks = [(k[:, :, group.kv], v[:, :, group.kv]) for group in groups]
        for stop in self.blocks.travel(blocks, homeward=True):
            group, meet = groups[stop.piece], self.meeting(self.mesh.rank, stop.source, q)
            if meet is None:
                dq.add(stop, group.q)
                home.add(stop)
                continue
            rows, keys = (slice(None), meet.queries, group.q), (slice(None), meet.keys)
            per_row = (slice(None), group.q, meet.queries)
            dq_part, dk_part, dv_part = self.kernel.backward(
                dout[rows], q[rows], stop.tensors[0][keys], stop.tensors[1][keys],
                lse[per_row], delta[per_row], scale, meet.causal,
                out=out[rows] if self.kernel.needs_out else None,
            )  # fmt: skip
            dq.add(stop, group.q, meet.queries, dq_part)
            home.add(stop, meet.keys, (dk_part, dv_part))
        home.finish()
        return dq.result, dk, dv

    @property
    def wire(self) -> str:
        return str(self.options["wire"])

    def groups(self, q: torch.Tensor, k: torch.Tensor) -> list[heads.HeadGroup]:
        found = heads.groups_for(q, k, int(self.options["head_groups"]), self.blocks.outer.size)
        self._num_groups = len(found)
        return found

    def meeting(self, rank_q: int, rank_k: int, q: torch.Tensor) -> Meeting | None:
        return meeting(self.layout, rank_q, rank_k, q.shape[1], self.causal)

    def settings(self) -> dict[str, Any]:
        used = getattr(self, "_num_groups", self.options["head_groups"])
        transport = self.blocks.transport if hasattr(self, "blocks") else self.options["transport"]
        return {**super().settings(), "head_groups": used, "transport": transport}
