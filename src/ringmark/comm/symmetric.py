"""Symmetric memory: slots that every GPU of a node may write, and whether a node has that.

Whether it does is found out by trying, once for a mesh: the parts may all be there and the node still forbid
it, as between containers of one rank each. All ranks ask together and get one answer, for a ring on copy
engines beside one that sends and receives would wait for ever.
"""

from __future__ import annotations

import warnings
import weakref
from collections.abc import Sequence

import torch
import torch.distributed as dist

from ringmark.comm import driver
from ringmark.comm.mesh import Group, Mesh


class Slot:
    """A piece of symmetric memory: ours, which others write, and that of every member, by position."""

    def __init__(self, ours: torch.Tensor, of_members: Sequence[torch.Tensor]) -> None:
        self.ours = ours
        self._of_members = of_members  # kept alive: only their addresses are used
        self.addresses = [memory.data_ptr() for memory in of_members]


# Symmetric memory comes straight from the driver: torch's allocator does not count it.
_living: dict[int, int] = {}


def allocated_bytes() -> int:
    """The symmetric memory that this process holds."""
    return sum(_living.values())


def unavailable() -> str | None:
    """Why this machine has no copy-engine transport, or None."""
    if not torch.cuda.is_available():
        return "the copy_engine transport needs CUDA devices"
    try:
        from torch.distributed import _symmetric_memory as symmetric
    except ImportError:
        return f"torch {torch.__version__} has no symmetric memory, which the copy_engine transport needs"
    if not hasattr(symmetric, "rendezvous") or not hasattr(symmetric, "empty"):
        return f"the symmetric memory of torch {torch.__version__} is too old for the copy_engine transport"
    return driver.unavailable()


def make_slot(group: Group, device: torch.device, num_bytes: int) -> Slot:
    """Symmetric memory: made by all members at the same point of their program."""
    from torch.distributed import _symmetric_memory as symmetric

    process_group = group.process_group
    assert process_group is not None
    ours = symmetric.empty(num_bytes, dtype=torch.uint8, device=device)
    try:
        handle = symmetric.rendezvous(ours, group=process_group)
    except RuntimeError as error:
        raise RuntimeError(
            f"the GPUs of this node cannot share memory, take transport=send_recv: {error}"
        ) from error
    _living[id(ours)] = num_bytes
    weakref.finalize(ours, _living.pop, id(ours))

    def at(place: int) -> torch.Tensor:
        if place == group.position:
            return ours
        if hasattr(handle, "get_remote_tensor"):  # knows where in its allocation the tensor lies
            return handle.get_remote_tensor(place, (num_bytes,), torch.uint8)
        return handle.get_buffer(place, (num_bytes,), torch.uint8)

    return Slot(ours, [at(place) for place in range(group.size)])


def chosen(transport: str, mesh: Mesh) -> bool:
    """Whether copy engines move what stays inside a node; all ranks ask at the same point."""
    return transport == "copy_engine" or (transport == "auto" and suits(mesh))


_suits: weakref.WeakKeyDictionary[Mesh, bool] = weakref.WeakKeyDictionary()


def suits(mesh: Mesh) -> bool:
    """Whether a method may choose it unasked."""
    real = mesh.real
    if real.device.type != "cuda":
        return False
    if real not in _suits:
        _suits[real] = found_out(real)
    return _suits[real]


def found_out(mesh: Mesh) -> bool:
    """Try: no rank alone, so the first question is settled before the second is asked."""
    return agreed(mesh, _within_reach(mesh)) and agreed(mesh, _is_shared(mesh))


def agreed(mesh: Mesh, yes: bool) -> bool:
    """Whether every rank says so."""
    if mesh.world_size == 1:
        return yes
    vote = torch.tensor(int(yes), device=mesh.device)
    dist.all_reduce(vote, op=dist.ReduceOp.MIN)
    return bool(vote.item())


def _within_reach(mesh: Mesh) -> bool:
    """Whether torch and the driver have it, and the GPUs of this node see each other's memory."""
    if unavailable() is not None:
        return False
    here = mesh.device.index or 0
    others = [other for other in range(torch.cuda.device_count()) if other != here]
    return len(others) >= mesh.gpus - 1 and all(
        torch.cuda.can_device_access_peer(here, other) for other in others
    )


def _is_shared(mesh: Mesh) -> bool:
    """Whether a small slot can be made with the other GPUs of this node."""
    group = mesh.group("intra", "shared_memory")
    if group.size == 1:
        return True
    try:
        make_slot(group, mesh.device, 4096)
    except RuntimeError as error:
        warnings.warn(f"sending through NCCL instead of copy engines: {error}", stacklevel=2)
        return False
    return True
