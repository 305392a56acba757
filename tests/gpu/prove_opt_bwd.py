"""Proof, on a GPU host, that the patched flash-attn backward computes the same gradients from delta alone.

python tests/gpu/prove_opt_bwd.py --out opt_bwd.json [--stock FOLDER] [--repeats 1000]

It needs a flash-attn build with envs/flash-attn/opt_bwd*.patch on PYTHONPATH (head size 128 and bf16 are
enough). With --stock FOLDER, an unpatched build of the same version is loaded beside it and compared too.
Every check returns what it measured and raises AssertionError when that is not good enough;
tests/gpu/test_opt_bwd.py runs the same checks under pytest.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import math
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from opt_bwd_problem import HEAD_DIM, SCALE, Problem, backward, exact, extension, relative_error
from torch import Tensor

NAMES = ("dq", "dk", "dv")
# (batch, seqlen_q, seqlen_k, num_heads_q, num_heads_kv, causal); most lengths are no multiple of 64.
SHAPES = [
    (2, 256, 256, 4, 4, True),
    (1, 1000, 1000, 4, 4, True),
    (2, 333, 333, 4, 2, True),
    (1, 513, 769, 8, 1, True),
    (1, 65, 17, 2, 2, False),
    (2, 1000, 1000, 4, 2, False),
    (1, 129, 1023, 6, 3, False),
    (3, 447, 127, 4, 4, False),
]
POISON_SHAPES = [
    ((1, 1000, 1000, 8, 2, True), False),
    ((2, 333, 447, 4, 4, False), False),
    ((1, 1000, 1000, 8, 2, True), True),
]
TIME_SHAPES = [
    (1, 16384, 16384, 40, 40, True),
    (1, 16384, 16384, 40, 40, False),
    (1, 2048, 2048, 40, 40, False),
]
VARLEN_SEQLENS = [65, 0, 128, 333, 1]


def check_build() -> dict[str, Any]:
    """The extension under test has the patch, and refuses what it cannot take with a sentence."""
    assert "softmax_d" in extension().bwd.__doc__, "this flash-attn build does not have the opt_bwd patch"
    p = Problem((1, 130, 130, 2, 2, True))
    refusals = {}
    for name, delta in [
        ("neither_out_nor_delta", None),
        ("half_precision", p.delta.bfloat16()),
        ("wrong_shape", p.delta[:, :, :-1].contiguous()),
        ("not_contiguous", p.delta.transpose(1, 2).contiguous().transpose(1, 2)),
    ]:
        try:
            backward(p, None, delta)
        except RuntimeError as error:
            refusals[name] = str(error).splitlines()[0]
    assert len(refusals) == 4, f"bad calls were accepted: only {sorted(refusals)} were refused"
    return {"refusals": refusals}


def assert_same_bits(got: list[Any], want: list[Tensor], deterministic: bool, what: str) -> None:
    """dk and dv never depend on the order of additions; dq does not when deterministic."""
    for name, a, b in list(zip(NAMES, got, want))[0 if deterministic else 1 :]:
        assert torch.equal(a, b), f"{what}: {name} differs"


def check_accuracy(stock: Any = None) -> dict[str, Any]:
    """Against float64 and against the backward with out; the same bits where the hardware allows it."""
    rows = []
    for shape, deterministic in itertools.product(SHAPES, (False, True)):
        p, what = Problem(shape), f"{shape} deterministic={deterministic}"
        base = backward(p, p.out, None, deterministic)
        if stock is not None:
            assert_same_bits(
                base, backward(p, p.out, None, deterministic, stock), deterministic, f"stock {what}"
            )
        # The kernel's own delta must give its own bits back, whatever stands in out.
        own_delta = base[3][:, :, : p.q.shape[1]].contiguous()
        for out in (None, torch.full_like(p.out, math.nan)):
            assert_same_bits(backward(p, out, own_delta, deterministic), base, deterministic, what)
        row: dict[str, Any] = {"shape": shape, "deterministic": deterministic}
        for name, got, ref, truth in zip(NAMES, backward(p, None, p.delta, deterministic), base, exact(p)):
            ours, theirs = relative_error(got, truth), relative_error(ref, truth)
            row[name] = {"error_delta": ours, "error_out": theirs, "apart": relative_error(got, ref)}
            assert theirs < 1e-2, f"{what}: {name} with out is off by {theirs}"
            assert ours <= 1.02 * theirs, f"{what}: {name} is off by {ours}, with out by {theirs}"
        rows.append(row)
    return {"cases": rows}


def check_two_key_blocks() -> dict[str, Any]:
    """The use in a ring: keys in two blocks, each backward fed the global lse and the global delta."""
    p = Problem((1, 1000, 1000, 4, 2, False))
    parts = []
    for begin, end in ((0, 450), (450, 1000)):
        block = copy.copy(p)
        block.k, block.v = p.k[:, begin:end].contiguous(), p.v[:, begin:end].contiguous()
        parts.append(backward(block, None, p.delta))
    dq = parts[0][0].float() + parts[1][0].float()
    dk, dv = (torch.cat([part[i] for part in parts], 1) for i in (1, 2))
    errors = {name: relative_error(a, b) for name, a, b in zip(NAMES, (dq, dk, dv), exact(p))}
    assert max(errors.values()) < 1e-2, errors
    return errors


def check_python_surface() -> dict[str, Any]:
    """flash_attn's own functions: a caller that knows nothing of the patch, and one that gives delta."""
    from flash_attn import flash_attn_func
    from flash_attn.flash_attn_interface import _flash_attn_backward

    p = Problem((2, 333, 333, 4, 2, True))
    base = backward(p, p.out, None, deterministic=True)
    leaves = [x.clone().requires_grad_() for x in (p.q, p.k, p.v)]
    flash_attn_func(*leaves, causal=True, deterministic=True).backward(p.dout)
    assert_same_bits([x.grad for x in leaves], base, True, "flash_attn_func")
    grads = [torch.full_like(x, math.nan) for x in (p.q, p.k, p.v)]
    _flash_attn_backward(
        p.dout, p.q, p.k, p.v, None, p.lse, *grads, 0.0, SCALE, True, -1, -1, 0.0, None, True,
        softmax_d=base[3][:, :, : p.q.shape[1]],  # a strided view: the function makes it contiguous
    )  # fmt: skip
    assert_same_bits(grads, base, True, "_flash_attn_backward(softmax_d=...)")
    return {"flash_attn_func": "same bits", "_flash_attn_backward": "same bits"}


def check_varlen() -> dict[str, Any]:
    """Packed sequences, an empty one among them: the same bits as varlen_bwd with out."""
    module, total, longest = extension(), sum(VARLEN_SEQLENS), max(VARLEN_SEQLENS)
    p = Problem((1, total, total, 4, 2, True))
    q, k, v, dout = (x[0] for x in (p.q, p.k, p.v, p.dout))
    cu = torch.tensor([0, *VARLEN_SEQLENS], device="cuda").cumsum(0).int()
    out, lse = module.varlen_fwd(
        q, k, v, None, cu, cu, None, None, None, None, longest, longest,
        0.0, SCALE, False, True, -1, -1, 0.0, False, None,
    )[:2]  # fmt: skip

    def call(out: Tensor | None, **given: Tensor) -> list[Tensor]:
        grads: list[Tensor] = module.varlen_bwd(
            dout, q, k, v, out, lse, None, None, None, cu, cu, None, longest, longest,
            0.0, SCALE, False, True, -1, -1, 0.0, True, None, None, **given,
        )  # fmt: skip
        return grads

    base = call(out)
    bounds = cu.tolist()  # sequence i starts at row bounds[i] + 128 i of the kernel's padded buffer
    spans = [(a + 128 * i, b + 128 * i) for i, (a, b) in enumerate(itertools.pairwise(bounds))]
    own_delta = torch.cat([base[3][:, a:b] for a, b in spans], 1).contiguous()
    assert_same_bits(call(None, softmax_d=own_delta), base, True, "varlen")
    mine = call(None, softmax_d=(dout.float() * out.float()).sum(-1).T.contiguous())
    apart = {name: relative_error(a, b) for name, a, b in zip(NAMES, mine, base)}
    assert max(apart.values()) < 5e-3, apart
    return {"seqlens": VARLEN_SEQLENS, "apart": apart}


def nan_buffers(p: Problem, deterministic: bool) -> list[Tensor]:
    """NaN in buffers of the sizes and in the order that bwd allocates, so that bwd gets these very blocks."""
    batch, seqlen_q, num_heads_q, _ = p.q.shape
    rounded = -(-seqlen_q // 128) * 128
    splits = -(-torch.cuda.get_device_properties(0).multi_processor_count // (batch * num_heads_q))
    accum = ((splits,) if deterministic else ()) + (batch, rounded, num_heads_q, HEAD_DIM)
    buffers = [torch.empty_like(x) for x in (p.q, p.k, p.v)]
    buffers += [torch.empty(size, device="cuda") for size in ((batch, num_heads_q, rounded), accum)]
    if p.k.shape[2] != num_heads_q:  # dk and dv before the sum over a group's heads
        expanded = (batch, p.k.shape[1], num_heads_q, HEAD_DIM)
        buffers += [torch.empty(expanded, device="cuda", dtype=p.q.dtype) for _ in range(2)]
    return [buffer.fill_(math.nan) for buffer in buffers]


def check_poisoned_memory(repeats: int = 1000) -> dict[str, Any]:
    """Every buffer that bwd allocates starts as NaN, again and again; not one bad value may come out."""
    runs = []
    for shape, deterministic in POISON_SHAPES:
        p = Problem(shape)
        want = backward(p, p.out, None, deterministic)[:3]
        bounds = [0.03 * b.float().abs() + 0.01 * b.float().std() for b in want]
        bad = torch.zeros(3, device="cuda", dtype=torch.int64)
        reused = 0
        for _ in range(repeats):
            buffers = nan_buffers(p, deterministic)
            addresses = [buffer.data_ptr() for buffer in buffers]
            del buffers
            got = backward(p, None, p.delta, deterministic)
            reused += [x.data_ptr() for x in got] == addresses[:4]
            for i in range(3):  # a comparison with NaN is false, so NaN counts as bad
                bad[i] += (~((got[i].float() - want[i].float()).abs() <= bounds[i])).sum()
            del got
        counts = dict(zip(NAMES, bad.tolist()))
        assert reused >= 0.99 * repeats, (
            f"the poison reached bwd's buffers in {reused} of {repeats} calls only"
        )
        assert not any(counts.values()), f"{shape} deterministic={deterministic}: bad values {counts}"
        runs.append({"shape": shape, "deterministic": deterministic, "repeats": repeats, "poisoned": reused})
        runs[-1]["bad_values"] = counts
    return {"runs": runs}


def check_time(stock: Any = None, rounds: int = 25) -> dict[str, Any]:
    """Median time with delta over median time with out, the calls interleaved, in CUDA events."""
    rows: list[dict[str, Any]] = []
    for shape in TIME_SHAPES:
        p = Problem(shape)
        calls: dict[str, Callable[[], Any]] = {
            "with_delta": partial(backward, p, None, p.delta),
            "with_out": partial(backward, p, p.out, None),
        }
        if stock is not None:
            calls["unpatched"] = partial(backward, p, p.out, None, module=stock)
        samples = interleaved_ms(calls, rounds)
        median = {name: sorted(values)[len(values) // 2] for name, values in samples.items()}
        base = "unpatched" if stock is not None else "with_out"
        row = {"shape": shape, "time_ms": median, "base": base, "ratio": median["with_delta"] / median[base]}
        rows.append({**row, "samples_ms": samples})
    ratios = {str(row["shape"]): row["time_ms"] for row in rows if row["ratio"] >= 1.005}
    assert not ratios, f"delta costs time, medians in ms: {ratios}"
    return {"cases": rows}


def interleaved_ms(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, list[float]]:
    """Each call timed `rounds` times, in an order that reverses every round so that drift hits all alike."""
    for call in calls.values():
        for _ in range(3):
            call()
    marks: dict[str, list[tuple[torch.cuda.Event, torch.cuda.Event]]] = {name: [] for name in calls}
    for i in range(rounds):
        for name in list(calls)[:: 1 if i % 2 == 0 else -1]:
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
            start.record()
            calls[name]()
            end.record()
            marks[name].append((start, end))
    torch.cuda.synchronize()
    return {name: [start.elapsed_time(end) for start, end in pairs] for name, pairs in marks.items()}


def environment() -> dict[str, Any]:
    import flash_attn

    return {
        "gpu": torch.cuda.get_device_name(0),
        "flash_attn": flash_attn.__version__,
        "torch": torch.__version__,
        "cuda": torch.version.cuda,
        "utc": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }


def main() -> int:
    parser = argparse.ArgumentParser(description="Prove the opt_bwd patch on this GPU.")
    parser.add_argument("--out", type=Path, required=True, help="JSON file to write")
    parser.add_argument("--stock", help="folder of an unpatched build of the same version, to compare with")
    parser.add_argument("--repeats", type=int, default=1000)
    args = parser.parse_args()
    stock = extension(args.stock) if args.stock else None
    checks: dict[str, Callable[[], dict[str, Any]]] = {
        "build": check_build,
        "accuracy": lambda: check_accuracy(stock),
        "two_key_blocks": check_two_key_blocks,
        "python_surface": check_python_surface,
        "varlen": check_varlen,
        "poisoned_memory": lambda: check_poisoned_memory(args.repeats),
        "time": lambda: check_time(stock),
    }
    results: dict[str, Any] = {}
    for name, check in checks.items():
        began = time.monotonic()
        try:
            results[name] = {"passed": True, **check()}
        except Exception as error:  # the record must say which check failed and how, whatever it was
            results[name] = {"passed": False, "error": f"{type(error).__name__}: {error}"}
        results[name]["seconds"] = round(time.monotonic() - began, 1)
        print(name, results[name].get("error", "passed"), f"{results[name]['seconds']} s", flush=True)
    passed = all(result["passed"] for result in results.values())
    record = {"passed": passed, "environment": environment(), "stock_build": bool(stock), "checks": results}
    args.out.write_text(json.dumps(record, indent=1) + "\n")
    return 0 if passed else 1


if __name__ == "__main__":
    sys.exit(main())
