"""ringmark: long-context attention methods measured side by side.

Inside a torchrun program:

    mesh = ringmark.mesh(nodes=2)                              # ranks as nodes x gpus
    attn = ringmark.method("ring", mesh, causal=True, kernel="auto")
    q, k, v = (ringmark.shard(x, attn.layout, mesh) for x in (q_full, k_full, v_full))
    out = attn(q, k, v)                                        # autograd works
    full = ringmark.unshard(out, attn.layout, mesh)
    ringmark.methods.names()                                   # what there is

torch is imported at the first use of one of these names, so that tables and the command line do without it.
"""

from __future__ import annotations

import importlib
from typing import Any

__version__ = "0.1.0"
__all__ = ["mesh", "method", "methods", "shard", "unshard"]


def __getattr__(name: str) -> Any:
    if name == "methods":  # a package of its own
        return importlib.import_module("ringmark.methods")
    if name in __all__:
        return getattr(importlib.import_module("ringmark.library"), name)
    raise AttributeError(f"module 'ringmark' has no attribute {name!r}")
