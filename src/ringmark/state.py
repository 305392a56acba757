"""Which state of ringmark measured: git's name for the package's files, asked here and read from records.

No torch: it is asked where campaigns are planned as well.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ringmark
from ringmark.record import Record

_GIT_PLACES = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")


def git_environ() -> dict[str, str]:
    """The environment for a git that is asked of a folder: in a hook, or in what a rebase executes, git's own
    variables mean one repository, whatever folder is asked."""
    return {name: value for name, value in os.environ.items() if name not in _GIT_PLACES}


def tree_here() -> str:
    """The tree of the package that runs here."""
    return tree_id(Path(ringmark.__file__).parent)


def source_of(found: Record) -> dict[str, Any]:
    """What a record says of the ringmark that measured it; nothing, where it does not."""
    source = found.environment.get("source")
    return source if isinstance(source, dict) else {}


def tree_of(found: Record) -> str | None:
    """The tree that measured a record, where it says so."""
    return _text(source_of(found), "tree")


def named(source: Mapping[str, Any]) -> str | None:
    """The state in words: the commit, and what tells its changed checkouts apart; None where none is known.

    Two states of one checkout with changes are two programs. Without a commit only the files can say which.
    """
    commit, tree = _text(source, "git_commit"), _text(source, "tree")
    if commit is None:
        return f"tree {tree[:12]}" if tree else None
    if not is_changed(source):
        return f"commit {commit[:12]}"
    return f"commit {commit[:12]} with local changes" + (f" (tree {tree[:12]})" if tree else "")


def is_changed(source: Mapping[str, Any]) -> bool:
    """Whether the checkout is known to have had changes: the commit is then not all that measured."""
    return source.get("git_dirty") is True


def _text(source: Mapping[str, Any], name: str) -> str | None:
    found = source.get(name)
    return found if isinstance(found, str) else None


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
