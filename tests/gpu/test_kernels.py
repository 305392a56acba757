"""Every kernel that this GPU host has, against float64, and merging on it against merging on the CPU.

    python -m pytest tests/gpu/test_kernels.py
    RINGMARK_REPORT=folder ...     also writes folder/kernels.json: errors, and TFLOP/s at 40 heads, 16384

A kernel that is not here is skipped with its reason.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")

from ringmark import flops  # noqa: E402
from ringmark.cell import Shape  # noqa: E402
from ringmark.errors import UserError  # noqa: E402
from ringmark.kernels import availability, load, merge, names, select  # noqa: E402
from ringmark.kernels.reference import KERNEL as REFERENCE  # noqa: E402
from ringmark.methods.base import row_dot  # noqa: E402

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device"),
]
CUDA = torch.device("cuda")
REPORT: dict = {"errors": {}, "tflops": {}, "versions": {}, "unavailable": {}}
# (batch, seqlen_q, seqlen_k, num_heads_q, num_heads_kv, causal)
PROBLEMS = {
    "causal": (2, 1024, 1024, 4, 4, True),
    "full": (2, 1024, 1024, 4, 4, False),
    "causal_gqa": (1, 768, 768, 8, 2, True),
    "full_mqa": (1, 640, 640, 4, 1, False),
    "wide": (1, 512, 1024, 4, 4, False),
    "tall": (1, 1024, 512, 4, 2, False),
    "odd_causal": (1, 1000, 1000, 4, 4, True),
    "odd_full": (2, 333, 447, 4, 2, False),
}
FEW = ("causal", "odd_full")


@pytest.fixture(scope="module", autouse=True)
def _report():
    yield
    REPORT["device"] = torch.cuda.get_device_name()
    REPORT["torch"] = torch.__version__
    if "RINGMARK_REPORT" in os.environ:
        folder = Path(os.environ["RINGMARK_REPORT"])
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "kernels.json").write_text(json.dumps(REPORT, indent=1))


def _kernel(name: str, head_dim: int, dtype: str):
    reason = availability()[name] or load(name).unfit(Shape(head_dim=head_dim, dtype=dtype), CUDA)
    if reason:
        REPORT["unavailable"][f"{name} d{head_dim} {dtype}"] = reason
        pytest.skip(reason)
    REPORT["versions"][name] = load(name).version()
    return load(name)


def _inputs(problem, head_dim, dtype, seed=0):
    batch, seqlen_q, seqlen_k, heads_q, heads_kv, causal = problem
    torch.manual_seed(seed)
    shapes = [(seqlen_q, heads_q), (seqlen_k, heads_kv), (seqlen_k, heads_kv), (seqlen_q, heads_q)]
    made = [torch.randn(batch, s, h, head_dim, device=CUDA).to(dtype) for s, h in shapes]
    return (*made, head_dim**-0.5, causal)


def _exact(q, k, v, dout, scale, causal):
    """out, lse, dq, dk, dv in float64, by autograd over the whole matrix."""
    q, k, v = (t.double().requires_grad_() for t in (q, k, v))
    group = q.shape[2] // k.shape[2]
    keys, values = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, keys) * scale
    if causal:
        above = torch.ones(scores.shape[-2:], dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(above, float("-inf"))
    out = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), values)
    return out.detach(), scores.logsumexp(-1).detach(), *torch.autograd.grad(out, (q, k, v), dout.double())


def _errors(got, want):
    return [((g.double() - w).norm() / w.norm()).item() for g, w in zip(got, want)]


def _run(kernel, q, k, v, dout, scale, causal, with_out=True):
    out, lse = kernel.forward(q, k, v, scale, causal)
    delta = row_dot(dout, out)
    grads = kernel.backward(dout, q, k, v, lse, delta, scale, causal, out=out if with_out else None)
    return out, lse, *grads


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("name", names())
def test_every_kernel_matches_float64(name, head_dim, dtype):
    """Within the rounding of the dtype, for every mask, grouping and odd length; strided inputs too."""
    kernel = _kernel(name, head_dim, dtype)
    kind = {"bf16": torch.bfloat16, "fp16": torch.float16}[dtype]
    limit = {"bf16": 8e-3, "fp16": 1.2e-3}[dtype]
    # Some kernels compile for seconds for each kind of problem: all kinds for the headline, some beside it.
    chosen = PROBLEMS if (head_dim, dtype) == (128, "bf16") else {key: PROBLEMS[key] for key in FEW}
    for label, problem in chosen.items():
        q, k, v, dout, scale, causal = _inputs(problem, head_dim, kind)
        want = _exact(q, k, v, dout, scale, causal)
        got = _run(kernel, q, k, v, dout, scale, causal)
        errors = dict(zip(("out", "lse", "dq", "dk", "dv"), _errors(got, want)))
        REPORT["errors"][f"{name} d{head_dim} {dtype} {label}"] = errors
        assert max(errors.values()) < limit, f"{label}: {errors}"
        assert [t.dtype for t in got] == [kind, torch.float32, kind, kind, kind]
        assert all(t.is_contiguous() for t in got), [t.stride() for t in got]
        assert got[1].shape == (q.shape[0], q.shape[2], q.shape[1])
        # A half of the rows, as the zigzag ring hands it over: q, dout, lse and delta are strided views.
        if not causal:
            half = slice(q.shape[1] // 2, None)
            views = [t[:, half] for t in (dout, q)]
            out, lse = kernel.forward(views[1], k, v, scale, False)
            grads = kernel.backward(
                views[0], views[1], k, v, got[1][:, :, half], row_dot(dout, got[0])[:, :, half], scale,
                False, out=got[0][:, half],
            )  # fmt: skip
            part = [want[0][:, half], want[1][:, :, half], want[2][:, half]]
            errors = _errors([out, lse, grads[0]], part)
            assert max(errors) < limit, f"{label}, second half of the rows: {errors}"


@pytest.mark.parametrize("name", names())
def test_delta_is_as_good_as_out(name):
    """A kernel that says it needs no out gives the same accuracy with out = None; others refuse."""
    kernel = _kernel(name, 128, "bf16")
    q, k, v, dout, scale, causal = _inputs((1, 1000, 1000, 8, 2, True), 128, torch.bfloat16)
    if kernel.needs_out:
        with pytest.raises(ValueError, match="needs out"):
            _run(kernel, q, k, v, dout, scale, causal, with_out=False)
        return
    want = _exact(q, k, v, dout, scale, causal)[2:]
    with_out = _errors(_run(kernel, q, k, v, dout, scale, causal)[2:], want)
    without = _errors(_run(kernel, q, k, v, dout, scale, causal, with_out=False)[2:], want)
    REPORT["errors"][f"{name} delta alone"] = dict(zip(("dq", "dk", "dv"), without))
    for one, other in zip(without, with_out):
        assert one < 8e-3
        assert one <= 1.1 * other
    # delta is really what is used: twice the delta is another gradient.
    out, lse = kernel.forward(q, k, v, scale, causal)
    doubled = kernel.backward(dout, q, k, v, lse, 2 * row_dot(dout, out), scale, causal)
    assert _errors(doubled[:1], want[:1])[0] > 0.1


@pytest.mark.parametrize("long", ["queries", "keys"])
@pytest.mark.parametrize("name", [name for name in names() if name != "reference"])
def test_a_tensor_may_hold_more_elements_than_32_bits_count(name, long):
    """2**31 elements of q, or of k, on one GPU: its last rows are those of each head alone."""
    kernel = _kernel(name, 128, "bf16")
    heads, few, many = 40, 256, _rows_past_32_bits(40)
    torch.manual_seed(9)
    sizes = (many, few) if long == "queries" else (few, many)
    q, dout, k, v = (
        torch.randn(1, size, heads, 128, dtype=torch.bfloat16, device=CUDA)
        for size in (sizes[0], sizes[0], sizes[1], sizes[1])
    )
    if (name, long) == ("cudnn", "queries"):  # it gave a dq that was off by a fifth, and by all of it
        with pytest.raises(UserError, match=r"span more than 2\*\*31 elements"):
            _run(kernel, q, k, v, dout, 128**-0.5, False)
        return
    found = _run(kernel, q, k, v, dout, 128**-0.5, False)
    errors = {}
    for head in (slice(0, 1), slice(heads - 1, heads)):
        views = [tensor[:, :, head] for tensor in (q, k, v, dout)]
        want = _by_rows(_run(kernel, *(view.contiguous() for view in views), 128**-0.5, False))
        for label, got in {
            "all heads": [tensor[:, :, head] for tensor in _by_rows(found)],
            "a view of one": _by_rows(_run(kernel, *views, 128**-0.5, False)),
        }.items():
            for key, one, other in zip(("out", "lse", "dq", "dk", "dv"), got, want):
                last = slice(-4096, None)
                [error] = _errors([one[:, last]], [other[:, last].double()])
                errors[f"{key} of {label}, head {head.start}"] = error
    REPORT["errors"][f"{name} 2**31 elements of {long}"] = errors
    assert max(errors.values()) < 5e-3, {key: error for key, error in errors.items() if not error < 5e-3}


def _rows_past_32_bits(heads):
    """So many that heads of 128 make more than 2**31 elements; 16 bytes for each of these must be free."""
    many = 2**31 // (heads * 128) // 1024 * 1024 + 8192
    needed = 16 * many * heads * 128
    if torch.cuda.mem_get_info()[0] < needed:
        pytest.skip(f"it needs {needed >> 30} GiB of GPU memory")
    return many


def _by_rows(results):
    """(out, lse, dq, dk, dv), all with their rows second."""
    out, lse, *gradients = results
    return [out, lse.transpose(1, 2), *gradients]


def test_reference_is_float32_exact_on_gpu():
    """No TF32, whatever the process has allowed."""
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("medium")
    try:
        for problem in PROBLEMS.values():
            q, k, v, dout, scale, causal = _inputs(problem, 64, torch.float32)
            errors = _errors(
                _run(REFERENCE, q, k, v, dout, scale, causal), _exact(q, k, v, dout, scale, causal)
            )
            assert max(errors) < 2e-6, errors
        assert torch.get_float32_matmul_precision() == "medium"
    finally:
        torch.set_float32_matmul_precision(before)


def test_auto_takes_the_fastest_here():
    here = [n for n in ("flash4", "cudnn", "flash2", "sdpa_flash") if availability()[n] is None]
    assert here, "no fast kernel on this GPU host: " + json.dumps(availability())
    assert select("auto", Shape(), CUDA).name == here[0]
    assert select("auto", Shape(dtype="fp32"), CUDA).name == "reference"


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
def test_merging_here_is_merging_on_the_cpu(dtype):
    """Whole tensors, views and empty ones go to the kernel that takes them, with the CPU's answer."""

    def merged(device):
        torch.manual_seed(1)
        acc, wide = torch.randn(2, 2, 200, 6, 80)
        acc, wide = acc.to(merge.wide(dtype)).to(device), wide.to(dtype).to(device)
        lse_acc, lse = torch.randn(2, 2, 6, 200, dtype=merge.wide(dtype)).to(device)
        for rows, heads in ((slice(None), slice(None)), (slice(90, 177), slice(1, 3)), (slice(0, 0),) * 2):
            here, part = acc[:, rows, heads], wide[:, rows, heads]
            into = torch.empty_like(part)
            merge.fold_(here, lse_acc[:, heads, rows], part, lse[:, heads, rows])
            merge.add_(here, part)
            merge.sum_(here, [(part[:, 5:], slice(5, None))], into)
            merge.copy_(into, part)
        return acc.cpu(), lse_acc.cpu(), wide.cpu(), row_dot(wide, wide * 2).cpu()

    slack = {torch.bfloat16: 1e-2, torch.float16: 2e-3}.get(dtype, 1e-5)
    for found, want in zip(merged(CUDA), merged("cpu")):
        torch.testing.assert_close(found, want, rtol=slack, atol=slack)


def test_merging_more_elements_than_32_bits_count():
    """Folds, sums and copies of 2**31 elements, and of one head of them: the last rows are right."""
    heads, many = 40, _rows_past_32_bits(40)
    torch.manual_seed(10)
    out = torch.randn(1, many, heads, 128, dtype=torch.bfloat16, device=CUDA)
    acc, lse_acc = merge.accumulators(out)
    for some in (slice(None), slice(heads - 1, heads)):
        acc.fill_(1.0)
        lse_acc.zero_()
        lse = torch.randn(lse_acc.shape, device=CUDA)
        last = slice(-4096, None)
        want = [acc[:, last, some].clone(), lse_acc[:, some, last].clone()]
        merge.fold_plain_(*want, out[:, last, some], lse[:, some, last])
        merge.fold_(acc[:, :, some], lse_acc[:, some], out[:, :, some], lse[:, some])
        torch.testing.assert_close(acc[:, last, some], want[0], rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(lse_acc[:, some, last], want[1], rtol=1e-5, atol=1e-5)
        merge.add_(acc[:, :, some], out[:, :, some])
        want[0] += out[:, last, some]
        torch.testing.assert_close(acc[:, last, some], want[0], rtol=1e-5, atol=1e-5)
        into = torch.empty_like(out[:, :, some])
        merge.copy_(out[:, :, some], into)
        assert torch.equal(into[:, last], out[:, last, some])
        del into


def _time_ms(call, repeats=3):
    call()
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda.synchronize()
    start.record()
    for _ in range(repeats):
        call()
    end.record()
    torch.cuda.synchronize()
    return start.elapsed_time(end) / repeats


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", [name for name in names() if name != "reference"])
def test_speed_is_reported(name, causal):
    """TFLOP/s at 40 heads, 16384, forward and backward: written down, and no slower than a broken path."""
    kernel = _kernel(name, 128, "bf16")
    q, k, v, dout, scale, _ = _inputs((1, 16384, 16384, 40, 40, causal), 128, torch.bfloat16)
    out, lse = kernel.forward(q, k, v, scale, causal)
    delta = row_dot(dout, out)
    times_ms = {
        "fwd": _time_ms(lambda: kernel.forward(q, k, v, scale, causal)),
        "bwd": _time_ms(lambda: kernel.backward(dout, q, k, v, lse, delta, scale, causal, out=out)),
    }
    shape = {"batch": 1, "seqlen_global": 16384, "num_heads_q": 40, "head_dim": 128, "causal": causal}
    speeds = {
        phase: flops.tflops_per_gpu(flops.attention_flops(**shape, phase=phase), time_ms, world_size=1)
        for phase, time_ms in times_ms.items()
    }
    REPORT["tflops"][f"{name} {'causal' if causal else 'full'}"] = speeds
    assert min(speeds.values()) > 120, speeds


def test_merges_run_at_memory_speed():
    """At 16384 x 40 x 128 a fold or an addition moves 840 MB: at most three times a copy of that."""
    out = torch.randn(1, 16384, 40, 128, device=CUDA, dtype=torch.bfloat16)
    acc, lse_acc = merge.accumulators(out)
    lse = torch.randn(1, 40, 16384, device=CUDA)
    moved = acc.numel() * (4 + 4 + 2)
    fold_ms = _time_ms(lambda: merge.fold_(acc, lse_acc, out, lse), 20)
    source = torch.empty(moved // 2, dtype=torch.uint8, device=CUDA)
    target = torch.empty_like(source)
    copy_ms = _time_ms(lambda: target.copy_(source), 20)
    add_ms = _time_ms(lambda: merge.add_(acc, out), 20)
    REPORT["fold"] = {"fold_ms": fold_ms, "copy_of_as_many_bytes_ms": copy_ms, "add_ms": add_ms}
    assert fold_ms < 3 * copy_ms
    assert add_ms < 3 * copy_ms


def test_folding_in_place_never_reads_what_it_has_written() -> None:
    """Rows of lse are read by several warps and written by one: without a barrier some saw the new value."""
    torch.manual_seed(6)
    shape = (1, 4096, 40, 128)
    parts = [torch.randn(shape, device=CUDA, dtype=torch.bfloat16) for _ in range(3)]
    lses = [torch.randn(1, 40, 4096, device=CUDA) for _ in parts]
    expected = merge.accumulators(parts[0])
    for part, lse in zip(parts, lses):
        merge.fold_plain_(*expected, part, lse)
    for _ in range(200):
        found = merge.accumulators(parts[0])
        for part, lse in zip(parts, lses):
            merge.fold_(*found, part, lse)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
