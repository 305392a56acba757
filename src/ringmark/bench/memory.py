"""The memory of one iteration: its peak beyond the inputs on every rank, the device's own figure beside it.

On CUDA the caching allocator counts exactly what was allocated; what a transport took from the driver behind
its back is added. On CPU the kernel's high-water mark of the resident set is reset before the iteration and
read after it (where it may not be reset, a thread samples).
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from ringmark.bench import gather
from ringmark.bench.problem import Problem
from ringmark.comm import symmetric
from ringmark.comm.mesh import Mesh
from ringmark.record import Memory

MIB = 2**20
_STATUS = Path("/proc/self/status")


def measure(body: Callable[[], object], problem: Problem, mesh: Mesh) -> Memory:
    """Run one iteration and see how high memory goes; `body` and inputs as they are timed."""
    problem.clear_grads()  # those of the iteration before are no part of this one
    gc.collect()
    gather.synchronize(mesh)
    on_cuda = mesh.device.type == "cuda"
    peak, base, used = (_on_cuda if on_cuda else _resident)(body, problem, mesh)
    ranks = gather.rows(mesh, [peak, peak - base, problem.inputs_mib, -1.0 if used is None else used])
    return Memory(
        peak_above_inputs_mib=max(row[1] for row in ranks),
        peak_mib=max(row[0] for row in ranks),
        inputs_mib=max(row[2] for row in ranks),
        device_used_mib=None if used is None else max(row[3] for row in ranks),
        per_rank_peak_mib=[row[0] for row in ranks],
        source="cuda_allocator" if on_cuda else "resident_set",
    )


def _on_cuda(body: Callable[[], object], problem: Problem, mesh: Mesh) -> tuple[float, float, float | None]:
    torch.cuda.reset_peak_memory_stats(mesh.device)
    body()
    torch.cuda.synchronize(mesh.device)
    peak = (torch.cuda.max_memory_allocated(mesh.device) + symmetric.allocated_bytes()) / MIB
    free, total = torch.cuda.mem_get_info(mesh.device)
    return peak, problem.inputs_mib, (total - free) / MIB


def _resident(body: Callable[[], object], problem: Problem, mesh: Mesh) -> tuple[float, float, float | None]:
    _give_back_free_memory()
    base = _status_mib("VmRSS")
    if _reset_high_water():
        body()
        return max(_status_mib("VmHWM"), base), base, None
    with _sampling() as highest:
        body()
    return max(highest[0], _status_mib("VmRSS"), base), base, None


def _reset_high_water() -> bool:
    try:
        Path("/proc/self/clear_refs").write_text("5")
    except OSError:
        return False
    return True


def _status_mib(field: str) -> float:
    """A figure of this process as Linux keeps it; 0 where there is no /proc."""
    try:
        text = _STATUS.read_text()
    except OSError:
        return 0.0
    found = next((line for line in text.splitlines() if line.startswith(field + ":")), None)
    return int(found.split()[1]) / 1024 if found else 0.0


def _give_back_free_memory() -> None:
    """Memory that an earlier stage freed would hide the growth of this one: hand it back to the system."""
    if sys.platform == "linux":
        with contextlib.suppress(AttributeError, OSError):
            ctypes.CDLL(None).malloc_trim(0)


@contextlib.contextmanager
def _sampling(period_s: float = 0.001) -> Iterator[list[float]]:
    highest, ended = [0.0], threading.Event()

    def watch() -> None:
        while not ended.wait(period_s):
            highest[0] = max(highest[0], _status_mib("VmRSS"))

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield highest
    finally:
        ended.set()
        watcher.join()
