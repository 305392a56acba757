"""Stand-ins for flash-attn 2 and FlashAttention-4: each version's argument names and returns, our arithmetic.

The calls of flash-attn changed between releases. Each stand-in takes exactly the arguments of one release, in
its order, and computes with the reference kernel, so an adapter that names or orders them wrongly fails.
"""

from __future__ import annotations

import types

import torch

from ringmark.kernels.reference import KERNEL as REFERENCE
from ringmark.methods.base import row_dot

DROPOUT_OFF = 0.0


def _forward(q, k, v, dropout_p, softmax_scale, causal, window, softcap, alibi_slopes, return_softmax):
    assert (dropout_p, window, softcap, alibi_slopes) == (DROPOUT_OFF, (-1, -1), 0.0, None)
    assert return_softmax is False
    assert type(causal) is bool
    return REFERENCE.forward(q, k, v, softmax_scale, causal)


def _backward(dout, q, k, v, out, lse, grads, softmax_scale, causal, delta=None):
    # The extension reads these through bare pointers, as if they were contiguous.
    assert lse.is_contiguous()
    assert all(grad.stride(-1) == 1 for grad in grads)
    if delta is None:
        delta = row_dot(dout, out)
    else:
        assert out is None
        assert delta.is_contiguous()
        assert delta.dtype == torch.float32
    for grad, value in zip(grads, REFERENCE.backward(dout, q, k, v, lse, delta, softmax_scale, causal)):
        grad.copy_(value)


class _Old:
    """2.4.1 to 2.5: a window of two, eight results."""

    @staticmethod
    def _flash_attn_forward(
        q, k, v, dropout_p, softmax_scale, causal, window_size, alibi_slopes, return_softmax
    ):
        out, lse = _forward(
            q, k, v, dropout_p, softmax_scale, causal, window_size, 0.0, alibi_slopes, return_softmax
        )
        return out, q, k, v, out, lse, None, None

    @staticmethod
    def _flash_attn_backward(
        dout, q, k, v, out, softmax_lse, dq, dk, dv, dropout_p, softmax_scale, causal, window_size,
        alibi_slopes, deterministic, rng_state=None,
    ):  # fmt: skip
        assert (dropout_p, window_size, alibi_slopes, deterministic) == (DROPOUT_OFF, (-1, -1), None, False)
        _backward(dout, q, k, v, out, softmax_lse, (dq, dk, dv), softmax_scale, causal)
        return dq, dk, dv, None


class _Oldest(_Old):
    """2.4.0: nothing to be deterministic with."""

    @staticmethod
    def _flash_attn_backward(
        dout, q, k, v, out, softmax_lse, dq, dk, dv, dropout_p, softmax_scale, causal, window_size,
        alibi_slopes, rng_state=None,
    ):  # fmt: skip
        return _Old._flash_attn_backward(
            dout, q, k, v, out, softmax_lse, dq, dk, dv, dropout_p, softmax_scale, causal, window_size,
            alibi_slopes, False,
        )  # fmt: skip


class _Softcap:
    """2.6: a soft cap as well."""

    @staticmethod
    def _flash_attn_forward(
        q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, return_softmax
    ):
        out, lse = _forward(
            q, k, v, dropout_p, softmax_scale, causal, window_size, softcap, alibi_slopes, return_softmax
        )
        return out, q, k, v, out, lse, None, None

    @staticmethod
    def _flash_attn_backward(
        dout, q, k, v, out, softmax_lse, dq, dk, dv, dropout_p, softmax_scale, causal, window_size, softcap,
        alibi_slopes, deterministic, rng_state=None,
    ):  # fmt: skip
        assert softcap == 0.0
        return _Old._flash_attn_backward(
            dout, q, k, v, out, softmax_lse, dq, dk, dv, dropout_p, softmax_scale, causal, window_size,
            alibi_slopes, deterministic,
        )  # fmt: skip


class _New:
    """2.7 and 2.8: the window in two arguments, four results, the gradients only written."""

    @staticmethod
    def _flash_attn_forward(
        q, k, v, dropout_p, softmax_scale, causal, window_size_left, window_size_right, softcap,
        alibi_slopes, return_softmax,
    ):  # fmt: skip
        window = (window_size_left, window_size_right)
        out, lse = _forward(
            q, k, v, dropout_p, softmax_scale, causal, window, softcap, alibi_slopes, return_softmax
        )
        return out, lse, None, None

    @staticmethod
    def _flash_attn_backward(
        dout, q, k, v, out, softmax_lse, dq, dk, dv, dropout_p, softmax_scale, causal, window_size_left,
        window_size_right, softcap, alibi_slopes, deterministic, rng_state=None,
    ):  # fmt: skip
        assert (dropout_p, window_size_left, window_size_right) == (DROPOUT_OFF, -1, -1)
        assert (softcap, alibi_slopes, deterministic) == (0.0, None, False)
        _backward(dout, q, k, v, out, softmax_lse, (dq, dk, dv), softmax_scale, causal)


class _Patched(_New):
    """2.7.4 or 2.8.3 with the opt_bwd patch."""

    @staticmethod
    def _flash_attn_backward(
        dout, q, k, v, out, softmax_lse, dq, dk, dv, dropout_p, softmax_scale, causal, window_size_left,
        window_size_right, softcap, alibi_slopes, deterministic, rng_state=None, softmax_d=None,
    ):  # fmt: skip
        assert softmax_d is not None, "a patched build must be given delta"
        _backward(dout, q, k, v, out, softmax_lse, (dq, dk, dv), softmax_scale, causal, softmax_d)


SURFACES = {
    "2.4.0.post1": _Oldest,
    "2.4.3.post1": _Old,
    "2.5.9.post1": _Old,
    "2.6.3": _Softcap,
    "2.7.0.post2": _New,
    "2.7.4.post1": _New,
    "2.8.3": _New,
    "2.7.4.post1+opt_bwd": _Patched,
    "2.8.3+opt_bwd": _Patched,
}


def flash2_modules(name: str) -> dict[str, types.ModuleType]:
    """What sys.modules holds where that flash-attn is installed."""
    package = types.ModuleType("flash_attn")
    package.__version__ = name.removesuffix("+opt_bwd")
    interface = types.ModuleType("flash_attn.flash_attn_interface")
    for call in ("_flash_attn_forward", "_flash_attn_backward"):
        setattr(interface, call, getattr(SURFACES[name], call))
    extension = types.ModuleType("flash_attn_2_cuda")

    def bwd():
        pass

    bwd.__doc__ = "bwd(dout: torch.Tensor, ..., softmax_d: ...)" if "opt_bwd" in name else "bwd(arg0, ...)"
    extension.bwd, extension.__file__ = bwd, "/nowhere/flash_attn_2_cuda.so"
    return {
        "flash_attn": package, "flash_attn.flash_attn_interface": interface, "flash_attn_2_cuda": extension,
    }  # fmt: skip


class Flash4Interface:
    """flash_attn.cute.interface of FlashAttention-4 4.0: the arguments that we use, with their defaults."""

    @staticmethod
    def _flash_attn_fwd(
        q, k, v, qv=None, *, softmax_scale=None, causal=False, return_lse=False, out=None, lse=None
    ):
        assert return_lse, "without it there is no lse where no gradient is asked for"
        return *REFERENCE.forward(q, k, v, softmax_scale, causal), None, None, None

    @staticmethod
    def _flash_attn_bwd(
        q, k, v, out, dout, lse, softmax_scale=None, causal=False, softcap=0.0, *, dlse=None, dq=None
    ):
        assert out.shape == dout.shape
        assert out.dtype == q.dtype
        assert out.stride(-1) == 1, "the last dimension must lie side by side"
        assert out.untyped_storage().nbytes() <= 1024, "the zero that stands in for out must cost nothing"
        start = row_dot(dout, out) - dlse
        return REFERENCE.backward(dout, q, k, v, lse, start, softmax_scale, causal)
