"""Stand-ins with the real libraries' surfaces: they check what they are handed and compute it exactly.

Each knows, from its library's own rules, which global token every row of every rank must be. So an adapter
that hands over rows in another order, in another layout, or to another group gets a wrong answer or an error.
"""

from __future__ import annotations

import contextlib
import importlib.machinery
import sys
import types
from collections.abc import Iterator
from typing import Any


def module(name: str, **contents: Any) -> types.ModuleType:
    """A module of that name, as a package, that a search for it finds."""
    made = types.ModuleType(name)
    made.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=True)
    made.__path__ = []
    vars(made).update(contents)
    return made


@contextlib.contextmanager
def standing_in(*modules: types.ModuleType) -> Iterator[None]:
    """Put modules in the places of real ones; what stood there, or nothing, comes back afterwards."""
    tops = {made.__name__.split(".")[0] for made in modules}

    def ours(name: str) -> bool:
        return name.split(".")[0] in tops

    before = {name: found for name, found in sys.modules.items() if ours(name)}
    for name in before:
        del sys.modules[name]
    for made in modules:
        sys.modules[made.__name__] = made
        parent, _, child = made.__name__.rpartition(".")
        if parent in sys.modules:
            setattr(sys.modules[parent], child, made)
    try:
        yield
    finally:
        for name in [name for name in sys.modules if ours(name)]:
            del sys.modules[name]
        sys.modules.update(before)
