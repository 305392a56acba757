"""ring-flash-attention's zigzag ring: balanced work under the causal mask."""

from __future__ import annotations

from ringmark.peers._ring_flash_attn import RingFlashAttention


class Method(RingFlashAttention):
    label = "ring-flash-attention zigzag"
    layout = "zigzag"
    function = "zigzag_ring_flash_attn_func"
    causal_only = True
