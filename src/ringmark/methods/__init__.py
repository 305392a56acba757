"""The native methods: one file each. `names()` is the list of files; there is no registry to edit."""

from __future__ import annotations

import pkgutil

from ringmark.errors import UserError, nearest
from ringmark.methods.base import Method, load_class


def names() -> list[str]:
    """Every method there is: the files of this folder but base.py."""
    return sorted(info.name for info in pkgutil.iter_modules(__path__) if info.name != "base")


def load(name: str) -> type[Method]:
    """The class of a method by its name."""
    if name not in names():
        raise UserError(f"there is no method {name!r}: {nearest(name, names())}")
    return load_class(f"{__name__}.{name}")
