"""Ring attention: queries stay, keys and values go round; the plain deal of tokens, so causal work is uneven.

    forward   K, V travel: 2T a step, T being the bytes of one local tensor
    backward  K, V travel again, dK, dV go home: 4T a step (6T where float32 sums are passed on)

With a causal mask a rank has nothing to do for blocks of later ranks, and still passes them on. The zigzag
and striped deals (zigzag.py, stripe.py) even the work out; double_ring.py takes another way round.

Liu, Zaharia, Abbeel: Ring Attention with Blockwise Transformers for Near-Infinite Context, 2023.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import torch

from ringmark import heads, layout
from ringmark.accumulate import Gradient, Output
from ringmark.cell import Cell, MeshShape, OptionValue
from ringmark.comm import symmetric
from ringmark.comm.homeward import carried, homeward
from ringmark.comm.mesh import Lane, Mesh
from ringmark.comm.route import Covers, Fetched, Route
from ringmark.comm.tracks import Track, Tracks
from ringmark.geometry import Meeting, meeting
from ringmark.kernels.base import Kernel
from ringmark.methods import base

# Blocks fetched at a time: fewer, larger calls of the kernel, and as many blocks' buffers.
ABREAST = 4


class Method(base.Method):
    """Ring attention; the methods that circulate K and V another way are this one with other attributes."""

    label = "Ring attention"
    layout = "contiguous"
    choices: ClassVar[dict[str, tuple[OptionValue, ...]]] = {
        "tracks": (0, 1, 2),
        "wire": ("auto", "native", "float32"),
        "priority": ("normal", "high"),
        "transport": ("auto", "send_recv", "copy_engine"),
        "hops": ("ring", "straight"),
        "abreast": (0, 1, 2, 3, 4, 5, 6, 7, 8),
    }
    default_options: ClassVar[dict[str, OptionValue]] = {
        "head_groups": 0,
        "tracks": 0,
        "wire": "auto",
        "ctas": 0,
        "priority": "high",
        "transport": "auto",
        "hops": "ring",
        "abreast": 0,
    }

    def unavailable(self) -> str | None:
        return symmetric.unavailable() if self.options["transport"] == "copy_engine" else None

    def unsupported(self, cell: Cell) -> str | None:
        if self.options["abreast"] not in (0, 1) and self.options["hops"] != "straight":
            return f"abreast is {self.options['abreast']}, which needs hops=straight"
        return layout.reason_not(self.layout, cell.seqlen_global, cell.world_size) or heads.reason_not(
            int(self.options["head_groups"]), cell.shape.num_heads_kv
        )

    def levels(self, nodes: int, gpus: int) -> tuple[int, int]:
        """The outer and inner ring sizes on a mesh: here one ring over everybody."""
        return 1, nodes * gpus

    def topology(self, mesh: Mesh) -> Mesh:
        """The mesh as this method goes round it."""
        return mesh.view(*self.levels(mesh.nodes, mesh.gpus))

    def moves(self, mesh: MeshShape) -> str:
        """What a rank sends at most in an iteration, in local tensors T (bf16, as many kv heads as heads)."""
        outer, inner = self.levels(mesh.nodes, mesh.gpus)
        native = torch.bfloat16
        hops = carried(native, self.wire, straight=outer > 1 or mesh.nodes == 1)
        back_inner, back_outer = (self.backward_hop(dtype.itemsize / native.itemsize) for dtype in hops)
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
        by_copy_engine = symmetric.chosen(str(self.options["transport"]), mesh)
        lane = Lane(int(self.options["ctas"]), self.options["priority"] == "high", by_copy_engine)
        self.tracks = Tracks(self.topology(mesh), lane)

    def attend(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float
    ) -> tuple[torch.Tensor, torch.Tensor]:
        total = Output(q)

        def walk(track: Track, groups: list[heads.HeadGroup]) -> Iterator[None]:
            blocks = [(k[:, :, group.kv], v[:, :, group.kv]) for group in groups]
            for stop in track.blocks.travel(blocks, fetched=self.fetched(self.rows_met("keys", q))):
                group = groups[stop.piece]
                for party in stop.parties(self.alike("keys", q)):
                    meet = self.meeting(self.mesh.rank, party.source, q)
                    if meet is None:
                        total.fold(party, group.q)
                    else:
                        keys, values = party.met(meet.keys)
                        queries = q[:, meet.queries, group.q]
                        part = self.kernel.forward(queries, keys, values, scale, meet.causal)
                        total.fold(party, group.q, meet.queries, part)
                yield

        self.weave(q, k, walk)
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
        delta = base.delta_for(self.kernel, dout, out, lse)
        dq, dk, dv = Gradient(q), torch.empty_like(k), torch.empty_like(v)
        met = self.rows_met("keys", q)

        def walk(track: Track, groups: list[heads.HeadGroup]) -> Iterator[None]:
            results = [(dk[:, :, g.kv], dv[:, :, g.kv]) for g in groups]
            home = homeward(track.sums, results, self.wire, met)
            blocks = [(k[:, :, group.kv], v[:, :, group.kv]) for group in groups]
            for stop in track.blocks.travel(blocks, homeward=True, fetched=self.fetched(met)):
                group = groups[stop.piece]
                for party in stop.parties(self.alike("keys", q)):
                    meet = self.meeting(self.mesh.rank, party.source, q)
                    if meet is None:
                        dq.add(party, group.q)
                        home.add(party)
                        continue
                    keys, values = party.met(meet.keys)
                    rows = (slice(None), meet.queries, group.q)
                    per_row = (slice(None), group.q, meet.queries)
                    dq_part, dk_part, dv_part = self.kernel.backward(
                        dout[rows], q[rows], keys, values,
                        lse[per_row], delta[per_row], scale, meet.causal,
                        out=out[rows] if self.kernel.needs_out else None,
                    )  # fmt: skip
                    dq.add(party, group.q, meet.queries, dq_part)
                    home.add(party, meet.keys, (dk_part, dv_part))
                yield
            home.finish()

        self.weave(q, k, walk)
        return dq.result, dk, dv

    def weave(
        self,
        q: torch.Tensor,
        k: torch.Tensor,
        walk: Callable[[Track, list[heads.HeadGroup]], Iterator[None]],
    ) -> None:
        """Send the head groups round, each on its track."""
        head_groups, tracks = int(self.options["head_groups"]), int(self.options["tracks"])
        self._num_abreast = self.abreast(q)
        groups, count = heads.plan_for(q, k, head_groups, tracks, self.blocks.outer.size, self._num_abreast)
        self._num_groups, self._num_tracks = len(groups), count
        self.tracks.weave(count, groups, walk)

    @property
    def blocks(self) -> Route:
        """The way of the blocks, for methods that take no second track."""
        return self.tracks.first.blocks

    @property
    def wire(self) -> str:
        return str(self.options["wire"])

    def meeting(self, rank_q: int, rank_k: int, q: torch.Tensor) -> Meeting | None:
        return meeting(self.layout, rank_q, rank_k, q.shape[1], self.causal)

    def encounter(self, travels: str, owner: int, here: int, q: torch.Tensor) -> Meeting | None:
        """What a rank's block of keys, or of queries, meets at another rank."""
        return self.meeting(here, owner, q) if travels == "keys" else self.meeting(owner, here, q)

    def rows_met(self, travels: str, q: torch.Tensor) -> Covers:
        """The rows of one rank's block of keys, or of queries, that another rank has to do with."""

        def met(owner: int, other: int) -> slice | None:
            meet = self.encounter(travels, owner, other, q)
            return meet and (meet.keys if travels == "keys" else meet.queries)

        return met

    def alike(self, travels: str, q: torch.Tensor) -> Callable[[int], object]:
        """Blocks that meet the same rows of ours without a mask are of one kind: one call can serve them."""

        def kind(source: int) -> object:
            meet = self.encounter(travels, source, self.mesh.rank, q)
            ours = meet and (meet.queries if travels == "keys" else meet.keys)
            return meet and (ours, source if meet.causal else None)

        return kind

    def fetched(self, met: Covers) -> Fetched | None:
        """What is fetched of a block, or None where blocks are passed on whole."""
        return Fetched(met, self._num_abreast) if self.straight else None

    @property
    def straight(self) -> bool:
        """Whether blocks are fetched from their column instead of passed on."""
        return self.options["hops"] == "straight" and self.blocks.inner.within_a_node

    def abreast(self, q: torch.Tensor) -> int:
        """How many blocks are met at a time; rows of several lie side by side if a batch is one sequence."""
        asked = int(self.options["abreast"]) or ABREAST
        return max(1, min(asked, self.blocks.inner.size - 1)) if self.straight and q.shape[0] == 1 else 1

    def settings(self) -> dict[str, Any]:
        groups = getattr(self, "_num_groups", self.options["head_groups"])
        tracks = getattr(self, "_num_tracks", self.options["tracks"])
        transport = self.blocks.transport if hasattr(self, "tracks") else self.options["transport"]
        abreast = getattr(self, "_num_abreast", self.options["abreast"])
        ran = {"head_groups": groups, "tracks": tracks, "transport": transport, "abreast": abreast}
        return {**super().settings(), **ran}
