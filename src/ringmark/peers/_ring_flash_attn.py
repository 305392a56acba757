"""zhuzilin's ring-flash-attention: one function for each ring, each over flash-attn's own kernels."""

from __future__ import annotations

import importlib
import sys
import types
from typing import Any, ClassVar

import torch

from ringmark.comm.mesh import Mesh
from ringmark.kernels.base import Kernel
from ringmark.peers._peer import Peer

_ADAPTERS = "ring_flash_attn.adapters"


class RingFlashAttention(Peer):
    """What the three rings have in common."""

    library = "ring_flash_attn"
    distribution = "ring-flash-attn"
    obtain = "pip install --no-deps ring-flash-attn"
    also_needs: ClassVar = {"flash_attn": "it computes with flash-attn 2, which is built from source"}
    backends: ClassVar = {"flash2": "flash_attn"}
    function: ClassVar[str]

    @classmethod
    def load(cls) -> Any:
        return getattr(import_library(), cls.function)

    def setup(self, mesh: Mesh, kernel: Kernel, *, causal: bool, scale: float | None = None) -> None:
        super().setup(mesh, kernel, causal=causal, scale=scale)
        self._attention = self.load()
        self._group = mesh.group("flat", self.name()).process_group

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self._attention(
            q,
            k,
            v,
            dropout_p=0.0,
            softmax_scale=self.scale,
            causal=self.causal,
            deterministic=False,
            return_attn_probs=False,
            group=self._group,
        )
        return out

    def settings(self) -> dict[str, Any]:
        found = super().settings()
        if getattr(sys.modules.get(_ADAPTERS), "stand_in", False):
            found["stand_in"] = f"{_ADAPTERS}: the Hugging Face adapter does not import here"
        return found


def import_library() -> Any:
    """The package, also beside a transformers that its Hugging Face adapter cannot import.

    It imports that adapter eagerly, for two names that no ring uses. Where the import fails on transformers
    (5 took a name away), an empty module takes the adapter's place; any other failure goes on up.
    """
    try:
        return importlib.import_module("ring_flash_attn")
    except ImportError as error:
        if not (error.name or "").startswith("transformers") and "transformers" not in str(error):
            raise
    stand_in = types.ModuleType(_ADAPTERS, "Stands in for an adapter that does not import here.")
    vars(stand_in).update(
        substitute_hf_flash_attn=None, update_ring_flash_attn_params=None, stand_in=True, __path__=[]
    )
    sys.modules[_ADAPTERS] = stand_in
    try:
        return importlib.import_module("ring_flash_attn")
    except ImportError:
        del sys.modules[_ADAPTERS]
        raise
