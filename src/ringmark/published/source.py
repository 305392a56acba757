"""A log as numbered lines: prefixes, colours and line ends taken off, nothing else touched."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ringmark.errors import UserError

MAX_FILE_BYTES = 64 * 2**20
MAX_LINE_CHARS = 20_000
# What srun -l, pdsh and clush put before a line: a rank, or a node's name ending in digits.
_PREFIX = re.compile(r"(?P<host>[A-Za-z][A-Za-z_-]{0,30}[0-9]{1,6}|[0-9]{1,6}): ?")
_COLOUR = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")


@dataclass(frozen=True)
class Line:
    """One line of a file, without its prefix."""

    file: str
    number: int
    host: str | None
    text: str
    whole: bool = True  # False where the file ends inside the line

    @property
    def where(self) -> str:
        return f"{self.file}:{self.number}"

    def error(self, sentence: str) -> UserError:
        return UserError(f"{self.where}: {sentence}")


def parse_lines(data: bytes, name: str) -> list[Line]:
    """The lines of a file's bytes; only a newline ends a line, as in every log that is read here."""
    if len(data) > MAX_FILE_BYTES:
        raise UserError(
            f"{name}:1: {len(data)} bytes is more than a log of results: cut it to the part you mean"
        )
    pieces = data.split(b"\n")
    lines = []
    for number, piece in enumerate(pieces, 1):
        last = number == len(pieces)
        if last and not piece:
            break
        try:
            text = piece.decode("utf-8").rstrip("\r")
        except UnicodeDecodeError:
            raise UserError(f"{name}:{number}: this line is not UTF-8 text; convert the file") from None
        text = _COLOUR.sub("", text)
        found = _PREFIX.match(text)
        host, rest = (found["host"], text[found.end() :]) if found else (None, text)
        lines.append(Line(name, number, host, rest, whole=not last))
    return lines


def read_lines(path: Path) -> list[Line]:
    try:
        return parse_lines(path.read_bytes(), path.name)
    except OSError as error:
        raise UserError(f"cannot read {path}: {error.strerror}; name a log that exists") from None
