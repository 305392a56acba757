"""InternEvo's double ring (LoongTrain): zigzag over all ranks, a ring inside each window and one across.

It is a function inside a training framework: it reads its window's size from the framework's global context,
which is given just that, and it imports the framework with everything that belongs to it.
"""

from __future__ import annotations

import importlib
from typing import Any, ClassVar

import torch

from ringmark.comm.mesh import Mesh
from ringmark.kernels._gpu import release
from ringmark.kernels.base import Kernel
from ringmark.peers._peer import Peer, version_of

_FILE = "internlm.model.ops.ring_flash_attn.zigzag_ring_flash_attn_with_sliding_window"
_FUNCTION = "zigzag_ring_flash_attn_qkvsplited_func_with_sliding_window"


class Method(Peer):
    label = "InternEvo double ring"
    library = "internlm"
    distribution = "InternEvo"
    obtain = "the published package lacks the double ring: take the commit in envs/peers.yaml"
    also_needs: ClassVar = {"flash_attn": "it computes with flash-attn 2.6 or earlier"}
    backends: ClassVar = {"flash2": "flash_attn"}
    default_options: ClassVar = {"window": 0}  # ranks in a window; 0 is a node
    causal_only = True

    @classmethod
    def load(cls) -> Any:
        return importlib.import_module(_FILE)

    def misfit(self) -> str | None:
        found = version_of("flash-attn", "flash_attn")
        if release(found) >= (2, 7):
            return (
                "InternEvo's double ring unpacks eight values from flash-attn's forward, which returns four "
                f"from 2.7 on ({found} here)"
            )
        return None

    def _window(self, gpus: int) -> int:
        return int(self.options["window"]) or gpus

    def setup(self, mesh: Mesh, kernel: Kernel, *, causal: bool, scale: float | None = None) -> None:
        super().setup(mesh, kernel, causal=causal, scale=scale)
        self._attention = getattr(self.load(), _FUNCTION)
        window = self._window(mesh.gpus)
        view = mesh.view(mesh.world_size // window, window)
        self._groups = {
            "context_group": mesh.group("flat", "internevo_flat").process_group,
            "inter_window_group": view.group("inter", "internevo_kv").process_group,
            "intra_window_group": view.group("intra", "internevo_kv").process_group,
            "dkv_inter_window_group": view.group("inter", "internevo_dkv").process_group,
            "dkv_intra_window_group": view.group("intra", "internevo_dkv").process_group,
        }
        self._context = {
            "parallel": {"sequence_2D": {"window_size": window}},
            "model": {"checkpoint": 0},
            "isp_num_layers": 1,
            "selective_checkpoint": False,
        }

    def impossible(self, cell: Any) -> str | None:
        window = self._window(cell.mesh.gpus)
        if cell.world_size % window:
            return f"window={window} does not divide {cell.world_size} ranks"
        if 1 in (window, cell.world_size // window) and cell.world_size > 1:
            return (
                "InternEvo's double ring has two rings: a window of one rank or of all of them leaves it a "
                "group of one, which torch would read as all ranks; choose a window between"
            )
        return None

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        self.load().gpc.load_config(self._context)
        out: torch.Tensor = self._attention(
            q, k, v, dropout_p=0.0, softmax_scale=self.scale, causal=self.causal, **self._groups
        )
        return out
