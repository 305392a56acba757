"""A table as data: its entries are a number with an interval, or a word; Markdown, LaTeX and CSV read it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Entry:
    """One place of a table. It always says something: a number, or a word."""

    text: str
    interval: str = ""
    extra: str = ""
    is_number: bool = False
    best: bool = False
    marks: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        if not self.text.strip():
            raise ValueError("a table's entry is never blank: give the word that says why")


@dataclass(frozen=True)
class Table:
    """A header, rows whose first entries are words, and the notes that the marks point to."""

    name: str  # of its files: letters, digits and -
    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    notes: tuple[str, ...] = ()
    last_is_apart: bool = False  # the last row is a reference (the bound): a rule stands above it

    def __post_init__(self) -> None:
        for row in self.rows:
            if len(row) != len(self.header):
                raise ValueError(f"table {self.name}: a row of {len(row)} under {len(self.header)} columns")


@dataclass
class Notes:
    """The notes of one table: each sentence once, numbered in the order of its first use."""

    sentences: list[str] = field(default_factory=list)

    def marks(self, sentences: Iterable[str]) -> tuple[int, ...]:
        for sentence in sentences:
            if sentence not in self.sentences:
                self.sentences.append(sentence)
        return tuple(sorted({self.sentences.index(sentence) + 1 for sentence in sentences}))


def word(text: str) -> Entry:
    return Entry(text)
