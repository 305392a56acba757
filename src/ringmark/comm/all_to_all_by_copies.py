"""The all-to-all on copy engines: a piece is read where it lies and written where it belongs, in one go.

    to_heads      rank 2 writes its rows of rank 0's heads       rank 0's slot   rows 0 | rows 1 | rows 2 ..
    to_sequence   rank 2 writes rank 0's rows of its own heads   rank 0's slot   heads 0 1 2 .. in every row

So nothing is packed, and nothing is sorted on arrival. What has come is copied out of the slot at once, so
that slots come free on every rank at the same point (comm/copies.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ringmark.comm.all_to_all import HeadExchange, by_owner, put_back, summed
from ringmark.comm.copies import Copied, Copies, Leaving
from ringmark.comm.driver import Place, has_whole_rows
from ringmark.comm.mesh import OPEN_LANE, Axis, Lane, Mesh
from ringmark.comm.parcel import Signature
from ringmark.comm.slots import landing
from ringmark.kernels.merge import copy_

Pieces = Callable[[int], list[torch.Tensor]]  # what goes to a member, of every tensor


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
        rows = [(cut.shape[2], cut[0, 0, 0].nbytes) for cut in cuts]
        places = [Place(here * seqlen * row, row, size * seqlen * row) for seqlen, row in rows]

        def pieces(member: int) -> list[torch.Tensor]:
            return [cut[member * len(cut) // size] for cut in cuts]

        copied, landed = self._post(room, pieces, places)
        for tensor, ours in zip(landed, pieces(here)):
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
        # Which owner we are, and which of its copies.
        mine = [divmod(here, size // count) for count in owners]
        places = []
        for rows, count, (owner, copy) in zip(by_rows, owners, mine):
            batch, seqlen, part = rows.shape[0], rows.shape[2], rows[0, 0, 0].nbytes
            row = count * part
            places.append(Place(copy * batch * seqlen * row + owner * part, row, seqlen * row))

        def pieces(member: int) -> list[torch.Tensor]:
            return [rows[:, member] for rows in by_rows]

        copied, landed = self._post(room, pieces, places)
        for tensor, ours, count, (owner, copy) in zip(landed, pieces(here), owners, mine):
            torch.unflatten(tensor[copy], 2, (count, -1))[:, :, owner].copy_(ours)

        def take_out() -> list[torch.Tensor]:
            for tensor, count, span, target in zip(landed, owners, spans, targets):
                rows = summed(tensor, 0)
                if rows.shape == target.shape:
                    copy_(rows, target)
                else:
                    put_back(torch.unflatten(rows, 2, (count, -1)).permute(2, 0, 1, 3, 4), target, span)
            return list(targets)

        return Landed(copied, by_rows, take_out)

    def _post(
        self, room: Signature, pieces: Pieces, places: Sequence[Place]
    ) -> tuple[Copied, tuple[torch.Tensor, ...]]:
        """Send every other member its pieces, to the same `places` in the tensors of each one's slot.

        Gives the hop, and the tensors of our own slot, in which all land.
        """
        received, group, leaving = self.copies.slots.take(room), self.group, []
        starts = landing(room, room)
        for step in range(1, group.size):
            target = (group.position + step) % group.size
            memory, tensors = received.slot.addresses[target], pieces(target)
            there = [at._replace(address=memory + start + at.address) for start, at in zip(starts, places)]
            self.mesh.traffic.count(sum(tensor.nbytes for tensor in tensors), same_node=True)
            leaving.append(Leaving(target, list(zip(tensors, there))))
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
