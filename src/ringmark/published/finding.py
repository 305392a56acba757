"""A finding of the audit: what was seen, where, the arithmetic, and how sure it is."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Certainty(str, Enum):
    """How sure a finding is."""

    CONTRADICTION = "contradiction"  # the printed texts cannot all be right
    SUSPECT = "suspect"  # possible, but against a law or against other rows
    NOTE = "note"  # worth knowing before the numbers are used


@dataclass(frozen=True)
class Finding:
    """One finding; `arithmetic` is enough to check it by hand from the places in `where`."""

    certainty: Certainty
    what: str
    where: tuple[str, ...]
    arithmetic: str
    rule: str = ""


def contradiction(what: str, where: list[str], arithmetic: str) -> Finding:
    return Finding(Certainty.CONTRADICTION, what, tuple(where), arithmetic)


def suspect(what: str, where: list[str], arithmetic: str) -> Finding:
    return Finding(Certainty.SUSPECT, what, tuple(where), arithmetic)


def note(what: str, where: list[str], arithmetic: str) -> Finding:
    return Finding(Certainty.NOTE, what, tuple(where), arithmetic)
