"""Transformer Engine, heads against sequence by all-to-all over all ranks."""

from __future__ import annotations

from ringmark.peers._te import AllHeads


class Method(AllHeads):
    label = "Transformer Engine a2a"
    comm_type = "a2a"
