"""The surface of Transformer Engine's attention, as 2.1 and as 2.11 have it, over exact attention.

Like the real one it decides for a backend by NVTE_* variables when it meets new arguments, keeps that
decision, and wants zigzag rows whatever the communication.
"""

from __future__ import annotations

import os
import types
from typing import Any

import torch
import torch.distributed as dist

from fakes import exact, module

calls: list[dict[str, Any]] = []  # what each forward was given and which backend it took


def modules(version: str, flash_attn: bool = True, obeys: bool = True) -> list[types.ModuleType]:
    """Transformer Engine of 2.1 or 2.11: the class, and the kept decision in that version's place."""
    kept: dict[str, Any] = {
        "attention_params": None,
        "use_flash_attention": None,
        "use_fused_attention": None,
        "fused_attention_backend": None,
        "use_unfused_attention": None,
        "backend_selection_requires_update": False,
    }
    base = _Attention if version.startswith("2.1.") else _Attention211
    made = type("DotProductAttention", (base,), {"kept": kept, "obeys": obeys})
    attention = module("transformer_engine.pytorch.attention", DotProductAttention=made)
    found = [
        module("transformer_engine", __version__=version),
        module("transformer_engine.pytorch", DotProductAttention=made),
        attention,
    ]
    if version.startswith("2.1."):
        vars(attention).update(_attention_backends=kept, _flash_attn_is_installed=flash_attn)
        return found
    inner = "transformer_engine.pytorch.attention.dot_product_attention"
    state = type("FlashAttentionUtils", (), {"is_installed": flash_attn})
    kept["flash_attention_backend"] = None
    return [
        *found,
        module(inner),
        module(f"{inner}.dot_product_attention", _attention_backends=kept),
        module(f"{inner}.utils", FlashAttentionUtils=state),
    ]


class _Attention(torch.nn.Module):
    kept: dict[str, Any]
    obeys: bool

    def __init__(
        self,
        num_attention_heads: int,
        kv_channels: int | tuple[int, int],
        num_gqa_groups: int | None = None,
        attention_dropout: float = 0.0,
        qkv_format: str = "sbhd",
        attn_mask_type: str = "causal",
        window_size: tuple[int, int] | None = None,
        sequence_parallel: bool = False,
        tp_size: int = 1,
        get_rng_state_tracker: Any = None,
        tp_group: Any = None,
        layer_number: int | None = None,
        attention_type: str = "self",
        cp_group: Any = None,
        cp_global_ranks: list[int] | None = None,
        cp_stream: Any = None,
        cp_comm_type: str = "p2p",
        softmax_scale: float | None = None,
    ) -> None:
        super().__init__()
        assert attn_mask_type in ("causal", "no_mask")
        assert attention_dropout == 0.0
        self.heads, self.head_dim = num_attention_heads, kv_channels
        self.kv_heads = num_gqa_groups or num_attention_heads
        self.qkv_format, self.mask, self.scale = qkv_format, attn_mask_type, softmax_scale
        self.set_context_parallel_group(cp_group, cp_global_ranks or [0], cp_stream, cp_comm_type)

    def set_context_parallel_group(
        self, cp_group: Any, cp_global_ranks: list[int], cp_stream: Any, cp_comm_type: str = "p2p"
    ) -> None:
        self.cp_group, self.ranks, self.comm_type = cp_group, cp_global_ranks, cp_comm_type

    def forward(
        self,
        query_layer: torch.Tensor,
        key_layer: torch.Tensor,
        value_layer: torch.Tensor,
        attention_mask: Any = None,
        qkv_format: str | None = None,
        cu_seqlens_q: Any = None,
        cu_seqlens_kv: Any = None,
        cu_seqlens_q_padded: Any = None,
        cu_seqlens_kv_padded: Any = None,
        max_seqlen_q: int | None = None,
        max_seqlen_kv: int | None = None,
        attn_mask_type: str | None = None,
    ) -> torch.Tensor:
        order = qkv_format or self.qkv_format
        if order == "sbhd":
            query_layer, key_layer, value_layer = (
                x.transpose(0, 1) for x in (query_layer, key_layer, value_layer)
            )
        assert query_layer.shape[2:] == (self.heads, self.head_dim), "query heads or head size"
        assert key_layer.shape[2:] == value_layer.shape[2:] == (self.kv_heads, self.head_dim)
        self._check_groups()
        mask = attn_mask_type or self.mask
        backend = self._decide((tuple(query_layer.shape), tuple(key_layer.shape), mask))
        calls.append({"backend": backend, "comm_type": self.comm_type, "format": order, "mask": mask})
        positions = exact.zigzag(self.ranks, query_layer.shape[1] * len(self.ranks))
        out = exact.attention(query_layer, key_layer, value_layer, positions, mask == "causal", self.scale)
        out = out.flatten(2)
        return out.transpose(0, 1).contiguous() if order == "sbhd" else out

    def _check_groups(self) -> None:
        if self.cp_group is None:
            return
        if self.comm_type != "a2a+p2p":
            assert isinstance(self.cp_group, dist.ProcessGroup), f"one group for {self.comm_type}"
            assert dist.get_process_group_ranks(self.cp_group) == self.ranks, "ranks of the group"
            assert self.comm_type != "a2a" or self.kv_heads % len(self.ranks) == 0, "heads per rank"
            return
        assert isinstance(self.cp_group, list), "two groups for a2a+p2p"
        assert len(self.cp_group) == 2, "two groups for a2a+p2p"
        inside, across = (dist.get_process_group_ranks(group) for group in self.cp_group)
        team, place = divmod(self.ranks.index(dist.get_rank()), len(inside))
        assert self.ranks[team * len(inside) :][: len(inside)] == inside, "the a2a group is neighbours"
        assert self.ranks[place :: len(inside)] == across, "the p2p group is one of each team"
        assert len(inside) > 1
        assert len(across) > 1
        assert self.kv_heads % len(inside) == 0

    def _decide(self, params: Any) -> str:
        if self.kept["attention_params"] != params:
            self.kept.update(attention_params=params, backend_selection_requires_update=True)
        if self.kept["backend_selection_requires_update"]:
            wanted = {name: os.environ[f"NVTE_{name}_ATTN"] == "1" for name in ("FLASH", "FUSED", "UNFUSED")}
            if not self.obeys:
                wanted = {"FLASH": False, "FUSED": True, "UNFUSED": False}
            self.kept.update(
                use_flash_attention=wanted["FLASH"] and not wanted["FUSED"],
                use_fused_attention=wanted["FUSED"],
                use_unfused_attention=wanted["UNFUSED"],
                backend_selection_requires_update=False,
            )
            if "flash_attention_backend" in self.kept:
                self.kept["flash_attention_backend"] = "2.8.3" if wanted["FLASH"] else None
        return "fused" if self.kept["use_fused_attention"] else "flash_attn"


class _Attention211(_Attention):
    """2.11 took more arguments at the end of each signature."""

    def __init__(
        self, *args: Any, softmax_type: str = "vanilla", return_max_logit: bool = False, **named: Any
    ) -> None:
        super().__init__(*args, **named)

    def forward(self, *args: Any, fp8_output: bool = False, num_splits: int = 1, **named: Any) -> Any:
        return super().forward(*args, **named)
