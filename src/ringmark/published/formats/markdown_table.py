"""Markdown tables of results: rows that begin and end with |, under a header and an alignment row.

The end of a row is printed, so a row without its last | was cut and is refused.
"""

from __future__ import annotations

import re

from ringmark.published.claim import Claim
from ringmark.published.columns import Column, header, read_row
from ringmark.published.document import Document
from ringmark.published.formats.log_table import row_claims
from ringmark.published.source import Line

ORDER = 30
FORMAT = "markdown_table"
_ALIGNMENT = re.compile(r"\s*\|(\s*:?-+:?\s*\|)+\s*\Z")


class Reader:
    """The Markdown tables of a page."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.columns: list[Column] | None = None
        self.aligned = False
        self.label: str | None = None
        self.table_line = 0

    def take(self, line: Line) -> list[Claim] | None:
        text = line.text.strip()
        if not text.startswith("|"):
            self.columns = None  # anything else ends a Markdown table
            return None
        cells = [cell.strip() for cell in text.strip("|").split("|")]
        if _ALIGNMENT.match(text):
            return self._alignment(line, cells)
        found = header(line, cells)
        if found is not None:
            if not text.endswith("|"):
                raise line.error("the header does not end with |: the line is cut; restore it")
            self.columns, self.aligned, self.table_line = found, False, line.number
            self.label = self.document.take_title()
            return []
        if self.columns is None:
            return None
        if not text.endswith("|") or not self.aligned:
            raise line.error("a table row that is cut, or stands before the alignment row; restore the table")
        return self._row(line, self.columns, cells)

    def close(self) -> None:
        """A table needs no end: each row stands for itself."""

    def _alignment(self, line: Line, cells: list[str]) -> list[Claim]:
        if self.columns is not None:
            if len(cells) != len(self.columns) or self.aligned:
                raise line.error("the alignment row does not fit the header above it; restore the table")
            self.aligned = True
        return []

    def _row(self, line: Line, columns: list[Column], cells: list[str]) -> list[Claim]:
        fields, results = read_row(line, columns, cells, strict=False)
        label = fields["options"].get("ring_type", self.label)
        return row_claims(line, self.document, FORMAT, columns, fields, results, label, self.table_line)
