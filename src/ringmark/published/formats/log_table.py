"""The tables that benchmark scripts print: cells parted by |, between rules of = and -.

A narrow terminal wraps a rule's last signs onto a line of their own, without the node's prefix; such a line
is a rule too. Times, memory and rates are printed with two decimals, so a text with fewer was cut.
"""

from __future__ import annotations

import re
from typing import Any

from ringmark.published.claim import Claim
from ringmark.published.columns import Column, header, read_row
from ringmark.published.document import Document, claim_at
from ringmark.published.source import Line

ORDER = 20
FORMAT = "log_table"
_RULE = re.compile(r"\s*={2,}\s*\Z")
_WRAPPED_RULE = re.compile(r"\s*[=-]+\s*\Z")
_CAPTION = re.compile(r"\s*([A-Z][A-Za-z ]{2,60}):\s*\Z")


class Reader:
    """One host's tables."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.columns: list[Column] | None = None
        self.label: str | None = None
        self.table_line = 0
        self.rows = 0

    def take(self, line: Line) -> list[Claim] | None:
        text = line.text.strip()
        if _WRAPPED_RULE.match(text):
            if _RULE.match(text) and self.rows:
                self.columns = None  # the rule under the rows closes the table
            return []
        if _CAPTION.match(text) and text == "Benchmark Summary:":
            self.document.title = text.rstrip(":")
            return []
        if "|" not in text or text.startswith("|"):
            return None
        cells = [cell.strip() for cell in text.split("|")]
        found = header(line, cells)
        if found is not None:
            self.columns, self.rows, self.table_line = found, 0, line.number
            self.label = self.document.take_title()
            return []
        if self.columns is None:
            return None
        return self._row(line, self.columns, cells)

    def close(self) -> None:
        """A table needs no end: each row stands for itself."""

    def _row(self, line: Line, columns: list[Column], cells: list[str]) -> list[Claim]:
        fields, results = read_row(line, columns, cells, strict=True)
        self.rows += 1
        return row_claims(line, self.document, FORMAT, columns, fields, results, self.label, self.table_line)


def row_claims(
    line: Line,
    document: Document,
    format_name: str,
    columns: list[Column],
    fields: dict[str, Any],
    results: dict[int, str],
    label: str | None,
    table_line: int,
) -> list[Claim]:
    """The claims of one row, a claim for each result cell."""
    claims = []
    for position, printed in results.items():
        column = columns[position - 1]
        values = dict(fields)
        values["phase"] = column.phase or fields.get("phase")
        claims.append(
            claim_at(
                line,
                position,
                document,
                format_name,
                printed,
                metric=column.metric,
                unit=column.unit,
                label=label,
                column=column.name,
                row_line=line.number,
                table_line=table_line,
                **values,
            )
        )
    return claims
