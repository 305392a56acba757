"""Logs and pages in, claims out: every line goes to the formats in turn, and none is guessed at.

A line is read by the format that knows it, or listed as skipped, or refused with its file and line. Lines of
different hosts are read apart, so that interleaved output of several nodes cannot mix.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from types import ModuleType
from typing import Any

from ringmark.errors import UserError
from ringmark.published import formats
from ringmark.published.claim import Claim
from ringmark.published.document import Document, Skipped
from ringmark.published.source import MAX_LINE_CHARS, Line, parse_lines, read_lines

_DECORATION = re.compile(r"[\s=\-_*#.]*\Z")


@dataclass(frozen=True)
class Ingested:
    """What was read of the files: the claims, and the lines passed over."""

    claims: tuple[Claim, ...]
    skipped: tuple[Skipped, ...]


@lru_cache(maxsize=1)
def known_formats() -> tuple[ModuleType, ...]:
    """The files of published/formats, in the order in which they are asked."""
    names = [info.name for info in pkgutil.iter_modules(formats.__path__)]
    modules = [importlib.import_module(f"{formats.__name__}.{name}") for name in names]
    return tuple(sorted(modules, key=lambda module: module.ORDER))


def ingest_files(paths: Sequence[Path]) -> Ingested:
    """The claims of the files, in the order of the files and their lines."""
    names = [path.name for path in paths]
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"two files are called {name}: a claim's source would be unclear; rename one")
    parts = [ingest_lines(read_lines(path), path.name) for path in paths]
    return Ingested(
        tuple(claim for part in parts for claim in part.claims),
        tuple(skip for part in parts for skip in part.skipped),
    )


def ingest_bytes(data: bytes, name: str) -> Ingested:
    return ingest_lines(parse_lines(data, name), name)


def ingest_lines(lines: Iterable[Line], name: str) -> Ingested:
    """The claims of one file's lines."""
    document = Document(name)
    readers: dict[str | None, list[Any]] = {}
    claims: list[Claim] = []
    for line in lines:
        if line.host not in readers:
            readers[line.host] = [module.Reader(document) for module in known_formats()]
        claims.extend(_take(line, document, readers[line.host]))
    for reader in (each for group in readers.values() for each in group):
        reader.close()
    return Ingested(tuple(claims), tuple(sorted(document.skipped, key=lambda skip: skip.source_line)))


def _take(line: Line, document: Document, readers: list[Any]) -> list[Claim]:
    if not line.whole:
        document.skip(line, "the file ends inside this line; add a newline if it is whole")
        return []
    if len(line.text) > MAX_LINE_CHARS:
        document.skip(line, f"longer than {MAX_LINE_CHARS} characters")
        return []
    heading = document.note_heading(line)
    for reader in readers:
        try:
            claims = reader.take(line)
        except ValueError as error:  # a claim that breaks the law of claims
            raise line.error(f"{error}; correct the line") from None
        if claims is not None:
            return list(claims)
    if heading and re.search(r"\b[0-9]+\b", line.text):
        document.skip(line, "a heading whose numbers no format reads")
    elif not heading and not _DECORATION.match(line.text):
        document.skip(line, "no known format")
    return []
