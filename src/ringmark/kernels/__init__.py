"""The local kernels: one file each, asked once what is here, and the fastest that fits where none is named.

`names()` are the files of this folder that offer a KERNEL; there is no registry to edit. A missing library
makes its kernel unavailable, with the reason, and disturbs nobody else.
"""

from __future__ import annotations

import functools
import importlib
import pkgutil

import torch

from ringmark.cell import Shape
from ringmark.errors import UserError, nearest
from ringmark.kernels.base import Kernel

# Fastest first, as measured on an H200 (docs/kernels.md); a kernel that is not listed comes after these.
FASTEST_FIRST = ("flash4", "cudnn", "flash2", "sdpa_flash")
LAST = "reference"  # runs everywhere, so it is what remains


@functools.cache
def _kernels() -> dict[str, Kernel]:
    found: dict[str, Kernel] = {}
    for info in pkgutil.iter_modules(__path__):
        if info.name.startswith("_"):  # a part of a kernel, perhaps importing what only a GPU host has
            continue
        module = importlib.import_module(f"{__name__}.{info.name}")
        if hasattr(module, "KERNEL"):
            found[info.name] = module.KERNEL
    return dict(sorted(found.items()))


def names() -> list[str]:
    """Every kernel there is: the files of this folder that offer one."""
    return list(_kernels())


def load(name: str) -> Kernel:
    """The kernel of that name, whether or not this machine can run it."""
    if name not in _kernels():
        raise UserError(f"there is no kernel {name!r}: {nearest(name, ['auto', *names()])}")
    return _kernels()[name]


@functools.cache
def _availability() -> dict[str, str | None]:
    return {name: kernel.unavailable() for name, kernel in _kernels().items()}


def availability() -> dict[str, str | None]:
    """Why each kernel cannot run on this machine, or None where it can; asked once and kept."""
    return dict(_availability())


def obstacle(name: str, shape: Shape, device: torch.device) -> str | None:
    """Why a kernel cannot compute this shape here: not on this machine, or not this shape; or None."""
    return availability()[name] or load(name).unfit(shape, device)


def select(name: str, shape: Shape, device: torch.device) -> Kernel:
    """The kernel of that name, or for 'auto' the fastest one here that fits."""
    if name != "auto":
        kernel = load(name)
        reason = obstacle(name, shape, device)
        if reason:
            raise UserError(f"kernel {name} cannot compute {shape} on {device}: {reason}; try kernel auto")
        return kernel
    others = [other for other in names() if other not in FASTEST_FIRST and other != LAST]
    for candidate in (*FASTEST_FIRST, *others, LAST):
        if candidate in _kernels() and obstacle(candidate, shape, device) is None:
            return load(candidate)
    raise UserError(f"no kernel here computes {shape} on {device}: ask `ringmark doctor` for the reasons")
