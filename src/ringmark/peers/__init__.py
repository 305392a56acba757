"""Other people's implementations behind the same contract as our methods: one file each."""

from __future__ import annotations

import pkgutil

from ringmark.errors import UserError, nearest
from ringmark.methods.base import Method, load_class


def names() -> list[str]:
    """Every peer there is: the files of this folder whose name has no leading underscore."""
    return sorted(info.name for info in pkgutil.iter_modules(__path__) if not info.name.startswith("_"))


def load(name: str) -> type[Method]:
    """The adapter class of a peer by its name. Importing an adapter never imports the peer's library."""
    if name not in names():
        raise UserError(f"there is no peer {name!r}: {nearest(name, names())}")
    return load_class(f"{__name__}.{name}")
