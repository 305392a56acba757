"""Which state of ringmark measured: git's name for the package's files, asked here and read from records.

No torch: it is asked where campaigns are planned as well.
"""

from __future__ import annotations

import hashlib
from pathlib import Path

import ringmark
from ringmark.record import Record


def tree_here() -> str:
    """The tree of the package that runs here."""
    return tree_id(Path(ringmark.__file__).parent)


def tree_of(found: Record) -> str | None:
    """The tree that measured a record, where it says so."""
    source = found.environment.get("source")
    tree = source.get("tree") if isinstance(source, dict) else None
    return tree if isinstance(tree, str) else None


def tree_id(folder: Path) -> str:
    """git's name for a folder with these files in it."""
    entries = []
    for path in sorted(folder.iterdir(), key=lambda path: path.name + "/" * path.is_dir()):
        if path.name == "__pycache__" or path.name.startswith("."):
            continue
        name = tree_id(path) if path.is_dir() else _git_id("blob", path.read_bytes())
        mode = "40000" if path.is_dir() else "100644"
        entries.append(f"{mode} {path.name}\0".encode() + bytes.fromhex(name))
    return _git_id("tree", b"".join(entries))


def _git_id(kind: str, content: bytes) -> str:
    return hashlib.sha1(f"{kind} {len(content)}\0".encode() + content, usedforsecurity=False).hexdigest()
