"""Other people's implementations behind the same contract as our methods: one file each."""

from __future__ import annotations

from ringmark import catalog
from ringmark.methods.base import Method, load_class


def names() -> list[str]:
    """Every peer there is: the files of this folder, as a plan knows them, too."""
    return catalog.named("peers", __path__)


def misnamed() -> dict[str, str]:
    """What lies in this folder and is no peer for its name alone, and what to do about it."""
    return catalog.misnamed("peers", __path__)


def load(name: str) -> type[Method]:
    """The adapter class of a peer by its name. Importing an adapter never imports the peer's library."""
    catalog.check_there("peers", name, __path__)
    return load_class(f"{__name__}.{name}")
