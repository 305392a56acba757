"""Folding partial results: exact for any split of the keys, in place, on views, and with no overflow."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import exact
from ringmark.kernels import merge
from ringmark.kernels.reference import KERNEL as REFERENCE

INF = float("inf")


def relative(found, want):
    """Norm of the difference over norm of what is right; nan counts as infinitely wrong."""
    error = float((found.double() - want).norm() / want.norm())
    return error if error == error else float("inf")


def split_and_fold(problem, cuts, dtype=torch.float32, into=False):
    """Attention over the keys piece by piece, folded; (out, lse)."""
    q, k, v = (t.to(dtype) for t in (problem.q, problem.k, problem.v))
    out, lse = merge.accumulators(q)
    final = torch.empty_like(q)
    bounds = [0, *cuts, k.shape[1]]
    for a, b in pairwise(bounds):
        part = REFERENCE.forward(q, k[:, a:b], v[:, a:b], problem.scale, False)
        last = into and b == k.shape[1]
        merge.fold_(out, lse, *part, into=final if last else None)
    return (final if into else out), lse


@given(
    cuts=st.lists(st.integers(1, 39), unique=True, max_size=6).map(sorted),
    seed=st.integers(0, 100),
    into=st.booleans(),
)
def test_any_split_of_the_keys_gives_the_whole(cuts, seed, into):
    problem = exact.make(40, heads=(2, 2), head_dim=8, causal=False, seed=seed)
    out, lse = split_and_fold(problem, cuts, into=into)
    whole = REFERENCE.forward(
        problem.q.double(), problem.k.double(), problem.v.double(), problem.scale, False
    )
    assert relative(out, problem.exact["out"]) < 1e-6
    assert relative(lse, whole[1]) < 1e-6


def test_float64_stays_float64():
    problem = exact.make(40, heads=(2, 2), head_dim=8, causal=False)
    out, lse = split_and_fold(problem, [7, 20], torch.float64)
    assert out.dtype == lse.dtype == torch.float64
    assert relative(out, problem.exact["out"]) < 1e-14


def test_many_folds_do_not_lose_accuracy():
    """32 half-precision parts into a float32 sum: no worse than one part's own rounding."""
    problem = exact.make(64, heads=(2, 2), head_dim=8, causal=False)
    few, _ = split_and_fold(problem, [32], torch.bfloat16)
    many, _ = split_and_fold(problem, list(range(2, 64, 2)), torch.bfloat16)
    errors = [relative(out, problem.exact["out"]) for out in (few, many)]
    assert errors[1] < 1.1 * errors[0] < 5e-3


@pytest.mark.parametrize(
    ("lse_acc", "lse_new", "share"),
    [
        (0.0, 0.0, 0.5),
        (0.0, 1e4, 1.0),
        (1e4, 0.0, 0.0),
        (1e4, -1e4, 0.0),
        (-1e4, 1e4, 1.0),
        (88.0, -89.0, 0.0),
        (-89.0, 88.0, 1.0),
        (1e4, 1e4 + 1.0, 1 / (1 + math.exp(-1.0))),
        (-INF, 3.0, 1.0),
        (-INF, -1e4, 1.0),
        (3.0, -INF, 0.0),
        (-INF, -INF, 0.0),
    ],
)
def test_no_gap_overflows_and_empty_rows_weigh_nothing(lse_acc, lse_new, share):
    """exp(gap) is infinite beyond 88; a row that saw no key has lse -inf and may hold anything."""
    out_acc = torch.full((1, 1, 1, 4), 2.0 if lse_acc > -INF else 0.0)
    part = torch.full((1, 1, 1, 4), 6.0 if lse_new > -INF else float("nan"))
    acc_lse = torch.tensor([[[lse_acc]]])
    before = out_acc.clone()
    merge.fold_(out_acc, acc_lse, part, torch.tensor([[[lse_new]]]))
    want = before + share * (part.nan_to_num(0.0) - before)
    torch.testing.assert_close(out_acc, want)
    top = max(lse_acc, lse_new)
    total = top if top == -INF else top + math.log1p(math.exp(-abs(lse_acc - lse_new)))
    assert acc_lse.item() == pytest.approx(total, rel=1e-6)


def test_a_fold_touches_its_rows_alone():
    """Accumulators, parts and targets may be views: rows and heads of larger tensors."""
    torch.manual_seed(0)
    out_acc, lse_acc = torch.randn(2, 20, 6, 8), torch.randn(2, 6, 20)
    part, lse = torch.randn(2, 9, 6, 8)[:, 1:6, 2:4], torch.randn(2, 6, 9)[:, 2:4, 1:6]
    rows, heads = slice(10, 15), slice(3, 5)
    want_out, want_lse = out_acc.clone(), lse_acc.clone()
    share = torch.sigmoid(lse - lse_acc[:, heads, rows]).transpose(1, 2)[..., None]
    want_out[:, rows, heads] = out_acc[:, rows, heads] * (1 - share) + part * share
    want_lse[:, heads, rows] = torch.logaddexp(lse_acc[:, heads, rows], lse)
    final, kept = torch.zeros(2, 20, 6, 8, dtype=torch.bfloat16), (out_acc.clone(), lse_acc.clone())
    merge.fold_(out_acc[:, rows, heads], lse_acc[:, heads, rows], part, lse)
    torch.testing.assert_close(out_acc, want_out)
    torch.testing.assert_close(lse_acc, want_lse)
    merge.fold_(kept[0][:, rows, heads], kept[1][:, heads, rows], part, lse, into=final[:, rows, heads])
    torch.testing.assert_close(final[:, rows, heads], want_out[:, rows, heads].bfloat16())
    assert final.count_nonzero() == final[:, rows, heads].numel()
    torch.testing.assert_close(kept[1], want_lse)
    assert torch.equal(kept[0][:, :10], out_acc[:, :10])


def test_no_rows_are_no_work():
    out_acc, lse_acc = torch.randn(1, 4, 2, 8), torch.randn(1, 2, 4)
    kept, none = out_acc.clone(), slice(0, 0)
    merge.fold_(out_acc[:, none], lse_acc[:, :, none], torch.empty(1, 0, 2, 8), torch.empty(1, 2, 0))
    merge.add_(out_acc[:, none], torch.empty(1, 0, 2, 8))
    assert torch.equal(out_acc, kept)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_gradients_are_added_in_float32(dtype):
    """1024 times a half-precision 1/3 is 1024/3 of its rounded value, to float32 accuracy."""
    acc = torch.zeros(1, 2, 1, 4)
    part = torch.full((1, 2, 1, 4), 1 / 3, dtype=dtype)
    for _ in range(1024):
        merge.add_(acc, part)
    torch.testing.assert_close(acc, part.float() * 1024, rtol=1e-5, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_two_halves_are_one_exact_float32(dtype):
    """The first sum of two parts as the kernel returned them: not rounded to their dtype on the way."""
    acc, part = torch.ones(1, 2, 1, 4, dtype=dtype), torch.full((1, 2, 1, 4), 2.0**-12, dtype=dtype)
    total, rounded = torch.empty(1, 2, 1, 4), torch.empty(1, 2, 1, 4, dtype=dtype)
    merge.add_(acc, part, into=total)
    assert (total == 1 + 2.0**-12).all()
    merge.add_(total, part, into=rounded)
    assert torch.equal(rounded, (total + part).to(dtype))
    assert (acc == 1).all(), "what goes elsewhere leaves the accumulator alone"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_several_parts_are_summed_before_they_are_rounded(dtype):
    acc = torch.full((1, 6, 2, 8), 1.0).to(dtype)
    tiny = torch.full((1, 4, 2, 8), 2.0**-9).to(dtype)
    parts = [(tiny, slice(0, 4)), (tiny, slice(2, 6)), (tiny, slice(1, 5)), (tiny, slice(2, 6))]
    into = torch.zeros(1, 6, 4, 8, dtype=dtype)
    merge.sum_(acc, parts, into[:, :, 1:3])
    by_row = [1, 2, 4, 4, 3, 2]  # how many parts cover it
    want = (1 + torch.tensor(by_row, dtype=torch.float64) / 512).to(dtype)
    assert torch.equal(into[0, :, 1, 0], want)
    assert torch.equal(into[0, :, 2, 7], want)
    assert not into[:, :, [0, 3]].any()
    assert bool((acc == 1).all()), "what has been held is left alone"
    total = acc.to(merge.wide(dtype))
    merge.sum_(total, parts, total)
    assert torch.equal(total[0, :, 0, 0], 1 + torch.tensor(by_row).to(total.dtype) / 512)


def test_the_first_fold_reads_a_part_and_writes_a_float32_sum():
    torch.manual_seed(0)
    own, part = torch.randn(2, 1, 6, 2, 8).bfloat16()
    lse_own, lse = torch.randn(2, 1, 2, 6)
    share = torch.sigmoid(lse - lse_own).transpose(1, 2)[..., None]
    sums, kept = torch.empty(1, 6, 2, 8), own.clone()
    merge.fold_(own, lse_own, part, lse, into=sums)
    torch.testing.assert_close(sums, own.float() * (1 - share) + part.float() * share)
    assert torch.equal(own, kept)
