"""Exact attention in plain matrix products, a chunk of query rows at a time: the kernel that runs anywhere.

    keys      0 .. a   a .. b   b ..          rows a..b are one chunk
    rows a..b  dense   triangle  never touched (causal)

It computes in float32 (float64 for float64 inputs) and rounds its results once. The scores of one chunk are
the largest thing it holds. Grouped heads (GQA) are rows of the same product: K and V are never repeated.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from ringmark.cell import Shape

ROWS_MAX = 256  # more would waste half of a causal chunk's triangle
SCORES_MAX = {"cpu": 1 << 21, "cuda": 1 << 27}  # elements of one chunk's scores


class Reference:
    """Chunked exact attention with torch's own matrix products."""

    name = "reference"
    needs_out = False
    deterministic = True

    def version(self) -> str:
        return f"torch {torch.__version__}"

    def unavailable(self) -> str | None:
        return None

    def unfit(self, shape: Shape, device: torch.device) -> str | None:
        return None

    def forward(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float, causal: bool
    ) -> tuple[torch.Tensor, torch.Tensor]:
        wide = _wide(q)
        groups = q.shape[2] // k.shape[2]
        out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        lse = torch.empty(q.shape[0], q.shape[2], q.shape[1], dtype=wide, device=q.device)
        keys, values = _by_head(k, wide), _by_head(v, wide)
        with _full_precision(q.device):
            for rows, limit in _chunks(q, k, causal):
                scores = _scores(_grouped(q[:, rows], groups, wide), keys[:, :limit], scale, rows, causal)
                top = scores.amax(-1, keepdim=True)
                weights = scores.sub_(top).exp_()
                total = weights.sum(-1, keepdim=True)
                part = torch.bmm(weights, values[:, :limit]).div_(total)
                out[:, rows] = _ungrouped(part, q[:, rows])
                lse[:, :, rows] = (total.log_().add_(top)).view(q.shape[0], q.shape[2], -1)
        return out, lse

    def backward(
        self,
        dout: torch.Tensor,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        lse: torch.Tensor,
        delta: torch.Tensor,
        scale: float,
        causal: bool,
        out: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        wide = _wide(q)
        groups = q.shape[2] // k.shape[2]
        dq = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        keys, values = _by_head(k, wide), _by_head(v, wide)
        dkeys, dvalues = torch.zeros_like(keys), torch.zeros_like(values)
        with _full_precision(q.device):
            for rows, limit in _chunks(q, k, causal):
                queries = _grouped(q[:, rows], groups, wide)
                douts = _grouped(dout[:, rows], groups, wide)
                weights = _scores(queries, keys[:, :limit], scale, rows, causal)
                weights.sub_(_column(lse[:, :, rows], queries)).exp_()
                dvalues[:, :limit].baddbmm_(weights.transpose(1, 2), douts)
                dscores = torch.bmm(douts, values[:, :limit].transpose(1, 2))
                dscores.sub_(_column(delta[:, :, rows], queries)).mul_(weights).mul_(scale)
                dq[:, rows] = _ungrouped(torch.bmm(dscores, keys[:, :limit]), q[:, rows])
                dkeys[:, :limit].baddbmm_(dscores.transpose(1, 2), queries)
        return dq, _from_heads(dkeys, k), _from_heads(dvalues, v)


def _wide(tensor: torch.Tensor) -> torch.dtype:
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def _chunks(q: torch.Tensor, k: torch.Tensor, causal: bool) -> Iterator[tuple[slice, int]]:
    """Row ranges, each with the number of leading keys that it sees any of."""
    batch, seqlen_q, heads, _ = q.shape
    seqlen_k = k.shape[1]
    if causal and seqlen_q != seqlen_k:
        raise ValueError(f"a causal mask is square: {seqlen_q} queries, {seqlen_k} keys")
    room = SCORES_MAX.get(q.device.type, SCORES_MAX["cpu"]) // max(1, batch * heads * seqlen_k)
    rows = max(1, min(ROWS_MAX, room))
    for start in range(0, seqlen_q, rows):
        stop = min(start + rows, seqlen_q)
        yield slice(start, stop), stop if causal else seqlen_k


def _scores(
    queries: torch.Tensor, keys: torch.Tensor, scale: float, rows: slice, causal: bool
) -> torch.Tensor:
    """scale * Q K^T of one chunk, (B * Hkv, G * rows, keys), masked above the diagonal."""
    scores = torch.bmm(queries, keys.transpose(1, 2)).mul_(scale)
    if causal:
        count = rows.stop - rows.start
        above = torch.ones(count, count, dtype=torch.bool, device=scores.device).triu_(1)
        triangle = scores.view(scores.shape[0], -1, count, scores.shape[-1])[..., rows.start :]
        triangle.masked_fill_(above, float("-inf"))
    return scores


def _by_head(tensor: torch.Tensor, wide: torch.dtype) -> torch.Tensor:
    """(B, S, H, D) -> (B * H, S, D)."""
    return tensor.transpose(1, 2).to(wide).flatten(0, 1).contiguous()


def _from_heads(flat: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """(B * H, S, D) -> (B, S, H, D), rounded to the dtype of `like`."""
    batch, seqlen, heads, head_dim = like.shape
    result = torch.empty(like.shape, dtype=like.dtype, device=like.device)
    return result.copy_(flat.view(batch, heads, seqlen, head_dim).transpose(1, 2))


def _grouped(rows: torch.Tensor, groups: int, wide: torch.dtype) -> torch.Tensor:
    """(B, R, Hkv * G, D) -> (B * Hkv, G * R, D): the heads that share a kv head are rows of one product."""
    batch, count, heads, head_dim = rows.shape
    return rows.transpose(1, 2).to(wide).reshape(batch * heads // groups, groups * count, head_dim)


def _ungrouped(flat: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """(B * Hkv, G * R, D) -> (B, R, H, D), a view."""
    batch, count, heads, head_dim = like.shape
    return flat.view(batch, heads, count, head_dim).transpose(1, 2)


def _column(per_row: torch.Tensor, queries: torch.Tensor) -> torch.Tensor:
    """(B, H, R) -> (B * Hkv, G * R, 1), beside the scores of the chunk."""
    return per_row.reshape(queries.shape[0], queries.shape[1], 1)


@contextlib.contextmanager
def _full_precision(device: torch.device) -> Iterator[None]:
    """No TF32 in the products of a reference, also where an image has made TF32 the default."""
    if device.type != "cuda":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)


KERNEL = Reference()
