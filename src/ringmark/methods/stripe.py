"""Striped attention: ring attention on tokens dealt like cards, which makes causal work equal.

    4 ranks     owner 0 1 2 3 0 1 2 3

Token t belongs to rank t mod N, so every block pair is nearly a causal square: with its diagonal for keys of
an earlier rank or our own, without it for keys of a later rank (then query i sees keys 0 .. i-1, which is a
causal square between the queries from the second on and the keys up to the last but one).

Brandon et al.: Striped Attention: Faster Ring Attention for Causal Transformers, 2023.
"""

from __future__ import annotations

from ringmark.methods import ring


class Method(ring.Method):
    """Ring attention with the striped deal; which rows meet is geometry.py."""

    label = "Striped attention"
    layout = "striped"
