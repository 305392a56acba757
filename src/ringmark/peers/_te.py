"""Transformer Engine's context parallelism, from 2.1 to 2.11, through its one public door.

`DotProductAttention` takes the groups by `set_context_parallel_group` and the tokens in zigzag order, for
every kind of communication. Which kernel it runs is decided by NVTE_* variables that it reads when it first
meets a problem; it keeps the decision while the problem stays equal. So each adapter sets the variables and
makes it forget, whenever another one ran before, and reads afterwards what it really took.
"""

from __future__ import annotations

import os
import sys
from typing import Any, ClassVar

import torch

from ringmark.cell import Cell
from ringmark.comm.mesh import Mesh
from ringmark.kernels.base import Kernel
from ringmark.peers import _cudnn_of_torch
from ringmark.peers._peer import Peer, heads_misfit, version_of

_VARIABLES = {
    "fused": {"NVTE_FLASH_ATTN": "0", "NVTE_FUSED_ATTN": "1", "NVTE_UNFUSED_ATTN": "0"},
    "flash_attn": {"NVTE_FLASH_ATTN": "1", "NVTE_FUSED_ATTN": "0", "NVTE_UNFUSED_ATTN": "0"},
}
_selected_for: object | None = None  # the adapter that Transformer Engine's kept decision belongs to


class TransformerEngine(Peer):
    """What the kinds of communication have in common."""

    library = "transformer_engine"
    distribution = "transformer-engine"
    obtain = "the image has it; elsewhere pip install 'transformer-engine[pytorch]'"
    backends: ClassVar = {"cudnn": "fused", "flash2": "flash_attn"}
    default_options: ClassVar = {"backend": "auto"}
    choices: ClassVar = {"backend": ("auto", "fused", "flash_attn")}
    comm_type: ClassVar[str]
    qkv_format: ClassVar[str] = "bshd"

    @classmethod
    def load(cls) -> Any:
        _cudnn_of_torch.load()  # left alone it loads the system's, and torch refuses to work with it
        from transformer_engine.pytorch import DotProductAttention

        return DotProductAttention

    def unsupported(self, cell: Cell) -> str | None:
        asked = self.options["backend"]
        kernels = [name for name, backend in self.backends.items() if backend == asked]
        if kernels and cell.kernel not in ("auto", *kernels):
            return f"backend={asked} is kernel {kernels[0]}, not {cell.kernel}: leave the option at auto"
        if cell.shape.head_dim % 8:
            return f"{self.label} takes a head_dim that divides by 8, not {cell.shape.head_dim}"
        return super().unsupported(cell) or self._flash_attn_misfit(cell)

    def _flash_attn_misfit(self, cell: Cell) -> str | None:
        """Transformer Engine looks for flash-attn by its package metadata, within a range of versions."""
        if "flash_attn" not in (self.options["backend"], self.backends.get(cell.kernel)):
            return None
        taken = flash_attn_taken()
        if taken is False:
            found = version_of("flash-attn", "flash_attn")
            return (
                f"{self.implementation} does not take the flash-attn that is here ({found}): "
                "it wants package metadata and a version that it knows"
            )
        return None

    def setup(self, mesh: Mesh, kernel: Kernel, *, causal: bool, scale: float | None = None) -> None:
        super().setup(mesh, kernel, causal=causal, scale=scale)
        if self.options["backend"] != "auto":
            self.backend = str(self.options["backend"])
            self.kernel_name = next(name for name, word in self.backends.items() if word == self.backend)
        self._mask = "causal" if causal else "no_mask"
        self._modules: dict[tuple[int, int, int], Any] = {}
        self._parallel = self.parallel(mesh) if mesh.world_size > 1 else None
        self._seen: dict[str, str] = {}

    def parallel(self, mesh: Mesh) -> dict[str, Any]:
        """The four context-parallel arguments: group or groups, ranks, stream, kind of communication."""
        group = mesh.group("flat", self.name())
        return {
            "cp_group": group.process_group,
            "cp_global_ranks": list(group.members),
            "cp_stream": self.stream(mesh),
            "cp_comm_type": self.comm_type,
        }

    def stream(self, mesh: Mesh) -> torch.cuda.Stream | None:
        make: Any = torch.cuda.Stream
        return make(mesh.device) if mesh.device.type == "cuda" else None

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """(B, S, H, D) in and out; Transformer Engine returns its heads folded into one axis."""
        batch, seqlen_local, heads, head_dim = q.shape
        self._select()
        attention = self._module(heads, k.shape[2], head_dim)
        out: torch.Tensor = attention(q, k, v).view(batch, seqlen_local, heads, head_dim)
        self._verify()
        return out

    def _module(self, num_heads_q: int, num_heads_kv: int, head_dim: int) -> Any:
        shape = (num_heads_q, num_heads_kv, head_dim)
        if shape not in self._modules:
            self._modules[shape] = self.build(*shape)
        return self._modules[shape]

    def build(self, num_heads_q: int, num_heads_kv: int, head_dim: int) -> Any:
        module = self.load()(
            num_heads_q,
            head_dim,
            num_gqa_groups=num_heads_kv,
            attention_dropout=0.0,
            qkv_format=self.qkv_format,
            attn_mask_type=self._mask,
            softmax_scale=self.scale,
        )
        if self._parallel:
            module.set_context_parallel_group(**self._parallel)
        return module

    def _select(self) -> None:
        global _selected_for
        if _selected_for is self:
            return
        os.environ.update(_VARIABLES[self.backend])
        for kept in _kept_decisions():
            kept["backend_selection_requires_update"] = True
        _selected_for = self
        self._seen = {}

    def _verify(self) -> None:
        """Once after each choice: Transformer Engine took the kernel that the record will name."""
        if self._seen:
            return
        used = {"fused": "use_fused_attention", "flash_attn": "use_flash_attention"}
        for kept in _kept_decisions():
            chosen = next((name for name, flag in used.items() if kept.get(flag)), "neither")
            version = str(kept.get("flash_attention_backend") or "")
            if chosen != self.backend or version.startswith("3"):
                raise RuntimeError(
                    f"{self.implementation} was told to run {self.backend} and took {chosen} {version}: "
                    "this cell would carry another kernel's name (NVTE_DEBUG=1 NVTE_DEBUG_LEVEL=2 says why)"
                )
            self._seen["backend"] = chosen
        self._seen.setdefault("backend", f"{self.backend} asked, what ran is not told")

    def settings(self) -> dict[str, Any]:
        found = {**super().settings(), "cp_comm_type": self.comm_type, "qkv_format": self.qkv_format}
        if hasattr(self, "backend"):
            found |= {"backend": self._seen.get("backend", self.backend), **_VARIABLES[self.backend]}
        return found


class AllHeads(TransformerEngine):
    """The kinds that deal the heads out to the ranks of a group."""

    def impossible(self, cell: Cell) -> str | None:
        return heads_misfit(cell, cell.world_size, "the number of ranks")


def _kept_decisions() -> list[dict[str, Any]]:
    """The dictionaries in which Transformer Engine keeps its choice; the module moved between versions."""
    loaded = [module for name, module in list(sys.modules.items()) if name.startswith("transformer_engine.")]
    found = {id(kept): kept for m in loaded if isinstance(kept := vars(m).get("_attention_backends"), dict)}
    return list(found.values())


def flash_attn_taken() -> bool | None:
    """Whether Transformer Engine has accepted the flash-attn here; None where it is not loaded to say so."""
    for name, module in list(sys.modules.items()):
        if not name.startswith("transformer_engine."):
            continue
        state = vars(module).get("FlashAttentionUtils")
        taken = getattr(state, "is_installed", vars(module).get("_flash_attn_is_installed"))
        if taken is not None:
            return bool(taken)
    return None
