"""Mistakes of the user's: one sentence that says what to do, exit status 2, no traceback."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something the user asked for cannot be done as asked; the message says what to do instead."""


def nearest(word: str, known: Iterable[str]) -> str:
    """A phrase naming the valid word nearest to `word`, or all of them where none is near."""
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}?"
    return "valid are: " + ", ".join(known)
