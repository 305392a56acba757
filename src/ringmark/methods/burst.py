"""BurstAttention: a double ring whose backward moves the queries' side, three quarters of the bytes.

    forward   K, V travel: 2T a step, as in double_ring.py
    backward  Q, dO and two float32 numbers a row (delta, lse) travel, dQ goes home;
              K, V, dK, dV never leave: 2.03T + T a step, against 4T for K, V, dK, dV

Between nodes blocks go round; inside one, where every GPU is as near as the next, the rows that meet are
fetched straight from their owner, several ranks' side by side (hops=ring passes them on there, too).

delta = rowsum(dO * O) stands in for O: that is opt_bwd. A kernel that must see O itself, or opt_bwd=false,
sends O in place of delta: 4.02T. Where few kv heads serve many heads (GQA) the keys' side is the smaller one:
side=auto counts the bytes and picks; side=kv is the double ring's backward.

Sun et al.: BurstAttention: An Efficient Distributed Attention Framework for Extremely Long Sequences, 2024.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import torch

from ringmark.accumulate import Gradient
from ringmark.cell import OptionValue
from ringmark.comm.homeward import carried, homeward
from ringmark.comm.route import Stop
from ringmark.comm.tracks import Track
from ringmark.geometry import Meeting
from ringmark.heads import HeadGroup
from ringmark.kernels.merge import wide
from ringmark.methods import base, double_ring


class Method(double_ring.Method):
    """BurstAttention over nodes x gpus."""

    label = "BurstAttention"
    choices: ClassVar[dict[str, tuple[OptionValue, ...]]] = {
        "layout": ("zigzag", "striped"),
        "opt_bwd": (True, False),
        "side": ("auto", "q", "kv"),
    }
    default_options: ClassVar[dict[str, OptionValue]] = {
        "layout": "zigzag",
        "opt_bwd": True,
        "side": "auto",
        "hops": "straight",
    }

    def __init__(self, **options: OptionValue) -> None:
        super().__init__(**options)
        self.layout = str(self.options["layout"])

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
        if self.side(q, k) == "kv":
            return super().gradients(dout, q, k, v, out, lse, scale)
        dq, dk, dv = torch.empty_like(q), Gradient(k), Gradient(v)
        delta = base.row_dot(dout, out) if self.opt_bwd else None
        met = self.rows_met("queries", q)

        def walk(track: Track, groups: list[HeadGroup]) -> Iterator[None]:
            home = homeward(track.sums, [(dq[:, :, group.q],) for group in groups], self.wire, met)
            blocks = [
                (
                    q[:, :, g.q],
                    dout[:, :, g.q],
                    lse[:, g.q].transpose(1, 2),  # rows second, as everything that travels
                    out[:, :, g.q] if delta is None else delta[:, g.q].transpose(1, 2),
                )
                for g in groups
            ]
            for stop in track.blocks.travel(blocks, homeward=True, fetched=self.fetched(met)):
                group = groups[stop.piece]
                for party in stop.parties(self.alike("queries", q)):
                    meet = self.meeting(party.source, self.mesh.rank, q)
                    if meet is None:  # striped, one token a rank, keys of a later rank
                        dk.add(party, group.kv)
                        dv.add(party, group.kv)
                        home.add(party)
                        continue
                    keys, values = k[:, :, group.kv], v[:, :, group.kv]
                    dq_part, dk_part, dv_part = self.backward(party, keys, values, scale, meet)
                    dk.add(party, group.kv, meet.keys, dk_part)
                    dv.add(party, group.kv, meet.keys, dv_part)
                    home.add(party, meet.queries, (dq_part,))
                yield
            home.finish()

        self.weave(q, k, walk)
        return dq, dk.result, dv.result

    def backward(
        self, stop: Stop, k: torch.Tensor, v: torch.Tensor, scale: float, meet: Meeting
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The kernel's (dq, dk, dv) for the rows of a visiting query block that meet our keys."""
        q, dout, lse, for_out = stop.met(meet.queries)
        lse = lse.transpose(1, 2)
        if self.opt_bwd:
            out, delta = None, for_out.transpose(1, 2)
        else:
            out, delta = for_out, base.delta_for(self.kernel, dout, for_out, lse)
        keys = (slice(None), meet.keys)
        return self.kernel.backward(dout, q, k[keys], v[keys], lse, delta, scale, meet.causal, out=out)

    def backward_hop(self, carried: float) -> float:
        """T in a backward hop at head_dim 128: Q, dO, lse, delta or O, and dQ; on the keys' side as ever."""
        if self.options["side"] == "kv":
            return super().backward_hop(carried)
        per_row = 4 / (128 * 2)
        return 2 + per_row + (per_row if self.options["opt_bwd"] else 1) + carried

    @property
    def opt_bwd(self) -> bool:
        """Whether delta travels; else O does, because the kernel must see it or the option says so."""
        return bool(self.options["opt_bwd"]) and not self.kernel.needs_out

    def side(self, q: torch.Tensor, k: torch.Tensor) -> str:
        """Which side travels in the backward."""
        choice = str(self.options["side"])
        if choice == "auto":
            # The slowest link that is there decides: between nodes if there are any.
            inner, outer = carried(q.dtype, self.wire, self.blocks.inner.within_a_node)
            slowest = outer if self.blocks.outer.size > 1 else inner
            bytes_q, bytes_kv = hop_bytes(q.numel(), k.numel(), q.shape[3], q.dtype, slowest, self.opt_bwd)
            choice = "q" if bytes_q <= bytes_kv else "kv"
        self._ran_side = choice
        return choice

    def settings(self) -> dict[str, Any]:
        ran_side = getattr(self, "_ran_side", self.options["side"])
        # The keys' side needs no O on the way, so there is nothing to optimise away.
        opt_bwd = self.opt_bwd if hasattr(self, "kernel") else self.options["opt_bwd"]
        return {**super().settings(), "side": ran_side, "opt_bwd": opt_bwd}


def hop_bytes(
    numel_q: int, numel_k: int, head_dim: int, dtype: torch.dtype, carried: torch.dtype, opt_bwd: bool
) -> tuple[int, int]:
    """Bytes of one backward hop with the queries' side travelling, and with the keys' side."""
    row = numel_q // head_dim * wide(dtype).itemsize
    stands_for_out = row if opt_bwd else numel_q * dtype.itemsize
    side_q = numel_q * (2 * dtype.itemsize + carried.itemsize) + row + stands_for_out
    side_kv = 2 * numel_k * (dtype.itemsize + carried.itemsize)
    return side_q, side_kv
