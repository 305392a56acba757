"""The native methods: one file each. `names()` is the list of files; there is no registry to edit."""

from __future__ import annotations

from ringmark import catalog
from ringmark.methods.base import Method, load_class


def names() -> list[str]:
    """Every method there is: the files of this folder, as a plan knows them, too."""
    return catalog.named("methods", __path__)


def misnamed() -> dict[str, str]:
    """What lies in this folder and is no method for its name alone, and what to do about it."""
    return catalog.misnamed("methods", __path__)


def load(name: str) -> type[Method]:
    """The class of a method by its name."""
    catalog.check_there("methods", name, __path__)
    return load_class(f"{__name__}.{name}")
