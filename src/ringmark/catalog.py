"""What methods and peers there are: the files of two folders, listed without importing torch."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).parent


def _files(folder: str) -> list[str]:
    stems = (path.stem for path in (_PACKAGE / folder).glob("*.py"))
    return sorted(stem for stem in stems if not stem.startswith("_") and stem != "base")


def native_names() -> list[str]:
    """Our own methods, by name."""
    return _files("methods")


def peer_names() -> list[str]:
    """Adapters to other people's implementations, by name."""
    return _files("peers")
