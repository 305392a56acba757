"""What is found in a campaign's records, and how they are handed about: each with its place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ringmark.record import Record

Named = Sequence[tuple[str, Record]]  # a record's path under its campaign's folder, and the record


@dataclass(frozen=True)
class Finding:
    """Something that is not as it must be (a problem), or that a reader should know (a note), and where."""

    where: str
    sentence: str
    is_problem: bool = True

    def __str__(self) -> str:
        return f"{'' if self.is_problem else 'note: '}{self.where}: {self.sentence}"
