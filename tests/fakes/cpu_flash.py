"""Gives torch's flash-attention operator, which has CUDA kernels alone, the CPU's own kernel.

torch's context parallelism takes part in that operator and in no CPU one. With this in place everything else
of it, sharding, rotation, load balancing, merging, is the real thing on gloo. It lasts as long as the
process: call it on a forked rank.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

aten = torch.ops.aten
_kept: list[Any] = []


def _forward(
    query: Any, key: Any, value: Any, dropout_p: float = 0.0, is_causal: bool = False, debug: bool = False, *,
    scale: float | None = None,
) -> Any:  # fmt: skip
    out, lse = aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, dropout_p, is_causal, scale=scale
    )
    seed, unused = torch.zeros((), dtype=torch.int64), torch.zeros((), dtype=torch.int64)
    return out, lse, None, None, query.shape[2], key.shape[2], seed, unused, torch.empty(0)


def _backward(
    grad_out: Any, query: Any, key: Any, value: Any, out: Any, logsumexp: Any, cum_q: Any, cum_k: Any,
    max_q: int, max_k: int, dropout_p: float, is_causal: bool, seed: Any, offset: Any, *,
    scale: float | None = None,
) -> Any:  # fmt: skip
    return aten._scaled_dot_product_flash_attention_for_cpu_backward(
        grad_out, query, key, value, out, logsumexp, dropout_p, is_causal, scale=scale
    )


def install() -> None:
    library = torch.library.Library("aten", "IMPL")
    library.impl("_scaled_dot_product_flash_attention", _forward, "CPU")
    library.impl("_scaled_dot_product_flash_attention_backward", _backward, "CPU")
    _kept.append(library)

    # torch's context manager patches the function under its own name, so that is what it must be called
    def scaled_dot_product_attention(q: Any, k: Any, v: Any, *, is_causal: bool, scale: float | None) -> Any:
        return aten._scaled_dot_product_flash_attention(q, k, v, 0.0, is_causal, scale=scale)[0]

    F.scaled_dot_product_attention = scaled_dot_product_attention
