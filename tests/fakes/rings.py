"""The surfaces of ring-flash-attention, yunchang, BurstAttention and InternEvo, over exact attention."""

from __future__ import annotations

import enum
import types
from typing import Any

import torch
import torch.distributed as dist

from fakes import exact, module

calls: list[dict[str, Any]] = []


def _members(group: Any) -> list[int]:
    return dist.get_process_group_ranks(group or dist.group.WORLD)


def _contiguous(seqlen_global: int, world_size: int) -> torch.Tensor:
    return torch.arange(seqlen_global).view(world_size, -1)


def _striped(seqlen_global: int, world_size: int) -> torch.Tensor:
    return torch.arange(seqlen_global).view(-1, world_size).T.contiguous()


def ring_flash_attn() -> list[types.ModuleType]:
    """0.1.8: three functions of one signature."""

    def ring(kind: str) -> Any:
        def function(
            q: torch.Tensor,
            k: torch.Tensor,
            v: torch.Tensor,
            dropout_p: float = 0.0,
            softmax_scale: float | None = None,
            causal: bool = False,
            window_size: tuple[int, int] = (-1, -1),
            alibi_slopes: Any = None,
            deterministic: bool = False,
            return_attn_probs: bool = False,
            group: Any = None,
        ) -> torch.Tensor:
            ranks = _members(group)
            assert ranks == list(range(dist.get_world_size())), "a ring over all ranks"
            assert causal or kind == "contiguous", "this ring is causal"
            seqlen_global = q.shape[1] * len(ranks)
            made = {
                "contiguous": lambda: _contiguous(seqlen_global, len(ranks)),
                "striped": lambda: _striped(seqlen_global, len(ranks)),
                "zigzag": lambda: exact.zigzag(ranks, seqlen_global),
            }
            return exact.attention(q, k, v, made[kind](), causal, softmax_scale)

        return function

    return [
        module(
            "ring_flash_attn",
            __version__="0.1.8",
            ring_flash_attn_func=ring("contiguous"),
            zigzag_ring_flash_attn_func=ring("zigzag"),
            stripe_flash_attn_func=ring("striped"),
        ),
        *flash_attn(),
    ]


def flash_attn(version: str = "2.8.3", patched: bool = False) -> list[types.ModuleType]:
    """flash-attn's two private calls, as 2.7 and later have them, computing exactly on the CPU."""

    def forward(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        dropout_p: float,
        softmax_scale: float,
        causal: bool,
        window_size_left: int,
        window_size_right: int,
        softcap: float,
        alibi_slopes: Any,
        return_softmax: bool,
    ) -> Any:
        out, lse = exact.with_lse(*(x.detach().float() for x in (q, k, v)), causal, softmax_scale)
        return out.to(q.dtype), lse, None, None

    def backward(
        dout: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        out: torch.Tensor,
        softmax_lse: torch.Tensor,
        dq: torch.Tensor | None,
        dk: torch.Tensor | None,
        dv: torch.Tensor | None,
        dropout_p: float,
        softmax_scale: float,
        causal: bool,
        window_size_left: int,
        window_size_right: int,
        softcap: float,
        alibi_slopes: Any,
        deterministic: bool,
        rng_state: Any = None,
        **more: Any,
    ) -> torch.Tensor:
        dout, q, k, v, out = (x.float() for x in (dout, q, k, v, out))
        group = q.shape[2] // k.shape[2]
        wide_k, wide_v = (x.repeat_interleave(group, 2) for x in (k, v))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, wide_k) * softmax_scale
        if causal:
            seen = torch.ones(scores.shape[-2:]).tril(k.shape[1] - q.shape[1]).bool()
            scores = scores.masked_fill(~seen, float("-inf"))
        weights = (scores - softmax_lse[..., None]).exp()
        delta = (dout * out).sum(-1).transpose(1, 2)[..., None]
        inner = weights * (torch.einsum("bqhd,bkhd->bhqk", dout, wide_v) - delta) * softmax_scale
        grads = (
            torch.einsum("bhqk,bkhd->bqhd", inner, wide_k),
            _fold(torch.einsum("bhqk,bqhd->bkhd", inner, q), group),
            _fold(torch.einsum("bhqk,bqhd->bkhd", weights, dout), group),
        )
        for place, value in zip((dq, dk, dv), grads):
            if place is not None:
                place.copy_(value)
        return delta

    def patched_backward(*args: Any, softmax_d: Any = None, **named: Any) -> Any:
        raise AssertionError("only its signature is asked for")

    interface = module(
        "flash_attn.flash_attn_interface",
        _flash_attn_forward=forward,
        _flash_attn_backward=patched_backward if patched else backward,
        _flash_attn_varlen_forward=forward,
        _flash_attn_varlen_backward=backward,
        flash_attn_func=None,
    )
    return [module("flash_attn", __version__=version, flash_attn_func=None), interface]


def _fold(grad: torch.Tensor, group: int) -> torch.Tensor:
    return grad.unflatten(2, (-1, group)).sum(3)


def yunchang(has_flash_attn: bool = True) -> list[types.ModuleType]:
    """0.6.4: groups in a singleton, a layer that takes them when it is made."""
    kept = types.SimpleNamespace(ULYSSES_PG=None, RING_PG=None)
    names = ("FA", "FA3", "TORCH_MATH", "TORCH_FLASH", "TORCH_EFFICIENT", "TORCH_CUDNN")
    attn_types = enum.Enum("AttnType", {name: name.lower() for name in names})  # type: ignore[misc]

    def set_seq_parallel_pg(
        sp_ulysses_degree: int, sp_ring_degree: int, rank: int, world_size: int, use_ulysses_low: bool = True
    ) -> None:
        assert sp_ulysses_degree * sp_ring_degree == world_size
        ranks = torch.arange(world_size).view(sp_ring_degree, sp_ulysses_degree)
        if not use_ulysses_low:
            ranks = ranks.view(sp_ulysses_degree, sp_ring_degree).T
        for members, place in [(row, "ULYSSES_PG") for row in ranks] + [(row, "RING_PG") for row in ranks.T]:
            made = dist.new_group(members.tolist())
            if rank in members.tolist():
                setattr(kept, place, made)

    class LongContextAttention(torch.nn.Module):
        def __init__(
            self,
            scatter_idx: int = 2,
            gather_idx: int = 1,
            ring_impl_type: str = "basic",
            use_pack_qkv: bool = False,
            use_sync: bool = False,
            attn_type: Any = attn_types.FA,  # type: ignore[attr-defined]
            attn_processor: Any = None,
        ) -> None:
            super().__init__()
            self.groups = [_members(kept.RING_PG), _members(kept.ULYSSES_PG)]
            self.ring, self.attn_type = ring_impl_type, attn_type
            assert isinstance(attn_type, attn_types)

        def forward(
            self,
            query: torch.Tensor,
            key: torch.Tensor,
            value: torch.Tensor,
            dropout_p: float = 0.0,
            softmax_scale: float | None = None,
            causal: bool = False,
            window_size: tuple[int, int] = (-1, -1),
            softcap: float = 0.0,
            alibi_slopes: Any = None,
            deterministic: bool = False,
            return_attn_probs: bool = False,
            *args: Any,
        ) -> torch.Tensor:
            ring, team = (len(members) for members in self.groups)
            calls.append({"ring": ring, "ulysses": team, "attn_type": self.attn_type.name})
            assert causal or self.ring == "basic", "this ring is causal"
            assert key.shape[2] % team == 0, "heads per rank of the team"
            seqlen_global = query.shape[1] * ring * team
            held = {
                "basic": _contiguous(seqlen_global, ring),
                "zigzag": exact.zigzag(list(range(ring)), seqlen_global),
                "strip": _striped(seqlen_global, ring),
            }[self.ring]
            # a team of neighbours holds, one after the other, what one rank of the ring works on
            positions = held.reshape(ring * team, -1)
            return exact.attention(query, key, value, positions, causal, softmax_scale)

    state = module("yunchang.globals", PROCESS_GROUP=kept, HAS_FLASH_ATTN=has_flash_attn)
    top = module(
        "yunchang",
        __version__="0.6.4",
        set_seq_parallel_pg=set_seq_parallel_pg,
        LongContextAttention=LongContextAttention,
    )
    return [top, state, module("yunchang.kernels", AttnType=attn_types)]


def burst_attn() -> list[types.ModuleType]:
    """The package beside BurstEngine: two functions, groups in pairs for reading and for dQ."""

    def function(kind: str) -> Any:
        def attend(
            q: torch.Tensor,
            k: torch.Tensor,
            v: torch.Tensor,
            softmax_scale: float | None = None,
            flash: str = "cuda",
            causal: bool = False,
            optimize_bwd_comm: bool = False,
            deterministic: bool = False,
            process_group: Any = None,
            double_group: Any = (None, None),
            return_lse: bool = False,
            grad_ckpt: str = "none",
            layer_idx: int = -1,
        ) -> torch.Tensor:
            ranks = _members(process_group)
            assert flash == "cuda"
            assert ranks == list(range(dist.get_world_size()))
            if double_group[0] is not None:
                (read_in, dq_in), (read_out, dq_out) = double_group
                for read, dq in ((read_in, dq_in), (read_out, dq_out)):
                    assert _members(read) == _members(dq), "dQ goes the way of what is read"
                    assert read is not dq, "in a group of its own"
                inside, across = _members(read_in), _members(read_out)
                node, gpu = divmod(dist.get_rank(), len(inside))
                assert inside == ranks[node * len(inside) :][: len(inside)]
                assert across == ranks[gpu :: len(inside)]
            calls.append({"opt_bwd": optimize_bwd_comm, "double": double_group[0] is not None, "kind": kind})
            seqlen_global = q.shape[1] * len(ranks)
            made = (
                exact.zigzag(ranks, seqlen_global)
                if kind == "zigzag"
                else _striped(seqlen_global, len(ranks))
            )
            return exact.attention(q, k, v, made, causal, softmax_scale)

        return attend

    top = module(
        "burst_attn", burst_attn_func=function("zigzag"), burst_attn_func_striped=function("striped")
    )
    return [top, module("bmtrain"), *flash_attn("2.6.3", patched=True)]


def internevo() -> list[types.ModuleType]:
    """The double ring inside InternEvo, which reads its window from a global context."""
    context = types.SimpleNamespace(config=None, is_forward=True)
    context.load_config = lambda config: setattr(context, "config", config)

    def attend(
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        dropout_p: float = 0.0,
        softmax_scale: float | None = None,
        causal: bool = False,
        window_size: tuple[int, int] = (-1, -1),
        alibi_slopes: Any = None,
        deterministic: bool = False,
        return_attn_probs: bool = False,
        context_group: Any = None,
        inter_window_group: Any = None,
        intra_window_group: Any = None,
        dkv_inter_window_group: Any = None,
        dkv_intra_window_group: Any = None,
        layer_idx: int = 0,
    ) -> torch.Tensor:
        config = context.config
        assert config["model"]["checkpoint"] * config["isp_num_layers"] == 0
        assert config["selective_checkpoint"] is False
        assert causal is True
        window = config["parallel"]["sequence_2D"]["window_size"]
        ranks, rank = _members(context_group), dist.get_rank()
        assert ranks == list(range(dist.get_world_size()))
        for group in (intra_window_group, dkv_intra_window_group):
            assert _members(group) == ranks[rank // window * window :][:window], "inside a window"
        for group in (inter_window_group, dkv_inter_window_group):
            assert _members(group) == ranks[rank % window :: window], "across the windows"
        assert intra_window_group is not dkv_intra_window_group, "each ring its own group"
        return exact.attention(q, k, v, exact.zigzag(ranks, q.shape[1] * len(ranks)), causal, softmax_scale)

    name = "internlm.model.ops.ring_flash_attn"
    file = f"{name}.zigzag_ring_flash_attn_with_sliding_window"
    made = module(file, gpc=context, zigzag_ring_flash_attn_qkvsplited_func_with_sliding_window=attend)
    parents = ("internlm", "internlm.model", "internlm.model.ops", name)
    return [*(module(parent) for parent in parents), made, *flash_attn("2.6.3")]
