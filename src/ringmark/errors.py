"""Mistakes of the user's: one sentence that says what to do, exit status 2, no traceback."""

from __future__ import annotations

import difflib
import re
import traceback
from collections.abc import Iterable
from pathlib import PurePath


class UserError(Exception):
    """Something the user asked for cannot be done as asked; the message says what to do instead."""


def nearest(word: str, known: Iterable[str]) -> str:
    """A phrase naming the valid word nearest to `word`, or all of them where none is near."""
    known = sorted(known)
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.5)
    if close:
        return f"did you mean {close[0]!r}?"
    return "valid are: " + ", ".join(known)


def in_words(error: BaseException) -> str:
    """Somebody's mistake in a few words: its kind, what it says, and the line that it comes from."""
    said = " ".join(str(error).split())[:300]
    where = place("".join(traceback.format_exception(error)))
    return type(error).__name__ + (f": {said}" if said else "") + (f" ({where})" if where else "")


def shown(value: object) -> str:
    """A value in a few words: a small one as it is written, any other by its kind."""
    small = value is None or isinstance(value, (bool, int, float, str))
    return repr(value)[:80] if small else f"a {type(value).__name__}"


def place(trace: str) -> str | None:
    """The last line in the text of a traceback that is of no installed library, else its last, or None."""
    lines = re.findall(r'^ *File "([^<"][^"]*)", line (\d+), in (\S+)', trace, re.M)
    own = [line for line in lines if not re.search(r"/python3[.0-9]*/", line[0])]
    if not lines:
        return None
    file, number, function = (own or lines)[-1]
    return f"{'/'.join(PurePath(file).parts[-2:])}:{number}, in {function}"
