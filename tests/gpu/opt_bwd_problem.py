"""One attention problem on the GPU: its inputs, what flash-attn makes of it, and the answer in float64."""

from __future__ import annotations

import importlib.util
import math
import sys
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

HEAD_DIM = 128
SCALE = HEAD_DIM**-0.5


class Problem:
    """Inputs, the forward's out and lse, and delta as a method computes it."""

    def __init__(self, shape: tuple[int, int, int, int, int, bool], seed: int = 0) -> None:
        batch, seqlen_q, seqlen_k, num_heads_q, num_heads_kv, self.causal = shape
        gen = torch.Generator("cuda").manual_seed(seed)

        def normal(*size: int) -> Tensor:
            return torch.randn(*size, generator=gen, device="cuda", dtype=torch.float32).bfloat16()

        self.q = normal(batch, seqlen_q, num_heads_q, HEAD_DIM)
        self.k = normal(batch, seqlen_k, num_heads_kv, HEAD_DIM)
        self.v = normal(batch, seqlen_k, num_heads_kv, HEAD_DIM)
        self.dout = normal(batch, seqlen_q, num_heads_q, HEAD_DIM)
        self.out, self.lse = extension().fwd(
            self.q, self.k, self.v, None, None, 0.0, SCALE, self.causal, -1, -1, 0.0, False, None
        )[:2]
        self.delta = (self.dout.float() * self.out.float()).sum(-1).transpose(1, 2).contiguous()


def extension(folder: str | None = None) -> Any:
    """The compiled module that flash-attn uses, or a second one loaded from another folder."""
    import flash_attn_2_cuda

    if folder is None:
        return flash_attn_2_cuda
    (path,) = Path(folder).glob("flash_attn_2_cuda*.so")
    spec = importlib.util.spec_from_file_location("flash_attn_2_cuda", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.modules["flash_attn_2_cuda"] = flash_attn_2_cuda  # loading the second put itself in its place
    return module


def backward(
    p: Problem, out: Tensor | None, delta: Tensor | None, deterministic: bool = False, module: Any = None
) -> list[Tensor]:
    """[dq, dk, dv, softmax_d], every one of them allocated by the extension."""
    given = {} if delta is None else {"softmax_d": delta}
    grads: list[Tensor] = (module or extension()).bwd(
        p.dout, p.q, p.k, p.v, out, p.lse, None, None, None, None,
        0.0, SCALE, p.causal, -1, -1, 0.0, deterministic, None, None, **given,
    )  # fmt: skip
    return grads


def exact(p: Problem) -> list[Tensor]:
    """dq, dk, dv in float64; the causal mask is aligned to the bottom right, as flash-attn's is."""
    q, k, v = (x.double().transpose(1, 2).detach().requires_grad_() for x in (p.q, p.k, p.v))
    group = q.shape[1] // k.shape[1]
    scores = (q @ k.repeat_interleave(group, 1).transpose(-1, -2)) * SCALE
    if p.causal:
        keep = torch.ones(scores.shape[-2:], dtype=torch.bool, device="cuda")
        scores = scores.masked_fill(~keep.tril(scores.shape[-1] - scores.shape[-2]), -math.inf)
    out = scores.softmax(-1) @ v.repeat_interleave(group, 1)
    grads = torch.autograd.grad(out, (q, k, v), p.dout.double().transpose(1, 2))
    return [grad.transpose(1, 2) for grad in grads]


def relative_error(got: Tensor, want: Tensor) -> float:
    """Norm of the difference over norm of the truth."""
    return float((got.double() - want.double()).norm() / want.double().norm())
