"""An answer held against the exact one: norms of difference and reference per half-block and head.

    relative error = norm(answer - exact) / norm(exact)      of a group: one half-block of one rank, one head

The worst group of all ranks is the tensor's error. Groups of fewer than ELEMENTS_MIN numbers are too small
for a norm to mean much (a first row's dq is exactly zero): half-blocks are joined into ranks, and those into
the world.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from ringmark.bench import exact, gather
from ringmark.comm.mesh import Mesh

ELEMENTS_MIN = 512
PARTS = 2  # half-blocks of a rank
NO_NUMBER = 1e4  # what nan or infinity counts in an error: far more than anything that is allowed
_STEP = 4096


@dataclass
class Answer:
    """What a method or a kernel gave on this rank: out, and the gradients where there was a backward."""

    out: torch.Tensor
    dq: torch.Tensor | None = None
    dk: torch.Tensor | None = None
    dv: torch.Tensor | None = None

    def rows(self, index: torch.Tensor) -> Answer:
        """The answer of some rows and keys, in another order."""
        if self.dq is None or self.dk is None or self.dv is None:
            return Answer(self.out[:, index])
        return Answer(self.out[:, index], self.dq[:, index], self.dk[:, index], self.dv[:, index])


@dataclass
class DenseRows:
    """Of an iteration with a dense dout: the sampled rows, and what is no number in any row of this rank."""

    out: torch.Tensor
    dq: torch.Tensor
    nonfinite: dict[str, int]


@dataclass
class Norms:
    """Squared norms (parts x heads) of one tensor on this rank; elements of a group; what is no number."""

    difference: torch.Tensor
    reference: torch.Tensor
    elements: int
    nonfinite: int = 0

    @classmethod
    def empty(cls, heads: int, elements: int) -> Norms:
        zeros = torch.zeros(PARTS, heads, dtype=torch.float64)
        return cls(zeros, zeros.clone(), elements)

    def add(self, part: int, answer: torch.Tensor, reference: torch.Tensor) -> None:
        """Count rows (B, R, H, D) of one part; elements that are no number count as zero here."""
        gap = (answer.to(reference.dtype) - reference).nan_to_num_(0.0, 0.0, 0.0)
        self.difference[part] += _squares(gap)
        self.reference[part] += _squares(reference)


@dataclass(frozen=True)
class Worst:
    """The worst group of a tensor over all ranks."""

    relative_error: float
    rank: int
    nonfinite: int


def halves(seqlen: int) -> list[slice]:
    """The two half-blocks of a rank's rows."""
    return [slice(0, seqlen // 2), slice(seqlen // 2, seqlen)]


def row_weights(visible: torch.Tensor) -> torch.Tensor:
    """What makes rows count alike: about the root of the number of keys that a row sees, a power of two.

    The out and dq of a row that averages over n keys are as small as 1 / sqrt(n). Unweighted, a first row
    that sees two keys (and whose dq is ill-conditioned) would hide a thousand later ones in a common norm.
    """
    return torch.exp2(torch.round(torch.log2(visible.to(torch.float64)) / 2))


def norms(
    answer: Answer,
    rows: exact.Rows,
    keys: exact.Keys,
    mine: slice,
    index: torch.Tensor,
    lse_shift: float = 0.0,
    dense: DenseRows | None = None,
) -> dict[str, Norms]:
    """Hold this rank's answer against the exact one.

    `mine` are this rank's rows among `rows`, `index` their local numbers, ascending. `lse_shift` is added to
    the lse of the backward, which scales its weights: the yardstick sees weights as small as the cell's.
    Rows of `dense` have the same exact out and dq, and count in the same norms.
    """
    parts = [(index >= half.start) & (index < half.stop) for half in halves(answer.out.shape[1])]
    out, lse = exact.forward(rows, keys)
    weights = row_weights(rows.visible)[mine, None, None]
    found = {"out": _of_rows(answer.out[:, index].to(out.dtype) * weights, out[:, mine] * weights, parts)}
    found["out"].nonfinite = count_nonfinite(answer.out)
    if dense is not None:
        _add_rows(found["out"], dense.out.to(out.dtype) * weights, out[:, mine] * weights, parts)
    if answer.dq is None or answer.dk is None or answer.dv is None:
        return found
    backward = exact.Backward(rows, keys, out, lse + lse_shift)
    heads, seqlen_k = answer.dk.shape[2], answer.dk.shape[1]
    elements = seqlen_k // PARTS * answer.dk.shape[3] * answer.dk.shape[0]
    dk, dv = Norms.empty(heads, elements), Norms.empty(heads, elements)
    for part, half in enumerate(halves(seqlen_k)):
        for chunk in exact.chunks(rows, keys, half):
            dk_exact, dv_exact = backward.gradients(chunk)
            dk.add(part, answer.dk[:, chunk], dk_exact)
            dv.add(part, answer.dv[:, chunk], dv_exact)
    dk.nonfinite, dv.nonfinite = count_nonfinite(answer.dk), count_nonfinite(answer.dv)
    dq_exact = backward.dq()[:, mine]
    dq = _of_rows(answer.dq[:, index], dq_exact, parts)
    dq.nonfinite = count_nonfinite(answer.dq)
    _add_stray(dq, answer.dq, index)
    found |= {"dq": dq, "dk": dk, "dv": dv}
    if dense is not None:
        _add_rows(dq, dense.dq, dq_exact, parts)
        for name, norm in found.items():
            norm.nonfinite += dense.nonfinite[name]
    return found


def worst(mesh: Mesh, found: dict[str, Norms]) -> dict[str, Worst]:
    """The worst group of each tensor over all ranks, known to all ranks."""
    flat: list[float] = []
    for norm in found.values():
        flat += [*norm.difference.flatten().tolist(), *norm.reference.flatten().tolist(), norm.nonfinite]
    gathered = torch.tensor(gather.rows(mesh, flat), dtype=torch.float64)
    results, start = {}, 0
    for name, norm in found.items():
        size, heads = norm.difference.numel(), norm.difference.shape[1]
        difference = gathered[:, start : start + size].view(-1, PARTS, heads)
        reference = gathered[:, start + size : start + 2 * size].view(-1, PARTS, heads)
        nonfinite = int(gathered[:, start + 2 * size].sum())
        start += 2 * size + 1
        error, rank = _worst_group(difference, reference, norm.elements)
        results[name] = Worst(error, rank, nonfinite)
    return results


def _worst_group(difference: torch.Tensor, reference: torch.Tensor, elements: int) -> tuple[float, int]:
    """(error, rank) of squared norms (ranks, parts, heads); small groups are joined first."""
    by_rank = difference.sum((1, 2))
    if elements < ELEMENTS_MIN:
        difference, reference = (t.sum(1, keepdim=True) for t in (difference, reference))
    if elements * PARTS < ELEMENTS_MIN:
        difference, reference = (t.sum(0, keepdim=True) for t in (difference, reference))
    ratio = difference / reference.clamp_min(1e-60)
    place = int(ratio.flatten().argmax())
    group = place // (ratio.shape[1] * ratio.shape[2])
    rank = group if ratio.shape[0] == by_rank.numel() else int(by_rank.argmax())
    return math.sqrt(float(ratio.flatten()[place])), rank


def _of_rows(answer: torch.Tensor, reference: torch.Tensor, parts: list[torch.Tensor]) -> Norms:
    rows = min(int(part.sum()) for part in parts)
    found = Norms.empty(reference.shape[2], rows * reference.shape[3] * reference.shape[0])
    _add_rows(found, answer, reference, parts)
    return found


def _add_rows(found: Norms, answer: torch.Tensor, reference: torch.Tensor, parts: list[torch.Tensor]) -> None:
    for number, chosen in enumerate(parts):
        found.add(number, answer[:, chosen], reference[:, chosen])


def _add_stray(dq: Norms, answer: torch.Tensor, index: torch.Tensor) -> None:
    """Rows whose dout is zero have a dq of exactly zero: what stands there is error. Clears `index` rows."""
    answer[:, index] = 0
    for part, half in enumerate(halves(answer.shape[1])):
        for start in range(half.start, half.stop, _STEP):
            rows = answer[:, start : min(start + _STEP, half.stop)]
            dq.difference[part] += _squares(rows.float().nan_to_num_(0.0, 0.0, 0.0))


def _squares(tensor: torch.Tensor) -> torch.Tensor:
    """Sum of squares per head of (B, R, H, D), in float64 on the host."""
    norms: torch.Tensor = torch.linalg.vector_norm(tensor, dim=(0, 1, 3), dtype=torch.float64)
    return norms.square().cpu()


def count_nonfinite(tensor: torch.Tensor) -> int:
    """How many elements are nan or infinite, without a mask as large as the tensor."""
    steps = range(0, tensor.shape[1], _STEP)
    counts = [(~torch.isfinite(tensor[:, start : start + _STEP])).sum() for start in steps]
    return int(torch.stack(counts).sum()) if counts else 0
