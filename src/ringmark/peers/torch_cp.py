"""torch's own context parallelism: scaled_dot_product_attention on sharded tensors, load-balanced.

    2.10 and later   the dispatcher is switched on once; q, k, v go in as DTensors sharded along the sequence
    2.6 to 2.9       the context manager `context_parallel` patches the function for as long as it is open

The context manager must be open again when the gradients are made, and closed in between: nothing else in
this process may see the patched function. So there the pair of passes is one autograd function. The manager
wants a buffer to shard; an index as short as can be dealt out serves.
"""

from __future__ import annotations

import importlib
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from ringmark.cell import Cell
from ringmark.comm.mesh import Mesh
from ringmark.kernels.base import Kernel
from ringmark.peers._peer import Peer

_MODULE = "torch.distributed.tensor.experimental._attention"
_SEQUENCE = 2  # of (B, H, S, D), which is how torch takes its tensors
_switched_on = False


class Method(Peer):
    label = "torch context parallel"
    library = "torch"
    distribution = "torch"
    obtain = "it comes with torch 2.6 and later"
    backends: ClassVar = {"cudnn": "CUDNN_ATTENTION", "sdpa_flash": "FLASH_ATTENTION"}
    default_options: ClassVar = {"rotate": "all_gather", "api": "auto"}
    choices: ClassVar = {"rotate": ("all_gather", "alltoall"), "api": ("auto", "dispatcher", "manager")}

    @classmethod
    def load(cls) -> Any:
        module = importlib.import_module(_MODULE)
        for name in ("context_parallel", "set_rotate_method", "_cp_options"):
            getattr(module, name)  # torch 2.4 and 2.5 lack one or the other
        return module

    def no_device(self) -> str | None:
        if not torch.cuda.is_available():
            return (
                "torch's context parallelism is written over its CUDA attention kernels: there is no GPU here"
            )
        return None

    def layout_on(self, gpus: int, world_size: int) -> str:
        """Load balancing pairs the sequence's head with its tail; without a mask any order is as good."""
        return "zigzag"

    def impossible(self, cell: Cell) -> str | None:
        if cell.shape.num_heads_q != cell.shape.num_heads_kv:
            return "torch's ring cuts keys as it cuts queries: it takes as many key heads as query heads"
        return None

    def setup(self, mesh: Mesh, kernel: Kernel, *, causal: bool, scale: float | None = None) -> None:
        super().setup(mesh, kernel, causal=causal, scale=scale)
        from torch.distributed.device_mesh import init_device_mesh

        self._torch_cp = self.load()
        self._api = str(self.options["api"])
        if self._api == "auto":
            newer = hasattr(self._torch_cp, "_enable_context_parallel_dispatcher")
            self._api = "dispatcher" if newer else "manager"
        self._devices = init_device_mesh(mesh.device.type, (mesh.world_size,))

    def forward(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        # torch keeps its settings in a global, and another adapter may have changed them.
        self._torch_cp.set_rotate_method({"all_gather": "allgather"}.get(self._rotate, self._rotate))
        self._torch_cp._cp_options.enable_load_balance = self.causal
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        managed: Any = _Managed.apply
        out: torch.Tensor = self._dispatched(q, k, v) if self._api == "dispatcher" else managed(self, q, k, v)
        return out.transpose(1, 2)

    @property
    def _rotate(self) -> str:
        return str(self.options["rotate"])

    def attend_sharded(self, q: Any, k: Any, v: Any) -> Any:
        with sdpa_kernel(getattr(SDPBackend, self.backend)):
            return F.scaled_dot_product_attention(q, k, v, is_causal=self.causal, scale=self.scale)

    def _dispatched(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        global _switched_on
        from torch.distributed.tensor import DTensor, Shard

        if not _switched_on:
            self._torch_cp._enable_context_parallel_dispatcher()
            _switched_on = True
        where = [Shard(_SEQUENCE)]
        parts = (DTensor.from_local(x, self._devices, where, run_check=False) for x in (q, k, v))
        out: torch.Tensor = self.attend_sharded(*parts).to_local()
        return out

    def manager(self) -> Any:
        """The context manager; on its way out it switches the dispatcher off for everybody."""
        global _switched_on
        _switched_on = False
        index = torch.zeros(2 * self.mesh.world_size, device=self.mesh.device)
        return self._torch_cp.context_parallel(
            self._devices, buffers=[index], buffer_seq_dims=[0], no_restore_buffers={index}
        )

    def settings(self) -> dict[str, Any]:
        found = super().settings()
        if hasattr(self, "_api"):
            found |= {"api": self._api, "load_balance": self.causal, "convert_to_f32": True}
        return found


class _Managed(torch.autograd.Function):
    """Both passes inside the context manager, which is closed whenever other code runs."""

    @staticmethod
    def forward(ctx: Any, method: Method, q: Any, k: Any, v: Any) -> torch.Tensor:
        ctx.method, ctx.inner = method, [x.detach().requires_grad_() for x in (q, k, v)]
        with torch.enable_grad(), method.manager():
            ctx.out = method.attend_sharded(*ctx.inner)
        out: torch.Tensor = ctx.out.detach()
        return out

    @staticmethod
    def backward(ctx: Any, *douts: Any) -> Any:
        with ctx.method.manager():
            gradients = torch.autograd.grad(ctx.out, ctx.inner, douts[0])
        return None, *gradients
