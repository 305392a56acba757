"""The original BurstAttention package, as its authors publish it beside BurstEngine.

It needs bmtrain, and a flash-attn of 2.6 or earlier, whose forward returns the eight values that it unpacks;
with opt_bwd=true also their patch, which lets the backward take delta. The option double_ring=true sends
round two rings, with groups of their own for dQ; on one node, or one GPU a node, there is one ring.
"""

from __future__ import annotations

import inspect
from typing import Any, ClassVar

import torch

from ringmark.comm.mesh import Mesh
from ringmark.kernels._gpu import release
from ringmark.kernels.base import Kernel
from ringmark.peers._peer import Peer, version_of

_FUNCTIONS = {"zigzag": "burst_attn_func", "striped": "burst_attn_func_striped"}


class Method(Peer):
    label = "BurstAttention (original)"
    library = "burst_attn"
    distribution = "burst-attn"
    obtain = "no package index has it: take the folder Burst-Attention of the commit in envs/peers.yaml"
    also_needs: ClassVar = {
        "bmtrain": "BurstAttention imports it unconditionally: pip install bmtrain",
        "flash_attn": "it computes with flash-attn 2.6 or earlier",
    }
    backends: ClassVar = {"flash2": "cuda"}
    default_options: ClassVar = {"layout": "zigzag", "opt_bwd": True, "double_ring": True}
    choices: ClassVar = {
        "layout": ("zigzag", "striped"),
        "opt_bwd": (True, False),
        "double_ring": (True, False),
    }

    @classmethod
    def load(cls) -> Any:
        import burst_attn

        return burst_attn

    def misfit(self) -> str | None:
        found = version_of("flash-attn", "flash_attn")
        if release(found) >= (2, 7):
            return (
                "BurstAttention unpacks eight values from flash-attn's forward: from 2.7 on there are four "
                f"({found} here)"
            )
        return None

    def unavailable(self) -> str | None:
        return super().unavailable() or (self._unpatched() if self.options["opt_bwd"] else None)

    def _unpatched(self) -> str | None:
        from flash_attn import flash_attn_interface

        if "softmax_d" in inspect.signature(flash_attn_interface._flash_attn_backward).parameters:
            return None
        return "this flash-attn lacks the opt_bwd patch (no softmax_d): apply it, or take opt_bwd=false"

    def layout_on(self, gpus: int, world_size: int) -> str:
        return str(self.options["layout"])

    def setup(self, mesh: Mesh, kernel: Kernel, *, causal: bool, scale: float | None = None) -> None:
        super().setup(mesh, kernel, causal=causal, scale=scale)
        self._attention = getattr(self.load(), _FUNCTIONS[self.layout])
        two = bool(self.options["double_ring"]) and mesh.nodes > 1 and mesh.gpus > 1
        self._rings = 2 if two else 1
        self._flat = mesh.group("flat", "burst_attn").process_group
        # [(read, dQ) inside, (read, dQ) across]: two groups each, so that neither ring waits for the other
        axes: list[Any] = ["intra", "inter"] if two else []
        pairs = [
            tuple(mesh.group(axis, f"burst_attn_{what}").process_group for what in ("read", "dq"))
            for axis in axes
        ]
        self._double: list[Any] = pairs or [None, None]

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self._attention(
            q,
            k,
            v,
            softmax_scale=self.scale,
            flash=self.backend,
            causal=self.causal,
            optimize_bwd_comm=bool(self.options["opt_bwd"]),
            deterministic=False,
            process_group=self._flat,
            double_group=self._double,
        )
        return out

    def settings(self) -> dict[str, Any]:
        return {**super().settings(), **({"rings": self._rings} if hasattr(self, "_rings") else {})}
