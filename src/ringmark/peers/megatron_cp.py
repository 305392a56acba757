"""Megatron's context parallelism: Transformer Engine's ring, called the way Megatron-Core calls it.

Megatron-Core has no ring of its own. Its attention layer hands Transformer Engine activations that run
(S, B, H, D), the group at construction, one side stream for all layers, the mask at each call, and, where
the configuration says nothing, the kind p2p. That is this row; te_p2p is the same ring with (B, S, H, D).
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch

from ringmark.cell import Cell
from ringmark.comm.mesh import Mesh
from ringmark.peers._te import TransformerEngine


class Method(TransformerEngine):
    label = "Megatron CP (TE p2p)"
    comm_type = "p2p"
    qkv_format = "sbhd"
    _one_stream: ClassVar[torch.cuda.Stream | None] = None

    def impossible(self, cell: Cell) -> str | None:
        if cell.shape.batch > 1:
            return (
                "Megatron's activations are born (S, B, H, D): above batch 1 this harness would charge "
                "it a transposition that it never makes; take batch 1, where the two are the same memory"
            )
        return None

    def stream(self, mesh: Mesh) -> torch.cuda.Stream | None:
        if Method._one_stream is None:
            Method._one_stream = super().stream(mesh)
        return Method._one_stream

    def build(self, num_heads_q: int, num_heads_kv: int, head_dim: int) -> Any:
        return self.load()(
            num_attention_heads=num_heads_q,
            kv_channels=head_dim,
            num_gqa_groups=num_heads_kv,
            attention_dropout=0.0,
            attn_mask_type=self._mask,
            attention_type="self",
            layer_number=1,
            softmax_scale=self.scale,
            **(self._parallel or {}),
        )

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        batch, seqlen_local, heads, head_dim = q.shape
        self._select()
        attention = self._module(heads, k.shape[2], head_dim)
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))
        out: torch.Tensor = attention(q, k, v, None, attn_mask_type=self._mask)
        self._verify()
        return out.view(seqlen_local, batch, heads, head_dim).transpose(0, 1)
