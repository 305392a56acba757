"""The all-to-all on copy engines: a piece is read where it lies and written where it belongs, in one go.

    to_heads      rank 2 writes its rows of rank 0's heads       rank 0's slot   rows 0 | rows 1 | rows 2 ..
    to_sequence   rank 2 writes rank 0's rows of its own heads   rank 0's slot   heads 0 1 2 .. in every row

So nothing is packed, and nothing is sorted on arrival. What has come is copied out of the slot at once, so
that slots come free on every rank at the same point (comm/copies.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ringmark.comm.all_to_all import HeadExchange, by_owner
from ringmark.comm.copies import Copied, Copies, Leaving
from ringmark.comm.driver import Place, has_whole_rows
from ringmark.comm.mesh import OPEN_LANE, Axis, Lane, Mesh
from ringmark.comm.parcel import Signature
from ringmark.comm.slots import landing
from ringmark.kernels.merge import copy_, wide

# (tensor's index, member, where that tensor begins in the member's slot) -> what goes there, and its place
Piece = Callable[[int, int, int], tuple[torch.Tensor, Place]]


class CopiedHeadExchange(HeadExchange):
    """The all-to-all inside one axis of a mesh whose members are on one node."""

    def __init__(self, mesh: Mesh, axis: Axis, purpose: str, lane: Lane = OPEN_LANE) -> None:
        super().__init__(mesh, axis, purpose, lane)
        self.copies = Copies(self.group, mesh.device)

    @property
    def transport(self) -> str:
        return "copy_engine"

    def to_heads(self, tensors: Sequence[torch.Tensor], spans: Sequence[slice]) -> Landed:
        here, size = self.group.position, self.size
        cuts = [by_owner(_of_whole_rows(tensor), size, span) for tensor, span in zip(tensors, spans)]
        # All ranks' rows one after the other: (B, ranks * S, heads, D).
        room = tuple(((cut.shape[1], size * cut.shape[2], *cut.shape[3:]), cut.dtype) for cut in cuts)

        def piece(index: int, member: int, begin: int) -> tuple[torch.Tensor, Place]:
            leaving = cuts[index][member * len(cuts[index]) // size]
            seqlen, row = leaving.shape[1], _row_bytes(leaving)
            return leaving, Place(begin + here * seqlen * row, row, size * seqlen * row)

        copied, landed = self._post(room, piece)
        for index, tensor in enumerate(landed):
            ours, _ = piece(index, here, 0)
            torch.unflatten(tensor, 1, (size, -1))[:, here].copy_(ours)
        return Landed(copied, cuts, lambda: [tensor.clone() for tensor in landed])

    def to_sequence(
        self, tensors: Sequence[torch.Tensor], spans: Sequence[slice], targets: Sequence[torch.Tensor]
    ) -> Landed:
        here, size = self.group.position, self.size
        owners = [min(size, target.shape[2]) for target in targets]
        by_rows = [torch.unflatten(_of_whole_rows(tensor), 1, (size, -1)) for tensor in tensors]
        # The heads of all owners in every row, once for each rank with a copy: (copies, B, S, heads, D).
        room: Signature = tuple(
            ((size // count, rows.shape[0], rows.shape[2], count * rows.shape[3], rows.shape[4]), rows.dtype)
            for rows, count in zip(by_rows, owners)
        )

        def piece(index: int, member: int, begin: int) -> tuple[torch.Tensor, Place]:
            leaving = by_rows[index][:, member]
            batch, seqlen = leaving.shape[:2]
            part, (owner, copy) = _row_bytes(leaving), divmod(here, size // owners[index])
            row = part * owners[index]
            return leaving, Place(begin + copy * batch * seqlen * row + owner * part, row, seqlen * row)

        copied, landed = self._post(room, piece)
        for index, tensor in enumerate(landed):
            ours, _ = piece(index, here, 0)
            owner, copy = divmod(here, len(tensor))
            torch.unflatten(tensor[copy], 2, (owners[index], -1))[:, :, owner].copy_(ours)

        def take_out() -> list[torch.Tensor]:
            for tensor, span, target in zip(landed, spans, targets):
                _put_back(tensor, target, size, span)
            return list(targets)

        return Landed(copied, by_rows, take_out)

    def _post(self, room: Signature, piece: Piece) -> tuple[Copied, tuple[torch.Tensor, ...]]:
        """Send every other member its piece of every tensor; the hop, and the slot that all land in."""
        received, group, leaving = self.copies.slots.take(room), self.group, []
        for step in range(1, group.size):
            target = (group.position + step) % group.size
            memory = received.slot.addresses[target]
            pieces = [piece(index, target, memory + begin) for index, begin in enumerate(landing(room, room))]
            self.mesh.traffic.count(sum(tensor.nbytes for tensor, _ in pieces), same_node=True)
            leaving.append(Leaving(target, pieces))
        sources = [(group.position - step) % group.size for step in range(1, group.size)]
        return self.copies.post(leaving, sources, received), received.tensors


class Landed:
    """An all-to-all under way into a slot; what is read meanwhile is kept."""

    def __init__(
        self, copied: Copied, read: Sequence[torch.Tensor], take_out: Callable[[], list[torch.Tensor]]
    ) -> None:
        self._copied, self._read, self._take_out = copied, read, take_out

    def wait(self) -> list[torch.Tensor]:
        arrived = self._copied.wait()
        results = self._take_out()
        arrived.drop()
        self._read = ()
        return results


def _of_whole_rows(tensor: torch.Tensor) -> torch.Tensor:
    """As it lies, if every row lies side by side."""
    return tensor if has_whole_rows(tensor) else tensor.contiguous()


def _row_bytes(tensor: torch.Tensor) -> int:
    return tensor.nbytes // (tensor.shape[0] * tensor.shape[1])


def _put_back(landed: torch.Tensor, target: torch.Tensor, ranks: int, span: slice) -> None:
    """(copies, B, S, heads of the span of all owners, D) into (B, S, H, D), copies summed."""
    rows = landed[0] if len(landed) == 1 else landed.sum(0, dtype=wide(landed.dtype))
    if rows.shape == target.shape:
        copy_(rows, target)
        return
    place = by_owner(target, ranks, span)
    owners, batch, seqlen = place.shape[:3]
    by_head = torch.unflatten(rows.flatten(0, 1), 1, (owners, -1)).transpose(0, 1)
    copy_(by_head, place.view(owners, batch * seqlen, *place.shape[3:]))
