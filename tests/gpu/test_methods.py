"""Every native method with every kernel of this GPU host, on 1, 2, 4, 8 GPUs, against float64.

    python -m pytest tests/gpu/test_methods.py                                  starts its own ranks
    torchrun --nproc-per-node 8 tests/gpu/test_methods.py --out methods.json    the same on given ranks
    ... --kernels flash4 cudnn                                                  with some of the kernels alone
    RINGMARK_REPORT=folder ...                                                  keeps folder/methods-N.json

bf16: the error of a method over the whole tensor is at most twice that of its kernel alone on one GPU.
float32 (reference kernel): within 1e-5 of float64. Then the same call again and again while ranks start late
at random: a race would change the forward's bits.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

torch = pytest.importorskip("torch")

HERE = Path(__file__).resolve()
sys.path[:0] = [str(HERE.parents[2] / "src"), str(HERE.parents[1])]

import exact  # noqa: E402
from ringmark import kernels, library, methods  # noqa: E402
from ringmark.cell import BOUND  # noqa: E402
from ringmark.comm import symmetric  # noqa: E402
from ringmark.comm.mesh import Mesh, start  # noqa: E402

pytestmark = pytest.mark.gpu

SEQLEN_GLOBAL = 2048
HEADS = {"causal": (8, 8), "full": (8, 8), "causal GQA": (16, 8), "full GQA": (16, 8)}
VARIANTS: dict[str, list[dict[str, Any]]] = {
    "burst": [
        {"side": "q", "head_groups": 2},
        {"side": "q", "layout": "striped"},
        {"side": "q", "opt_bwd": False},
        {"side": "kv", "head_groups": 2},
        {"side": "q", "head_groups": 4, "tracks": 2},
        {"side": "kv", "head_groups": 4, "tracks": 2, "layout": "striped"},
        {"side": "q", "head_groups": 2, "transport": "copy_engine"},
        {"side": "q", "head_groups": 4, "tracks": 2, "transport": "copy_engine"},
        {"side": "q", "head_groups": 4, "tracks": 2, "hops": "ring"},
        {"side": "kv", "head_groups": 4, "tracks": 2, "abreast": 2},
        {"side": "q", "head_groups": 2, "transport": "send_recv"},
    ],
    "double_ring": [{"head_groups": 2}, {"head_groups": 4, "tracks": 2}],
    "ulysses": [{}, {"head_groups": 2}, {"transport": "send_recv"}],
    "usp": [{}, {"placement": "ring_first"}, {"ulysses": 2}, {"ulysses": 2, "transport": "send_recv"}],
}
FLOAT32_TOLERANCE = 1e-5
LATE = ("burst", "ulysses", "usp")
REPEATS = 6
LATE_SEQLEN_LOCAL = 4096


def views(world_size: int) -> list[tuple[int, int]]:
    """Flat, two nodes, and one GPU a node."""
    found = [(1, world_size), (world_size, 1)]
    if world_size % 2 == 0:
        found.insert(1, (2, world_size // 2))
    return list(dict.fromkeys(found))


def problem(label: str, dtype: torch.dtype, device: torch.device) -> exact.Problem:
    """The same on every rank."""
    torch.manual_seed(7)
    num_q, num_kv = HEADS[label]
    size = (1, SEQLEN_GLOBAL, num_q, 128)
    q, dout = (torch.randn(size, device=device).to(dtype) for _ in range(2))
    k, v = (torch.randn(1, SEQLEN_GLOBAL, num_kv, 128, device=device).to(dtype) for _ in range(2))
    return exact.solved(q, k, v, dout, label.startswith("causal"))


def whole_errors(
    method: Any, mesh: Mesh, kernel: Any, given: exact.Problem, layout: str | None = None
) -> dict[str, float]:
    found = exact.run(method, mesh, kernel, given)
    full = {key: library.unshard(value, layout or method.layout, mesh) for key, value in found.items()}
    return {
        key: float((full[key].double() - truth).norm() / truth.norm()) for key, truth in given.exact.items()
    }


class Report:
    """What was run and what was wrong, the same on every rank."""

    def __init__(self, mesh: Mesh) -> None:
        self.mesh, self.began = mesh, time.monotonic()
        self.rows: dict[str, Any] = {}
        self.bad: list[str] = []
        self.skipped: dict[str, str] = {}

    def add(self, row: str, errors: dict[str, float], allowed: dict[str, float]) -> None:
        self.rows[row] = errors
        for key, error in errors.items():
            if not error <= allowed[key]:
                self.bad.append(f"{row}: {key} is off by {error:.2e}, allowed {allowed[key]:.2e}")

    def write(self, path: Path) -> None:
        text = {
            "world_size": self.mesh.world_size,
            "device": torch.cuda.get_device_name(),
            "torch": torch.__version__,
            "seconds": round(time.monotonic() - self.began, 1),
            "num_rows": len(self.rows),
            "bad": self.bad,
            "skipped": self.skipped,
            "errors": self.rows,
        }
        path.write_text(json.dumps(text, indent=1))


def every_row(base: Mesh, report: Report, name: str, dtype: torch.dtype) -> None:
    """One kernel under every method, mask and mesh."""
    for label in HEADS:
        given = problem(label, dtype, base.device)
        shape = given.cell("single", base).shape
        reason = kernels.obstacle(name, shape, base.device)
        if reason:
            report.skipped[f"{name} {label}"] = reason
            continue
        kernel, alone = kernels.load(name), Mesh(1, 1, 0, base.device)
        single = methods.load("single")()
        yardstick = whole_errors(single, alone, kernel, given)
        allowed = {key: 2 * error for key, error in yardstick.items()}
        if dtype == torch.float32:
            allowed = dict.fromkeys(yardstick, FLOAT32_TOLERANCE)
        report.add(f"{name} {dtype} single {label}", yardstick, allowed)
        for method_name in methods.names():
            if method_name == BOUND:
                continue
            for options in VARIANTS.get(method_name, [{}]):
                for nodes, gpus in views(base.world_size):
                    mesh, method = base.view(nodes, gpus), methods.load(method_name)(**options)
                    reason = method.unavailable() or method.unsupported(
                        given.cell(method_name, mesh, **options)
                    )
                    row = f"{name} {dtype} {method_name} {options} {nodes}x{gpus} {label}"
                    if reason:
                        report.skipped[row] = reason
                        continue
                    report.add(row, whole_errors(method, mesh, kernel, given), allowed)


def late_ranks(base: Mesh, report: Report, name: str) -> None:
    """Again and again with ranks that start late: the forward's bits stay, the gradients stay near."""
    dtype = torch.bfloat16
    generator = torch.Generator(base.device).manual_seed(base.rank)
    size = (1, LATE_SEQLEN_LOCAL, 8, 128)
    local = [torch.randn(size, device=base.device, generator=generator).to(dtype) for _ in range(4)]
    whole = exact.Problem(*local, causal=True, scale=128**-0.5, exact={})
    if kernels.obstacle(name, whole.cell("burst", base).shape, base.device):
        return
    for nodes, gpus in views(base.world_size):
        for method_name, options in [(one, options) for one in LATE for options in VARIANTS[one]]:
            mesh, method = base.view(nodes, gpus), methods.load(method_name)(**options)
            if method.unavailable() or method.unsupported(whole.cell(method_name, mesh, **options)):
                continue
            method.setup(mesh, kernels.load(name), causal=True)
            first: list[torch.Tensor] | None = None
            for _ in range(REPEATS):
                torch.cuda._sleep(random.randrange(10_000_000))
                q, k, v = (tensor.clone().requires_grad_() for tensor in (whole.q, whole.k, whole.v))
                out = method(q, k, v)
                out.backward(whole.dout)
                found = [out.detach(), q.grad, k.grad, v.grad]
                first = first or found
                row = f"late ranks {name} {method_name} {options} {nodes}x{gpus}"
                if not torch.equal(out, first[0]):
                    report.bad.append(f"{row}: out differs from call to call")
                for key, now, then in zip(exact.NAMES[1:], found[1:], first[1:]):
                    apart = float((now.float() - then.float()).norm() / then.float().norm())
                    if not apart <= 5e-3:
                        report.bad.append(f"{row}: {key} differs by {apart:.1e} from call to call")


def without_shared_memory(base: Mesh, report: Report, name: str) -> None:
    """Where the GPUs may not share memory, burst sends through NCCL unasked, and is right."""
    given = problem("causal", torch.bfloat16, base.device)
    if base.world_size == 1 or kernels.obstacle(name, given.cell("burst", base).shape, base.device):
        return
    refusal = RuntimeError("the GPUs of this node cannot share memory")
    mesh = Mesh(1, base.world_size, base.rank, base.device)
    with mock.patch.object(symmetric, "make_slot", side_effect=refusal):
        method = methods.load("burst")()
        errors = whole_errors(method, mesh, kernels.load(name), given)
    row = f"{name} burst without shared memory"
    report.add(row, errors, dict.fromkeys(errors, 0.02))
    if method.settings()["transport"] != "nccl":
        report.bad.append(f"{row}: went by {method.settings()['transport']}")


def be_ranks(out: Path, names: list[str]) -> int:
    """What every rank runs."""
    mesh = start(1)
    report = Report(mesh)
    if "reference" in names:
        every_row(mesh, report, "reference", torch.float32)
    for name in names:
        every_row(mesh, report, name, torch.bfloat16)
        late_ranks(mesh, report, name)
        without_shared_memory(mesh, report, name)
    if mesh.world_size > 1:
        everybody: list[Any] = [None] * mesh.world_size
        torch.distributed.all_gather_object(everybody, report.bad)
        report.bad = sorted({line for lines in everybody for line in lines})
    if mesh.rank == 0:
        report.write(out)
        print(f"{len(report.rows)} rows, {len(report.bad)} bad, {time.monotonic() - report.began:.0f} s")
    if mesh.world_size > 1:
        torch.distributed.destroy_process_group()
    return 1 if report.bad else 0


@pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no CUDA device")
@pytest.mark.parametrize("world_size", [1, 2, 4, 8])
def test_every_method_with_every_kernel(world_size: int, tmp_path: Path) -> None:
    if torch.cuda.device_count() < world_size:
        pytest.skip(f"there are {torch.cuda.device_count()} GPUs")
    folder = Path(os.environ.get("RINGMARK_REPORT", tmp_path))
    folder.mkdir(parents=True, exist_ok=True)
    out = folder / f"methods-{world_size}.json"
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command = [*torchrun, "--nproc-per-node", str(world_size), str(HERE), "--out", str(out)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=540)
    assert out.exists(), ended.stdout[-2000:] + ended.stderr[-6000:]
    found = json.loads(out.read_text())
    assert not found["bad"], "\n".join(found["bad"][:20])
    assert found["num_rows"] >= 20


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("methods.json"))
    parser.add_argument("--kernels", nargs="+", default=kernels.names(), choices=kernels.names())
    args = parser.parse_args()
    sys.exit(be_ranks(args.out, args.kernels))
