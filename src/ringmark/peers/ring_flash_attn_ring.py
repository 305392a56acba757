"""ring-flash-attention's basic ring: contiguous parts, so the last rank has the most work when causal."""

from __future__ import annotations

from ringmark.peers._ring_flash_attn import RingFlashAttention


class Method(RingFlashAttention):
    label = "ring-flash-attention ring"
    layout = "contiguous"
    function = "ring_flash_attn_func"
