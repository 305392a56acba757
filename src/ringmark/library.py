"""The public face: attention on a mesh from a few lines inside a torchrun program (see `ringmark`)."""

from __future__ import annotations

import atexit
from typing import Any

import torch
import torch.distributed as dist

from ringmark import kernels
from ringmark import layout as layouts
from ringmark import methods as natives
from ringmark.cell import Cell, MeshShape, OptionValue, Shape
from ringmark.comm.mesh import Mesh, start
from ringmark.errors import UserError
from ringmark.kernels.base import Kernel
from ringmark.methods.base import reason_of

DTYPE_NAMES = {
    torch.float64: "fp64", torch.float32: "fp32", torch.bfloat16: "bf16", torch.float16: "fp16",
}  # fmt: skip


def mesh(nodes: int = 1, device: torch.device | None = None) -> Mesh:
    """The ranks of this torchrun world as nodes x gpus; joins the process group if nobody has."""
    joined = dist.is_initialized()
    made = start(nodes, device=device)
    if not joined and dist.is_initialized():
        # A rank that just ends tears connections down under ranks that are still at work.
        atexit.register(_leave)
    return made


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


class Attention:
    """One method on one mesh, callable on local (B, S_local, H, D) tensors; autograd works."""

    def __init__(
        self, name: str, mesh: Mesh, causal: bool, kernel: str, scale: float | None, options: dict[str, Any]
    ) -> None:
        self.name, self.mesh, self.causal, self.kernel, self.scale = name, mesh, causal, kernel, scale
        self._method = natives.load(name)(**options)
        self._kernels: dict[object, Kernel] = {}
        if reason := reason_of("unavailable()", self._method.unavailable()):
            raise UserError(f"{name} cannot run here: {reason}")
        self._method.layout_on(mesh.gpus, mesh.world_size)  # a degree that does not fit is told now

    @property
    def layout(self) -> str:
        """How q, k and v are dealt to the ranks: for `shard` and `unshard`."""
        return self._method.layout_on(self.mesh.gpus, self.mesh.world_size)

    def settings(self) -> dict[str, Any]:
        """How it runs: its options, and what was chosen where they said auto."""
        return self._method.settings()

    def __call__(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        kind = (q.shape, k.shape, v.shape, q.dtype, k.dtype, v.dtype, q.device, k.device, v.device)
        if kind not in self._kernels:
            self._kernels[kind] = self._kernel_for(q, k, v)
        kernel = self._kernels[kind]
        if getattr(self._method, "kernel", None) is not kernel:
            self._method.setup(self.mesh, kernel, causal=self.causal, scale=self.scale)
        return self._method.forward(q, k, v)

    def _kernel_for(self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> Kernel:
        """The kernel for such tensors, which a rank looks at before anything has left it."""
        if reason := mismatch(q, k, v):
            raise UserError(f"{self.name}: {reason}")
        batch, seqlen_local, num_heads_q, head_dim = q.shape
        mask = "causal" if self.causal else "full"
        if q.dtype not in DTYPE_NAMES:
            raise UserError(f"{q.dtype} is not computed here: use one of {', '.join(DTYPE_NAMES.values())}")
        try:
            shape = Shape(batch, num_heads_q, k.shape[2], head_dim, DTYPE_NAMES[q.dtype], mask)  # type: ignore[arg-type]
        except ValueError as error:
            raise UserError(str(error)) from None
        seqlen_global = seqlen_local * self.mesh.world_size
        mesh_shape = MeshShape(self.mesh.nodes, self.mesh.gpus)
        cell = Cell(self.name, seqlen_global, shape, mesh=mesh_shape, options=self._method.options)
        if reason := reason_of("unsupported(cell)", self._method.unsupported(cell)):
            raise UserError(f"{self.name}: {reason}")
        return kernels.select(self.kernel, shape, q.device)


def mismatch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> str | None:
    """Why three tensors are not the q, k and v of one call, or None."""
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        if tensor.dim() != 4:
            return f"{name} has the shape {tuple(tensor.shape)}: give (batch, rows, heads, head_dim)"
    if k.shape != v.shape:
        return f"k is {tuple(k.shape)}, v {tuple(v.shape)}: give them one shape"
    if any(q.shape[dim] != k.shape[dim] for dim in (0, 1, 3)):
        return f"q is {tuple(q.shape)}, k and v {tuple(k.shape)}: only the number of heads may differ"
    for what in ("dtype", "device"):
        found = [getattr(tensor, what) for tensor in (q, k, v)]
        if len(set(found)) > 1:
            named = ", ".join(f"{name} {value}" for name, value in zip("qkv", found))
            return f"q, k and v have more than one {what} ({named}): give them one"
    return None


def method(
    name: str,
    mesh: Mesh,
    *,
    causal: bool = True,
    kernel: str = "auto",
    scale: float | None = None,
    **options: OptionValue,
) -> Attention:
    """A method by its name; groups are made at its first call, which every rank must make."""
    return Attention(name, mesh, causal, kernel, scale, options)


def shard(full: torch.Tensor, layout: str, mesh: Mesh, dim: int = 1) -> torch.Tensor:
    """This rank's rows of a full-length tensor, in the order of the layout."""
    reason = layouts.reason_not(layout, full.shape[dim], mesh.world_size)
    if reason:
        raise UserError(reason)
    return layouts.shard(full, layout, mesh.rank, mesh.world_size, dim)


def unshard(local: torch.Tensor, layout: str, mesh: Mesh, dim: int = 1) -> torch.Tensor:
    """The full-length tensor on every rank, in the order of the sequence; no gradient flows through it."""
    local = local.detach().contiguous()
    parts = [torch.empty_like(local) for _ in range(mesh.world_size)]
    if mesh.world_size > 1:
        dist.all_gather(parts, local)
    else:
        parts = [local]
    together = torch.cat(parts, dim)
    reason = layouts.reason_not(layout, together.shape[dim], mesh.world_size)
    if reason:
        raise UserError(reason)
    undo = layouts.inverse(layouts.permutation(layout, together.shape[dim], mesh.world_size))
    return together.index_select(dim, undo.to(local.device))
