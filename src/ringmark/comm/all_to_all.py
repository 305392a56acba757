"""All-to-all between two ways of holding attention: few rows of all heads, or all rows of few heads.

    4 ranks, 4 heads       to_heads ->            rank 0 held rows 0 of heads 0 1 2 3
    rows 0   0 1 2 3                   0 . . .    and now holds rows 0 1 2 3 of head 0
    rows 1   0 1 2 3       <- to_sequence
    rows 2   0 1 2 3                   the other ranks have the other heads
    rows 3   0 1 2 3

Posted first and waited for later, so a kernel can run meanwhile. With fewer kv heads than ranks, ranks that
share a head get copies of it, and their gradients are summed on the way back. Two ways to move a piece:

    messages        packed once where its heads are cut out, it arrives in place where its rows lie side by
                    side: one copy each way, on the side that holds all heads
    copy engines    read where it lies and written where it belongs, in a slot that all members may write; one
                    copy each way, out of the slot (comm/all_to_all_by_copies.py)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
import torch.distributed as dist

from ringmark.comm.mesh import OPEN_LANE, Axis, Lane, Mesh
from ringmark.kernels.merge import copy_, wide

Piece = Callable[[int], torch.Tensor]  # what goes to, or comes from, a place in the team


def local_heads(num_heads: int, ranks: int) -> int:
    """How many of `num_heads` each of the ranks gets: an equal share, or a copy of one."""
    return max(1, num_heads // ranks)


def reason_not(num_heads_q: int, num_heads_kv: int, ranks: int, option: str | None = None) -> str | None:
    """Why the heads cannot be dealt out to so many ranks, or None; `option` is the one that says how many."""
    if num_heads_q % ranks:
        fits = ", ".join(str(degree) for degree in range(1, num_heads_q + 1) if num_heads_q % degree == 0)
        what = f"{option} can be one of" if option else "the number of ranks can be one of"
        return f"{num_heads_q} heads cannot be dealt to {ranks} ranks: {what} {fits}"
    if num_heads_kv % ranks and ranks % num_heads_kv:
        return (
            f"{num_heads_kv} kv heads and {ranks} ranks: one number must divide the other, so that "
            "every rank gets equally many, or a copy of one"
        )
    return None


class Pending(Protocol):
    """An all-to-all under way."""

    def wait(self) -> list[torch.Tensor]:
        """The results. On CUDA only the streams wait, never the host."""


def head_exchange(mesh: Mesh, axis: Axis, purpose: str, lane: Lane = OPEN_LANE) -> HeadExchange:
    """The exchange that a lane asks for; copy engines where they reach."""
    if mesh.by_copy_engine(axis, lane):
        from ringmark.comm.all_to_all_by_copies import CopiedHeadExchange

        return CopiedHeadExchange(mesh, axis, purpose, lane)
    return HeadExchange(mesh, axis, purpose, lane)


class HeadExchange:
    """The all-to-all inside one axis of a mesh, by messages, with a communicator of its own."""

    def __init__(self, mesh: Mesh, axis: Axis, purpose: str, lane: Lane = OPEN_LANE) -> None:
        self.mesh = mesh
        self.group = mesh.group(axis, purpose, lane)

    @property
    def size(self) -> int:
        return self.group.size

    @property
    def transport(self) -> str:
        """What moves the bytes."""
        return self.mesh.backend

    @property
    def crosses_nodes(self) -> bool:
        """Whether some of the ranks sit on another node."""
        return not self.mesh.one_node(self.group.members)

    def to_heads(self, tensors: Sequence[torch.Tensor], spans: Sequence[slice]) -> Pending:
        """Post (B, S, H, D) tensors; wait() gives (B, size * S, heads of the span, D) of each.

        `spans[i]` are the heads to move among those that a rank gets of tensors[i].
        """
        pending = _Messages()
        for tensor, span in zip(tensors, spans):
            pending.results.append(self._one_to_heads(pending, tensor, span))
        return self._start(pending)

    def to_sequence(
        self, tensors: Sequence[torch.Tensor], spans: Sequence[slice], targets: Sequence[torch.Tensor]
    ) -> Pending:
        """Post (B, size * S, heads of the span, D) tensors; wait() has written them into the targets.

        `targets` are the (B, S, H, D) tensors of all heads; copies of a kv head are summed into its own.
        """
        pending = _Messages()
        for tensor, span, target in zip(tensors, spans, targets):
            self._one_to_sequence(pending, tensor, span, target)
            pending.results.append(target)
        return self._start(pending)

    def _one_to_heads(self, pending: _Messages, tensor: torch.Tensor, span: slice) -> torch.Tensor:
        batch, seqlen, _, head_dim = tensor.shape
        if self.size == 1:
            return tensor[:, :, span]
        cut = by_owner(tensor, self.size, span)
        packed = cut.new_empty(cut.shape)
        copy_(cut.flatten(1, 2), packed.flatten(1, 2))
        result = tensor.new_empty(batch, self.size * seqlen, cut.shape[3], head_dim)
        owner = self._owner(packed)
        rows = self._rows(result)
        self._swap(pending, lambda place: packed[owner(place)], rows)
        here = self.group.position
        rows(here).copy_(packed[owner(here)])
        return result

    def _one_to_sequence(
        self, pending: _Messages, tensor: torch.Tensor, span: slice, target: torch.Tensor
    ) -> None:
        if self.size == 1:
            target[:, :, span].copy_(tensor)
            return
        tensor = tensor.contiguous()
        batch, seqlen, heads, head_dim = tensor.shape
        arrived = tensor.new_empty(self.size, batch, seqlen // self.size, heads, head_dim)
        rows = self._rows(tensor)
        self._swap(pending, rows, lambda place: arrived[place])
        here = self.group.position
        arrived[here].copy_(rows(here))
        by_copy = torch.unflatten(arrived, 0, (min(self.size, target.shape[2]), -1))
        pending.finish.append(lambda: put_back(summed(by_copy, 1), target, span))

    def _rows(self, tensor: torch.Tensor) -> Piece:
        """The rows of a place, in a tensor that holds everybody's."""
        return lambda place: torch.unflatten(tensor, 1, (self.size, -1))[:, place]

    def _owner(self, packed: torch.Tensor) -> Callable[[int], int]:
        """Which packed heads a place gets: its own, or those that it shares."""
        return lambda place: place * packed.shape[0] // self.size

    def _swap(self, pending: _Messages, outgoing: Piece, incoming: Piece) -> None:
        """One piece to each other member of the team and one from each, nearest neighbours first."""
        group, here = self.group, self.group.position
        for step in range(1, self.size):
            to, source = group.members[(here + step) % self.size], group.members[(here - step) % self.size]
            near = self.mesh.same_node(to)
            # One message for each item of the batch: its rows lie side by side on both ends.
            for piece in outgoing((here + step) % self.size):
                self.mesh.traffic.count(piece.numel() * piece.element_size(), near)
                pending.sends.append(dist.P2POp(dist.isend, piece, to, group.process_group))
            for piece in incoming((here - step) % self.size):
                pending.receives.append(dist.P2POp(dist.irecv, piece, source, group.process_group))

    def _start(self, pending: _Messages) -> _Messages:
        operations = pending.sends + pending.receives
        if operations:
            # All in one batch: NCCL runs it as one kernel, in which nobody can block anybody.
            pending.works = dist.batch_isend_irecv(operations)
        return pending


class _Messages:
    """An all-to-all of messages under way; it holds every buffer that the wire still needs."""

    def __init__(self) -> None:
        self.sends: list[Any] = []
        self.receives: list[Any] = []
        self.works: list[Any] = []
        self.results: list[torch.Tensor] = []
        self.finish: list[Callable[[], None]] = []

    def wait(self) -> list[torch.Tensor]:
        """The results. On CUDA only the streams wait, never the host."""
        for work in self.works:
            work.wait()
        for step in self.finish:
            step()
        self.sends, self.receives, self.works, self.finish = [], [], [], []
        return self.results


def by_owner(tensor: torch.Tensor, ranks: int, span: slice) -> torch.Tensor:
    """(B, S, H, D) -> a view (owners, B, S, heads of the span, D); an owner is a rank, or a shared head."""
    num_heads = tensor.shape[2]
    owners = min(ranks, num_heads)
    each = torch.unflatten(tensor, 2, (owners, num_heads // owners))
    return each[:, :, :, span].permute(2, 0, 1, 3, 4)


def summed(copies: torch.Tensor, dim: int) -> torch.Tensor:
    """The gradients of one head from all ranks that have a copy of it, which lie along a dimension."""
    if copies.shape[dim] == 1:
        return copies.select(dim, 0)
    return copies.sum(dim, dtype=wide(copies.dtype))


def put_back(parts: torch.Tensor, target: torch.Tensor, span: slice) -> None:
    """(owners, B, S, heads, D) into the span of every owner's heads of (B, S, H, D)."""
    owners, batch, seqlen = parts.shape[:3]
    place = by_owner(target, owners, span)
    # Rows of all items of the batch in one; a view, or an error.
    copy_(parts.flatten(1, 2), place.view(owners, batch * seqlen, *place.shape[3:]))
