"""The Triton kernels against plain torch, and methods through them: on a GPU, else in Triton's interpreter.

The interpreter runs program after program, so it shows wrong numbers and no race; for those there is
tests/gpu/test_kernels.py.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from unittest import mock

import pytest

torch = pytest.importorskip("torch")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu":
    os.environ["TRITON_INTERPRET"] = "1"  # Triton reads it when a kernel is defined
pytest.importorskip("triton")

import exact  # noqa: E402
from ringmark import kernels, methods  # noqa: E402
from ringmark.bench import timeline  # noqa: E402
from ringmark.kernels import _triton, merge  # noqa: E402
from world import run_world  # noqa: E402

# A row without keys is -inf on both sides: the interpreter's numpy says so, and the fold does not ask.
pytestmark = pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")
HALF = (torch.bfloat16, torch.float16)
INF, ALL = float("inf"), slice(None)


def same(found, want):
    """Bit for bit; the interpreter cuts bf16 off where a GPU rounds it, so there it is one unit apart."""
    slack = 2**-7 if DEVICE.type == "cpu" and found.dtype == torch.bfloat16 else 0.0
    torch.testing.assert_close(found, want, rtol=slack, atol=0.0)


def randn(*shape, dtype=torch.float32):
    return torch.randn(*shape, device=DEVICE).to(dtype)


@pytest.mark.parametrize("head_dim", [64, 80, 128])
@pytest.mark.parametrize("rows", [slice(None), slice(37, 80), slice(0, 77)])
def test_the_fold_is_the_plain_fold(rows, head_dim):
    """On whole tensors and on row ranges, with rows that have seen no key on either side."""
    torch.manual_seed(1)
    acc, lse_acc = randn(2, 80, 2, head_dim), randn(2, 2, 80) * 3
    out = randn(2, 80, 2, head_dim, dtype=torch.bfloat16)[:, rows]
    lse = (randn(2, 2, 80) * 3)[:, :, rows]
    lse_acc[:, :, 10:20], lse[:, :, 15:25] = -INF, -INF
    acc[:, 10:20], out[:, 15:25] = 0, float("nan")
    lse_acc[:, :, 30], lse[:, :, 30] = 1e4, -1e4
    lse_acc[:, :, 31], lse[:, :, 31] = -1e4, 1e4
    want, want_lse = acc.clone(), lse_acc.clone()
    merge.fold_plain_(want[:, rows], want_lse[:, :, rows], out, lse)

    into, kept, found_lse = torch.empty_like(acc).bfloat16(), acc.clone(), lse_acc.clone()
    _triton.fold_on_gpu(kept, found_lse, out, lse, rows, into)
    torch.testing.assert_close(into, want.bfloat16(), rtol=1e-2, atol=1e-2)
    torch.testing.assert_close(found_lse, want_lse, rtol=1e-6, atol=1e-6)
    assert torch.equal(kept, acc), "a last fold leaves the accumulator alone"

    found, found_lse = acc.clone(), lse_acc.clone()
    _triton.fold_on_gpu(found[:, rows], found_lse[:, :, rows], out, lse, ALL, found[:, rows])
    torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(found_lse, want_lse, rtol=1e-6, atol=1e-6)


def test_the_first_fold_reads_a_part_in_half_precision():
    torch.manual_seed(2)
    own, part = (randn(1, 80, 2, 128, dtype=torch.bfloat16) for _ in range(2))
    lse_own, lse = randn(1, 2, 80), randn(1, 2, 80)
    kept, found, want = own.clone(), torch.empty_like(own.float()), torch.empty_like(own.float())
    lse_plain = lse_own.clone()
    merge.fold_plain_(own, lse_plain, part, lse, into=want)
    _triton.fold_on_gpu(own, lse_own, part, lse, ALL, found)
    torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(lse_own, lse_plain, rtol=1e-6, atol=1e-6)
    assert torch.equal(own, kept)


def test_a_fold_of_scattered_elements_is_refused():
    across = randn(1, 8, 8, 2).transpose(2, 3)
    with pytest.raises(ValueError, match="do not lie side by side"):
        _triton.fold_on_gpu(across, randn(1, 2, 8), across, randn(1, 2, 8), ALL, across)
    assert not _triton.takes(across)
    assert not _triton.takes(across.transpose(2, 3).double())


@pytest.mark.parametrize("dtype", [*HALF, torch.float32])
def test_one_part_is_torchs_addition(dtype):
    """In place, in row ranges and heads of a larger tensor; acc beyond them is left alone."""
    torch.manual_seed(3)
    for rows, heads in ((slice(None), slice(None)), (slice(40, 77), slice(1, 3))):
        acc, part = randn(2, 90, 4, 80), randn(2, 90, 4, 80, dtype=dtype)[:, rows, heads]
        want = acc.clone()
        want[:, rows, heads] += part
        here = acc[:, rows, heads]
        _triton.sum_on_gpu(here, [(part, slice(None))], here)
        assert torch.equal(acc, want)
        own, total, rounded = here.to(dtype), torch.empty_like(here), torch.empty_like(part)
        _triton.sum_on_gpu(own, [(part, slice(None))], total)
        assert torch.equal(total, own.float() + part.float())
        _triton.sum_on_gpu(total, [(part, slice(None))], rounded)
        same(rounded, (total + part.float()).to(dtype))


@pytest.mark.parametrize("count", [1, 3, 4, 5, 9])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_sum_of_several_parts_is_float64s(count, dtype):
    """Parts of some rows each, into a view of some heads: summed in float32 and rounded once."""
    torch.manual_seed(4)
    acc = randn(1, 120, 2, 72, dtype=dtype)
    rows = [slice(at * 3, 120 - at * 11) for at in range(count)]
    parts = [(randn(1, 120, 2, 72, dtype=torch.bfloat16)[:, some], some) for some in rows]
    want = acc.double()
    for part, some in parts:
        want[:, some] += part.double()
    whole = torch.zeros(1, 120, 4, 72, device=DEVICE, dtype=torch.bfloat16)
    _triton.sum_on_gpu(acc, parts, whole[:, :, 1:3])
    before, sums = acc.clone(), torch.empty(acc.shape, device=DEVICE)
    _triton.sum_on_gpu(acc, parts, sums)
    assert torch.equal(acc, before), "what has been held is left alone"
    torch.testing.assert_close(sums, want.float(), rtol=1e-6, atol=1e-5)
    same(whole[:, :, 1:3], sums.bfloat16())
    assert not whole[:, :, :1].any()
    assert not whole[:, :, 3:].any()


def test_no_part_is_torchs_copy():
    torch.manual_seed(5)
    for dtype in (*HALF, torch.float32):
        source = randn(2, 90, 4, 72)[:, 11:80, 2:4].to(dtype)
        for other in (*HALF, torch.float32):
            found = torch.zeros(2, 90, 4, 72, device=DEVICE, dtype=other)
            want = found.clone()
            _triton.sum_on_gpu(source, [], found[:, 5:74, :2])
            want[:, 5:74, :2].copy_(source)
            same(found, want)


def test_delta_is_float64s():
    """Strided views, a head size that is no power of two, and rows beyond one block."""
    torch.manual_seed(6)
    out, dout = (randn(2, 100, 6, 96, dtype=torch.bfloat16) for _ in range(2))
    for some in ((slice(None), slice(None)), (slice(None), slice(50, None), slice(None, None, 2))):
        exact = (out[some].double() * dout[some].double()).sum(-1).transpose(1, 2)
        found = _triton.row_dot_on_gpu(dout[some], out[some])
        assert found.dtype == torch.float32
        torch.testing.assert_close(found.double(), exact, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("kernel", "kind"),
    [(_triton._fold, "merge"), (_triton._sum, "merge"), (_triton._row_dot, "attention")],
)
def test_a_profile_knows_them_by_their_names(kernel, kind):
    assert timeline.kind_of(kernel.fn.__name__) == kind


METHODS: list[tuple[str, dict[str, object]]] = [
    ("burst", {"side": "q"}),
    ("burst", {"side": "kv", "abreast": 2, "head_groups": 2}),
    ("burst", {"side": "q", "layout": "striped", "hops": "ring", "head_groups": 2, "tracks": 2}),
    ("zigzag", {"wire": "native"}),
    ("stripe", {}),
    ("ring", {"hops": "straight"}),
]


def through_the_kernels(mesh, problem):
    """The errors of each method with every sum, fold and copy by Triton, and how many there were."""
    found = {}
    launch = _triton._launch
    for name, options in METHODS:
        method = methods.load(name)(**options)
        with (
            mock.patch.object(merge, "by_triton", lambda tensor: tensor.dtype != torch.float64),
            mock.patch.object(_triton, "_launch", side_effect=launch) as launched,
        ):
            results = exact.run(method, mesh, kernels.load("reference"), problem)
        found[f"{name} {options}"] = exact.errors(results, method.layout, mesh, problem), launched.call_count
    return found


@pytest.mark.skipif(DEVICE.type == "cuda", reason="tests/gpu/test_methods.py does it on GPUs")
@pytest.mark.parametrize("nodes", [1, 2])
def test_methods_are_exact_through_the_kernels(nodes):
    for found in run_world(4, through_the_kernels, exact.make(32, heads=(2, 2)), nodes=nodes):
        for row, (errors, launches) in found.items():
            assert max(errors.values()) <= 1e-5, f"{row}: {errors}"
            assert launches, row


def test_they_compile_for_a_gpu_and_the_fold_has_its_barrier(tmp_path):
    """Rows of lse are read by several warps and written by one: without a barrier some saw the new value."""
    env = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    script = Path(__file__).parent / "compile_triton.py"
    ended = subprocess.run(
        [sys.executable, "-W", "ignore", str(script)],
        env={**env, "TRITON_CACHE_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == 0, ended.stderr[-3000:]
    made = [json.loads(line) for line in ended.stdout.splitlines()]
    assert len(made) == 8
    assert all(one["bytes"] for one in made)
    assert [one["barriers"] > 0 for one in made if one["kernel"] == "_fold"] == [True, True]
