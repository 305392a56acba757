"""No time without a correct answer: the method's own forward and backward at the measured size, first.

    sampled query rows    ROWS_PER_PART in each half-block of every rank (all rows of a short sequence)
    dout                  zero but for the sampled rows: dk and dv are then exact for every key (exact.py)
    error                 norm(difference) / norm(exact), per half-block and head; the worst one counts
    allowed               2 x the kernel's own error on one device, not below what the dtype resolves

A bug that touches one half-block of one rank stays whole in its own norm: nothing dilutes it. An element that
is nan or infinite is never right.
"""

from __future__ import annotations

import contextlib
import random
import time
from collections.abc import Iterator
from itertools import pairwise

import torch
import torch.distributed as dist

from ringmark.bench import balance, compare, exact, gather, prints, uniform, yardstick
from ringmark.bench.problem import Problem
from ringmark.cell import Cell
from ringmark.comm.mesh import Mesh
from ringmark.errors import shown
from ringmark.kernels.base import Kernel
from ringmark.methods.base import Method
from ringmark.record import Check, TensorError
from ringmark.tolerance import EVERY_ROW_UP_TO, ROWS_PER_PART, allowed

FLOAT64_UP_TO = 1 << 33  # rows x keys x width: a reference this small is float64 for every dtype


class NoAnswerError(RuntimeError):
    """A method gave something that is no attention output of its rows."""


class InputsChangedError(RuntimeError):
    """A method wrote into its inputs: what it is given next is no longer the cell's data."""


def check(
    cell: Cell, method: Method, kernel: Kernel, problem: Problem, mesh: Mesh, *, again: bool = False
) -> Check:
    """Run the method once and hold its answer against exact attention; all ranks get the same verdict.

    `again`: after a timing a backward is run with a dense dout as well (balance.py), and a forward in which
    all keys weigh alike (uniform.py); q is zero when this returns.
    """
    started = time.perf_counter()
    scale = cell.shape.head_dim**-0.5  # the cell's, whatever the method took
    index = _sample(problem.q.shape[1], mesh, problem.numbers).to(mesh.device)
    group = None if problem.private else mesh.group("flat", "bench").process_group
    count = index.numel() * (1 if group is None else mesh.world_size)
    wide = _reference_dtype(cell, count, problem)
    dense = balance.iterate(method, problem, mesh, index) if again and problem.dout is not None else None

    rows = _gathered_rows(problem, index, wide, scale, group)
    keys = exact.Keys(problem.k, problem.v, problem.positions_k)
    if cell.seqlen_global <= EVERY_ROW_UP_TO and not problem.private:
        kernel_errors = yardstick.on_whole(kernel, rows, keys, problem.q.dtype, mesh)
    else:
        near = _sample(yardstick.prefix(problem), mesh, problem.numbers).to(mesh.device)
        kernel_errors = yardstick.on_prefix(kernel, problem, near, wide, scale, mesh)
    answer = _answer(cell, method, problem, index)
    first = 0 if group is None else mesh.rank * index.numel()
    mine = slice(first, first + index.numel())
    found = compare.norms(answer, rows, keys, mine, index, dense=dense.rows if dense else None)
    method_errors = compare.worst(mesh, found)
    problem.clear_grads()
    problem.restore_dout()
    gather.synchronize(mesh)
    errors = _graded(method_errors, kernel_errors, cell, problem, index.numel(), mesh)
    balances = balance.graded(dense.gaps, errors) if dense else {}
    alike = None
    if again:
        del answer, dense, rows, keys, found  # their memory is the next forward's
        alike = uniform.graded(
            _where_keys_weigh_alike(cell, method, problem), problem, cell.shape.dtype, mesh
        )
    check_ms = max(row[0] for row in gather.rows(mesh, [(time.perf_counter() - started) * 1e3]))
    reference = "float64" if wide is torch.float64 else "float32"
    return Check(errors, reference, check_ms, balances, alike)


def _graded(
    found: dict[str, compare.Worst],
    own: dict[str, compare.Worst],
    cell: Cell,
    problem: Problem,
    rows_checked: int,
    mesh: Mesh,
) -> dict[str, TensorError]:
    """What was found of each tensor beside what is allowed."""
    errors = {}
    for name, error in found.items():
        by_rows = name in ("out", "dq")
        rows_total = (problem.q if by_rows else problem.k).shape[1] * mesh.world_size
        kernel_error = own[name].relative_error
        errors[name] = TensorError(
            relative_error=error.relative_error,
            kernel_relative_error=kernel_error,
            allowed=allowed(kernel_error, cell.shape.dtype, rows_total),
            rows_checked=rows_checked * mesh.world_size if by_rows else rows_total,
            rows_total=rows_total,
            worst_rank=error.rank,
            nonfinite=error.nonfinite,
        )
    return errors


def _sample(seqlen: int, mesh: Mesh, numbers: str) -> torch.Tensor:
    """Local numbers of the rows to check, ascending: of each half-block the first, the last, and some more.

    These are drawn one from each of as many equal stretches, so that no long run of rows is passed over.
    """
    chosen: list[int] = []
    for part, half in enumerate(compare.halves(seqlen)):
        among = range(half.start, half.stop)
        if seqlen * mesh.world_size <= EVERY_ROW_UP_TO or len(among) <= ROWS_PER_PART:
            chosen += among
            continue
        draw, inner, count = random.Random(f"{numbers}/{mesh.rank}/{part}"), among[1:-1], ROWS_PER_PART - 2
        cuts = [len(inner) * number // count for number in range(count + 1)]
        chosen += [among[0], *(draw.choice(inner[a:b]) for a, b in pairwise(cuts)), among[-1]]
    return torch.tensor(chosen, dtype=torch.int64)


def _reference_dtype(cell: Cell, count: int, problem: Problem) -> torch.dtype:
    """float64 for wide cells and where it is cheap; float32 products are 10^4 finer than 16 bits resolve."""
    work = count * problem.k.shape[1] * cell.shape.batch * cell.shape.num_heads_q * cell.shape.head_dim
    if cell.shape.dtype in ("fp64", "fp32") or work <= FLOAT64_UP_TO:
        return torch.float64
    return torch.float32


def _gathered_rows(
    problem: Problem,
    index: torch.Tensor,
    wide: torch.dtype,
    scale: float,
    group: dist.ProcessGroup | None,
) -> exact.Rows:
    """Every rank's sampled rows, on every rank that shares its keys with them."""
    q = problem.q.detach()[:, index].to(wide)
    dout = None
    if problem.dout is not None:
        dout = exact.everywhere(_sampled_dout(problem, index).to(wide), 1, group)
    positions, visible = (
        exact.everywhere(tensor, 0, group) for tensor in (problem.positions_q[index], problem.visible[index])
    )
    return exact.Rows(exact.everywhere(q, 1, group), dout, positions, visible, problem.causal, scale, group)


def _sampled_dout(problem: Problem, index: torch.Tensor) -> torch.Tensor:
    """The rows of dout that are not zero in the check, weighted (exactly: by powers of two)."""
    assert problem.dout is not None
    weights = compare.row_weights(problem.visible[index])
    return problem.dout[:, index] * weights.to(problem.dout.dtype)[:, None, None]


def _answer(cell: Cell, method: Method, problem: Problem, index: torch.Tensor) -> compare.Answer:
    """The method's own forward, and its backward from a dout that is zero but for the sampled rows.

    The cell's dout lends its memory, so that a check needs no more than an iteration does.
    """
    problem.clear_grads()
    if problem.dout is not None:
        kept = _sampled_dout(problem, index)
        problem.dout.zero_()
        problem.dout[:, index] = kept
    with untouched(cell, problem):
        out = _forward(cell, method, problem)
        if problem.dout is None:
            return compare.Answer(out.detach())
        torch.autograd.backward(out, problem.dout)
    return compare.Answer(out.detach(), *problem.gradients)


def _where_keys_weigh_alike(cell: Cell, method: Method, problem: Problem) -> torch.Tensor:
    """The method's own forward with q = 0."""
    problem.q.detach().zero_()
    with untouched(cell, problem):
        return _forward(cell, method, problem).detach()


def _forward(cell: Cell, method: Method, problem: Problem) -> torch.Tensor:
    """The method's own forward; what it gives has the shape and dtype of q, or is no answer at all."""
    out, q = method.forward(problem.q, problem.k, problem.v), problem.q
    if not isinstance(out, torch.Tensor):
        raise NoAnswerError(f"{cell.method} gave {shown(out)} as its output: return a tensor like q")
    if (out.shape, out.dtype) != (q.shape, q.dtype):
        raise NoAnswerError(
            f"{cell.method} gave an output of shape {tuple(out.shape)} in {out.dtype}: "
            f"its q has {tuple(q.shape)} in {q.dtype}, and so must its output"
        )
    if problem.dout is not None and not out.requires_grad:
        raise NoAnswerError(
            f"{cell.method} gave an output that has no gradient: its forward must not detach it, "
            "nor compute it under no_grad"
        )
    return out


@contextlib.contextmanager
def untouched(cell: Cell, problem: Problem) -> Iterator[None]:
    """Whatever runs in here leaves the inputs as they are, or the cell ends."""
    before = prints.of(problem.inputs)
    yield
    names = ("q", "k", "v", "dout")
    changed = [name for name, a, b in zip(names, before, prints.of(problem.inputs)) if a != b]
    if changed:
        raise InputsChangedError(
            f"{cell.method} wrote into its input {', '.join(changed)}: inputs must stay as they are"
        )
