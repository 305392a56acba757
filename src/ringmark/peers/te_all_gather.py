"""Transformer Engine, all keys and values gathered before the attention."""

from __future__ import annotations

from ringmark.peers._te import TransformerEngine


class Method(TransformerEngine):
    label = "Transformer Engine all-gather"
    comm_type = "all_gather"
