"""Zigzag ring: ring attention on tokens dealt forth and back, which makes causal work equal.

    4 ranks, 8 half-blocks     owner 0 1 2 3 3 2 1 0

A rank owns one half-block from the front and its mirror image from the back. At the own block the work is a
causal square; with keys of an earlier rank all queries see the first half of them; with keys of a later
rank the second half of the queries sees all of them. Each is half of a block pair, so no rank waits.

Zhu: ring-flash-attention, 2024 (zigzag_ring); the deal is also Megatron's and Llama 3's.
"""

from __future__ import annotations

from ringmark.methods import ring


class Method(ring.Method):
    """Ring attention with the zigzag deal; which rows meet is geometry.py."""

    label = "Zigzag ring"
    layout = "zigzag"
