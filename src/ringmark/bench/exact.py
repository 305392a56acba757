"""Exact attention of some query rows over keys that stay where they are: no rank sees another's K or V.

    every rank:  all sampled rows x its own keys  ->  (max, sum, weighted values)   chunk by chunk
    all reduce:  the rows' exact out and lse, everywhere
    every rank:  dk, dv of its own keys, exactly; its share of the rows' dq, summed over ranks

When dout is zero but for the sampled rows, these dk and dv are exact for every key, not a sample. What is
held is one chunk of scores and the rows themselves; masks come from global token positions alone.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.distributed as dist

SCORES_MAX = {"cpu": 1 << 20, "cuda": 1 << 24}  # elements of one chunk's scores


@dataclass
class Keys:
    """This rank's keys and values (B, S, Hkv, D) and where they stand in the sequence."""

    k: torch.Tensor
    v: torch.Tensor
    positions: torch.Tensor


@dataclass
class Rows:
    """The query rows that an answer is asked for, the same on every rank that shares the keys.

    q and dout are (B, R, H, D) in the dtype to compute in; `group` is who shares the keys (None: nobody).
    """

    q: torch.Tensor
    dout: torch.Tensor | None
    positions: torch.Tensor
    visible: torch.Tensor  # how many keys each row sees
    causal: bool
    scale: float
    group: dist.ProcessGroup | None

    @property
    def wide(self) -> torch.dtype:
        return self.q.dtype


def forward(rows: Rows, keys: Keys) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows' exact out (B, R, H, D) and lse (B, H, R)."""
    queries = _fold(rows.q, keys.k.shape[2])
    top = queries.new_full(queries.shape[:2], float("-inf"), dtype=torch.float64)
    total, acc = torch.zeros_like(top), torch.zeros_like(queries)
    with full_precision():
        for part in chunks(rows, keys, slice(0, keys.k.shape[1])):
            scores = _scores(rows, queries, keys, part)
            new_top = torch.maximum(top, scores.amax(-1))
            base = torch.where(new_top.isinf(), 0.0, new_top)  # a row that has seen no key yet
            fade = (top - base).exp_()
            scores.sub_(base.to(scores.dtype)[..., None]).exp_()
            total = total.mul_(fade).add_(scores.sum(-1, dtype=torch.float64))
            acc.mul_(fade.to(acc.dtype)[..., None]).baddbmm_(scores, _by_head(keys.v[:, part], rows.wide))
            top = new_top
    top_everywhere = _reduced(top.clone(), rows.group, dist.ReduceOp.MAX)
    fade = (top - top_everywhere).exp_()
    total = _reduced(total * fade, rows.group)
    acc = _reduced(acc * fade.to(acc.dtype)[..., None], rows.group)
    out = acc / total.to(acc.dtype)[..., None]
    lse = (top_everywhere + total.log()).view(rows.q.shape[0], rows.q.shape[2], -1)
    return _unfold(out, rows.q), lse


class Backward:
    """The exact backward of the rows: `gradients` of a range of keys at a time, then `dq` of the rows."""

    def __init__(self, rows: Rows, keys: Keys, out: torch.Tensor, lse: torch.Tensor) -> None:
        assert rows.dout is not None
        num_heads_kv = keys.k.shape[2]
        self.rows, self.keys = rows, keys
        self._queries, self._douts = _fold(rows.q, num_heads_kv), _fold(rows.dout, num_heads_kv)
        self._delta = (self._douts * _fold(out, num_heads_kv)).sum(-1, keepdim=True)
        self._lse = lse.to(rows.wide).reshape(*self._queries.shape[:2], 1)
        self._dq = torch.zeros_like(self._queries)

    def gradients(self, part: slice) -> tuple[torch.Tensor, torch.Tensor]:
        """The exact dk, dv (B, S_part, Hkv, D) of this rank's keys in `part`; visit every key once."""
        rows, keys = self.rows, self.keys
        k_part, v_part = (_by_head(tensor[:, part], rows.wide) for tensor in (keys.k, keys.v))
        with full_precision():
            weights = _scores(rows, self._queries, keys, part).sub_(self._lse).exp_()
            dv = torch.bmm(weights.transpose(1, 2), self._douts)
            dscores = torch.bmm(self._douts, v_part.transpose(1, 2))
            dscores.sub_(self._delta).mul_(weights).mul_(rows.scale)
            self._dq.baddbmm_(dscores, k_part)
            dk = torch.bmm(dscores.transpose(1, 2), self._queries)
        by_batch = (keys.k.shape[0], -1, *dk.shape[1:])
        return dk.view(by_batch).transpose(1, 2), dv.view(by_batch).transpose(1, 2)

    def dq(self) -> torch.Tensor:
        """The rows' exact dq (B, R, H, D), once `gradients` has seen every key of every rank."""
        return _unfold(_reduced(self._dq, self.rows.group), self.rows.q)


def chunks(rows: Rows, keys: Keys, within: slice) -> Iterator[slice]:
    """Ranges of keys whose scores against all rows are few enough to hold."""
    held = rows.q.shape[0] * rows.q.shape[1] * rows.q.shape[2]
    step = max(1, SCORES_MAX.get(rows.q.device.type, SCORES_MAX["cpu"]) // held)
    for start in range(within.start, within.stop, step):
        yield slice(start, min(start + step, within.stop))


def everywhere(mine: torch.Tensor, dim: int, group: dist.ProcessGroup | None) -> torch.Tensor:
    """Every rank's equally large tensor on every rank of the group, joined in rank order."""
    if group is None:
        return mine
    parts = [torch.empty_like(mine) for _ in range(dist.get_world_size(group))]
    dist.all_gather(parts, mine.contiguous(), group=group)
    return torch.cat(parts, dim)


def _scores(rows: Rows, queries: torch.Tensor, keys: Keys, part: slice) -> torch.Tensor:
    """scale * Q K^T (B * Hkv, G * R, S_part); -inf where the key comes after the query."""
    scores = torch.bmm(queries, _by_head(keys.k[:, part], rows.wide).transpose(1, 2)).mul_(rows.scale)
    if rows.causal:
        later = keys.positions[part][None, :] > rows.positions[:, None]
        scores.view(scores.shape[0], -1, *later.shape).masked_fill_(later, float("-inf"))
    return scores


def _by_head(tensor: torch.Tensor, wide: torch.dtype) -> torch.Tensor:
    """(B, S, H, D) -> (B * H, S, D)."""
    return tensor.detach().transpose(1, 2).to(wide).flatten(0, 1)


def _fold(tensor: torch.Tensor, num_heads_kv: int) -> torch.Tensor:
    """(B, R, Hkv * G, D) -> (B * Hkv, G * R, D): heads that share keys become rows of one product."""
    batch, _, _, head_dim = tensor.shape
    return tensor.transpose(1, 2).reshape(batch * num_heads_kv, -1, head_dim)


def _unfold(flat: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    batch, count, heads, head_dim = like.shape
    return flat.view(batch, heads, count, head_dim).transpose(1, 2)


def _reduced(
    tensor: torch.Tensor, group: dist.ProcessGroup | None, op: dist.ReduceOp.RedOpType = dist.ReduceOp.SUM
) -> torch.Tensor:
    if group is not None:
        tensor = tensor.contiguous()
        dist.all_reduce(tensor, op=op, group=group)
    return tensor


@contextlib.contextmanager
def full_precision() -> Iterator[None]:
    """No TF32 in a reference, also where an image has made TF32 the default."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
