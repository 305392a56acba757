"""The data of a cell: every value is a pure function of (numbers, tensor, global token position, element).

So a cell has the same numbers in every layout and world size, and no rank ever holds more than its own rows:

    numbers = the cell's seed and which draw it is: another for every repeat, and for the check after a timing
    counter = (position * B + b) * H * D + h * D + d    hashed with numbers and tensor name (splitmix64)
    value   = sqrt(-2 ln u) cos(2 pi w)                 unit normal; u, w: the hash's upper and lower bits

Values are made a chunk at a time: what is held besides the result is a few times CHUNK_ELEMENTS numbers.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import torch

from ringmark import layout
from ringmark.cell import BOUND, Cell
from ringmark.comm.mesh import Mesh
from ringmark.methods.base import Method
from ringmark.record import Asked

CHUNK_ELEMENTS = 1 << 21
DTYPES = {"fp64": torch.float64, "fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
_BITS_24 = (1 << 24) - 1


@dataclass
class Problem:
    """One rank's inputs: q, k, v (B, S_local, H, D) that require grad, and dout where there is a backward."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    dout: torch.Tensor | None
    positions_q: torch.Tensor  # global token positions of the rows of q, ascending
    positions_k: torch.Tensor
    causal: bool  # the mask that holds for these rows; a private problem has none
    keys_total: int  # how many keys there are on all ranks that share them
    private: bool  # nothing of other ranks belongs to it
    numbers: str
    salt: int = 0  # differs by rank where every rank has a problem of its own

    @property
    def inputs(self) -> list[torch.Tensor]:
        return [tensor for tensor in (self.q, self.k, self.v, self.dout) if tensor is not None]

    @property
    def inputs_mib(self) -> float:
        return sum(tensor.numel() * tensor.element_size() for tensor in self.inputs) / 2**20

    @property
    def gradients(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """dq, dk, dv as they are now; one that was never written is one of zeros, and wrong."""
        dq, dk, dv = (
            torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
            for tensor in (self.q, self.k, self.v)
        )
        return dq, dk, dv

    def clear_grads(self) -> None:
        """Forget the gradients of q, k and v, so that the next backward writes instead of adding."""
        self.q.grad = self.k.grad = self.v.grad = None

    @property
    def visible(self) -> torch.Tensor:
        """How many keys each row of q sees."""
        positions = self.positions_q
        return positions + 1 if self.causal else torch.full_like(positions, self.keys_total)

    def restore_dout(self) -> None:
        """Make dout anew, after a check has used its memory."""
        if self.dout is not None:
            fill_(self.dout, self.positions_q, _key(self.numbers, "dout", self.salt))

    def draw(self, numbers: str) -> None:
        """Other values in the same memory."""
        self.numbers = numbers
        self.clear_grads()
        for name, tensor, positions in (
            ("q", self.q, self.positions_q),
            ("k", self.k, self.positions_k),
            ("v", self.v, self.positions_k),
        ):
            fill_(tensor, positions, _key(numbers, name, self.salt))
        self.restore_dout()


def numbers(asked: Asked, again: bool = False) -> str:
    """The name of a cell's numbers: its seed, and which draw; `again` for the check after the timing."""
    draw = 2 * asked.repeat + int(again)
    return f"{asked.seed}.{draw}" if draw else str(asked.seed)


def make(cell: Cell, method: Method, mesh: Mesh, numbers: str, device: torch.device) -> Problem:
    """This rank's problem. In a world every rank of the bound has one of its own, of the same work per GPU:
    S/N queries against the keys that a query sees on average (S/2 of them when causal), with no mask."""
    shape, dtype = cell.shape, DTYPES[cell.shape.dtype]
    private = cell.method == BOUND and mesh.world_size > 1
    if private:
        seen = max(1, cell.seqlen_global // 2) if shape.causal else cell.seqlen_global
        positions_q = torch.arange(cell.seqlen_global // mesh.world_size, device=device)
        positions_k = torch.arange(seen, device=device)
    else:
        name = method.layout if mesh.world_size > 1 else "contiguous"
        positions_q = layout.tokens(name, cell.seqlen_global, mesh.rank, mesh.world_size).to(device)
        positions_k = positions_q
    salt = mesh.rank + 1 if private else 0

    def rows(name: str, positions: torch.Tensor, heads: int) -> torch.Tensor:
        size = (shape.batch, positions.numel(), heads, shape.head_dim)
        empty = torch.empty(size, dtype=dtype, device=device)
        return fill_(empty, positions, _key(numbers, name, salt))

    q = rows("q", positions_q, shape.num_heads_q).requires_grad_()
    k = rows("k", positions_k, shape.num_heads_kv).requires_grad_()
    v = rows("v", positions_k, shape.num_heads_kv).requires_grad_()
    dout = rows("dout", positions_q, shape.num_heads_q) if cell.phase == "fwd_bwd" else None
    causal = shape.causal and not private
    keys_total = positions_k.numel() * (1 if private else mesh.world_size)
    return Problem(q, k, v, dout, positions_q, positions_k, causal, keys_total, private, numbers, salt)


def fill_(target: torch.Tensor, positions: torch.Tensor, key: int) -> torch.Tensor:
    """Write the values of these token positions into `target` (B, S, H, D), in place."""
    batch, seqlen, heads, head_dim = target.shape
    width = heads * head_dim
    step = max(1, CHUNK_ELEMENTS // width)
    within = torch.arange(width, device=target.device)
    for b in range(batch):
        for start in range(0, seqlen, step):
            chosen = positions[start : start + step]
            counter = (chosen[:, None] * batch + b) * width + within
            values = _normal(counter, key).view(-1, heads, head_dim)
            target.detach()[b, start : start + step].copy_(values)
    return target


def _key(numbers: str, name: str, salt: int) -> int:
    """63 bits that differ for every (draw, tensor, rank of a private problem)."""
    text = hashlib.sha256(f"{numbers}/{name}/{salt}".encode()).digest()
    return int.from_bytes(text[:8], "little") >> 1


def _normal(counter: torch.Tensor, key: int) -> torch.Tensor:
    """Unit-normal float32 values of 64-bit counters; consumes `counter`."""
    bits = _splitmix64_(counter, key)
    u = _unsigned_shift(bits, 40).add_(1).to(torch.float32).mul_(2.0**-24)  # in (0, 1]: its log is finite
    w = bits.bitwise_and_(_BITS_24).to(torch.float32).mul_(2.0 * math.pi * 2.0**-24)
    return u.log_().mul_(-2.0).sqrt_().mul_(w.cos_())


def _splitmix64_(z: torch.Tensor, key: int) -> torch.Tensor:
    """The splitmix64 finalizer of z * golden + key, in place; int64 products wrap as the hash wants."""
    z.mul_(_signed(0x9E3779B97F4A7C15)).add_(key)
    z.bitwise_xor_(_unsigned_shift(z, 30)).mul_(_signed(0xBF58476D1CE4E5B9))
    z.bitwise_xor_(_unsigned_shift(z, 27)).mul_(_signed(0x94D049BB133111EB))
    return z.bitwise_xor_(_unsigned_shift(z, 31))


def _unsigned_shift(z: torch.Tensor, by: int) -> torch.Tensor:
    return (z >> by).bitwise_and_((1 << (64 - by)) - 1)


def _signed(value: int) -> int:
    return value - (1 << 64) if value >= 1 << 63 else value
