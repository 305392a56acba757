"""ring-flash-attention's striped ring: token t on rank t mod N, every step causal."""

from __future__ import annotations

from ringmark.peers._ring_flash_attn import RingFlashAttention


class Method(RingFlashAttention):
    label = "ring-flash-attention stripe"
    layout = "striped"
    function = "stripe_flash_attn_func"
    causal_only = True
