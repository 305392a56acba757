"""Parcels: tensors that travel together, counted so that no buffer is written while somebody needs it.

A received parcel belongs to a pool. Its reader is one user, each send of it under way is another; when the
last one drops it, and not before, the pool may hand it out to be received into again.

    wait() ->  1 user (the reader)     post() -> +1 until that hop has been waited for     drop() -> -1

On CUDA "dropped" means that the work using it has been enqueued: a later receive is ordered after it by the
stream, so nothing here ever waits on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ringmark.kernels.merge import ALL, copy_

Signature = tuple[tuple[tuple[int, ...], torch.dtype], ...]


class Parcel:
    """Tensors that travel together, and how many users they have."""

    def __init__(
        self, tensors: Sequence[torch.Tensor], release: Callable[[Parcel], None] | None = None
    ) -> None:
        self.tensors = tuple(tensors)
        self.users = 1
        self._release = release

    @property
    def num_bytes(self) -> int:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors)

    def hold(self) -> Parcel:
        """One more user."""
        assert self.users > 0, "a parcel that everybody has dropped cannot be held again"
        self.users += 1
        return self

    def drop(self) -> None:
        """One user fewer; the last one gives the buffers back to their pool."""
        assert self.users > 0, "a parcel was dropped more often than it was held"
        self.users -= 1
        if self.users == 0 and self._release is not None:
            self._release(self)


class Pool:
    """Buffers to receive into, made at the first need of each kind and used again ever after."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._free: dict[Signature, list[Parcel]] = {}

    def take(self, signature: Signature) -> Parcel:
        """A parcel with one user, of no particular content."""
        free = self._free.setdefault(signature, [])
        if free:
            parcel = free.pop()
            parcel.users = 1
            return parcel
        return Parcel(self._make(signature), self.give_back)

    def packed(self, tensors: Sequence[torch.Tensor], sends: Callable[[torch.Tensor], bool]) -> Parcel:
        """The tensors as a parcel that can be sent: each as it lies if it can be, else copied."""
        scattered = [tensor for tensor in tensors if not sends(tensor)]
        own = self.take(signature(scattered))
        for buffer, tensor in zip(own.tensors, scattered):
            copy_(tensor, buffer)
        buffers = iter(own.tensors)
        return Parcel(
            [tensor if sends(tensor) else next(buffers) for tensor in tensors], lambda _: own.drop()
        )

    def give_back(self, parcel: Parcel) -> None:
        self._free[signature(parcel.tensors)].append(parcel)

    def clear(self) -> None:
        """Forget the free buffers: their memory goes back to the allocator."""
        self._free.clear()

    def _make(self, signature: Signature) -> list[torch.Tensor]:
        return [torch.empty(shape, dtype=dtype, device=self.device) for shape, dtype in signature]


def signature(tensors: Sequence[torch.Tensor], dtype: torch.dtype | None = None) -> Signature:
    """What kind of parcel holds such tensors, in another dtype if one is given."""
    return tuple((tuple(tensor.shape), dtype or tensor.dtype) for tensor in tensors)


def rows_of(tensor: torch.Tensor, rows: slice) -> torch.Tensor:
    """Some rows of a tensor (B, S, ...); any tensor if it is all of them."""
    return tensor if rows == ALL else tensor[:, rows]
