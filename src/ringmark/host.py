"""What this host has for its ranks, asked before anything is written or measured."""

from __future__ import annotations

from ringmark.cell import MeshShape
from ringmark.errors import UserError


def gpus_for(device: str) -> int:
    """How many GPUs ranks on a device ("auto", "cpu" or "cuda") can have here; 0 means the CPU."""
    if device == "cpu":
        return 0
    try:
        import torch
    except ImportError:
        raise UserError(
            "torch is not installed: 'make env' sets up this checkout, or use the image"
        ) from None
    count = torch.cuda.device_count()
    if device == "cuda" and not count:
        raise UserError("no GPU is visible: start the container with --gpus all, or choose the device cpu")
    return count


def check_fits(mesh: MeshShape, gpus: int) -> None:
    """A rank has a GPU of its own, or all ranks are on the CPU."""
    if gpus and mesh.world_size > gpus:
        raise UserError(
            f"mesh {mesh} needs {mesh.world_size} GPUs, {gpus} are visible: choose a smaller mesh"
        )
