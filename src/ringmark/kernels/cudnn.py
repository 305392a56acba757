"""cuDNN's attention through torch's operator.

The operator's arguments changed order and number between torch releases (2.4 has no attn_bias; from 2.5 the
random state comes before the lengths), so they are handed over by the names in its own schema. It takes
(B, H, S, D): views of what we hold, and what it returns keeps our order in memory. lse is (B, H, S, 1).

Its backward counts the elements of dout in 32 bits where it makes delta: past them dq and dk are wrong, with
no error. So it is not asked.
"""

from __future__ import annotations

from typing import Any

import torch

from ringmark.cell import Shape
from ringmark.errors import UserError
from ringmark.kernels import _gpu

FORWARD = "_scaled_dot_product_cudnn_attention"
BACKWARD = "_scaled_dot_product_cudnn_attention_backward"
REACH_MAX = 2**31


class Cudnn:
    """cuDNN's fused attention."""

    name = "cudnn"
    needs_out = True
    deterministic = False

    def version(self) -> str:
        number = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
        return f"cuDNN {number} through torch {torch.__version__}"

    def unavailable(self) -> str | None:
        if not hasattr(torch.ops.aten, BACKWARD):
            return f"this torch has no {BACKWARD} operator"
        if not torch.backends.cudnn.is_available():  # type: ignore[no-untyped-call]
            return "this torch has no cuDNN"
        return _gpu.no_gpu((8, 0))

    def unfit(self, shape: Shape, device: torch.device) -> str | None:
        return _gpu.misfit(shape, device, head_dim_max=128)

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        heads_first = {"query": q.transpose(1, 2), "key": k.transpose(1, 2), "value": v.transpose(1, 2)}
        out, lse, *_ = by_name(
            FORWARD,
            **heads_first,
            attn_bias=None,
            compute_log_sumexp=True,
            dropout_p=0.0,
            is_causal=causal,
            return_debug_mask=False,
            scale=scale,
        )
        return out.transpose(1, 2).contiguous(), lse.reshape(lse.shape[:3])

    def backward(
        self,
        dout: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        lse: torch.Tensor,
        delta: torch.Tensor,
        scale: float,
        causal: bool,
        out: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        if out is None:
            raise ValueError("cudnn needs out in its backward: it takes no delta")
        if max(_reach(dout), _reach(out)) > REACH_MAX:
            raise UserError(
                f"the backward of cudnn is wrong where the queries of a GPU ({q.shape[1]} rows here) span "
                "more than 2**31 elements: take another kernel, or more GPUs"
            )
        state = torch.zeros((), dtype=torch.int64, device=q.device)
        gradients = by_name(
            BACKWARD,
            grad_out=dout.transpose(1, 2),
            query=q.transpose(1, 2),
            key=k.transpose(1, 2),
            value=v.transpose(1, 2),
            out=out.transpose(1, 2),
            logsumexp=lse.contiguous().unsqueeze(-1),
            philox_seed=state,
            philox_offset=state,
            attn_bias=None,
            cum_seq_q=None,
            cum_seq_k=None,
            max_q=q.shape[1],
            max_k=k.shape[1],
            dropout_p=0.0,
            is_causal=causal,
            scale=scale,
        )
        dq, dk, dv = (gradient.transpose(1, 2).contiguous() for gradient in gradients)
        return dq, dk, dv


def _reach(tensor: torch.Tensor) -> int:
    """The elements from the first of a tensor to its last, those between the rows of a view included."""
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride()))


def by_name(operator: str, **values: Any) -> Any:
    """Call an aten operator with those of the values that its schema knows, each by its name."""
    call = getattr(torch.ops.aten, operator).default
    return call(
        **{known.name: values[known.name] for known in call._schema.arguments if known.name in values}
    )


KERNEL = Cudnn()
