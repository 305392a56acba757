"""Plants faults in the ranks of a world: Python loads this file when it starts with this folder on its path.

RINGMARK_FAULTS names a file of faults. Each waits for its rank, item and stage; then, after its delay, it
happens once, and says so in a file beside: where the rank was at that moment.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import json
import os
import resource
import signal
import sys
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any

WATCHED = "ringmark.bench.progress"


class _Hook(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Loads the watched module as ever, then puts the faults into it."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name != WATCHED:
            return None
        sys.meta_path.remove(self)
        found = importlib.machinery.PathFinder.find_spec(name, path)
        assert found is not None
        self.real = found.loader
        found.loader = self
        return found

    def create_module(self, spec: Any) -> ModuleType | None:
        return self.real.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        self.real.exec_module(module)
        _plant(module)


def _plant(progress: Any) -> None:
    faults = Path(os.environ["RINGMARK_FAULTS"])
    real = progress.Reporter.at

    def at(self: Any, stage: str, item: int | None = None) -> None:
        real(self, stage, item)
        for fault in json.loads(faults.read_text()):
            if (fault["rank"], fault["item"], fault["stage"]) == (self.rank, self.item, stage):
                _strike(fault, self, faults)

    progress.Reporter.at = at


def _strike(fault: dict[str, Any], reporter: Any, faults: Path) -> None:
    mark = faults.with_name(f"fired{fault['id']}.json")
    if mark.exists():
        return

    def happen() -> None:
        mark.write_text(json.dumps({"item": reporter.item, "stage": reporter.stage}))
        KINDS[fault["kind"]]()

    if fault["delay_ms"] == 0:
        happen()
    else:
        threading.Timer(fault["delay_ms"] / 1e3, happen).start()


def _exception() -> None:
    raise RuntimeError("a planted exception")


def _interrupt() -> None:
    raise KeyboardInterrupt


def _python_memory() -> None:
    bytearray(1 << 46)


def _torch_memory() -> None:
    import torch

    torch.ones(1 << 44)


def _limited_memory() -> None:
    """A real limit on this process, and a program that grows into it."""
    import torch

    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + (256 << 20), resource.RLIM_INFINITY))
    held = []
    while True:
        held.append(torch.ones(4 << 20))


def _device_memory() -> None:
    import torch

    held = []
    while True:
        held.append(torch.empty(1 << 32, dtype=torch.uint8, device="cuda"))


def _hang() -> None:
    while True:
        time.sleep(3600)


def _wrong_answer() -> None:
    """In this item only, this rank's forward is off by a twentieth: more than bf16 rounds."""
    from ringmark.methods import base

    real = base.Method.forward

    def forward(self: Any, *args: Any) -> Any:
        base.Method.forward = base.Method.__call__ = real  # type: ignore[method-assign]
        return real(self, *args) * 1.05

    base.Method.forward = forward  # type: ignore[method-assign]


def _missing_library() -> None:
    """In this item only, the method's module needs what is not installed."""
    from ringmark import methods

    real = methods.load

    def load(name: str) -> Any:
        methods.load = real
        import a_library_that_is_not_there  # type: ignore[import-not-found]  # noqa: F401

    methods.load = load


KINDS = {
    "exception": _exception,
    "python_memory": _python_memory,
    "torch_memory": _torch_memory,
    "limited_memory": _limited_memory,
    "device_memory": _device_memory,
    "hang": _hang,
    "wrong_answer": _wrong_answer,
    "missing_library": _missing_library,
    "exit": lambda: os._exit(7),
    "exit_well": lambda: os._exit(0),
    "sys_exit": lambda: sys.exit(0),
    "interrupt": _interrupt,
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "segfault": lambda: os.kill(os.getpid(), signal.SIGSEGV),
    "stop": lambda: os.kill(os.getpid(), signal.SIGSTOP),
    "kill_the_agent": lambda: os.kill(os.getppid(), signal.SIGKILL),
}

if "RINGMARK_FAULTS" in os.environ:
    sys.meta_path.insert(0, _Hook())
