"""A table as CSV: each column of figures with its interval's ends and what stands beside it."""

from __future__ import annotations

import csv
import io
import re

from ringmark.tables.table import Entry, Table


def table_text(table: Table) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    wide = [any(row[i].interval for row in table.rows) for i in range(len(table.header))]
    extra = [any(row[i].extra for row in table.rows) for i in range(len(table.header))]
    heads: list[str] = []
    for i, name in enumerate(table.header):
        heads += [name, *([f"{name} low", f"{name} high"] if wide[i] else [])]
        heads += [f"{name} beside"] if extra[i] else []
    writer.writerow(heads)
    for row in table.rows:
        cells: list[str] = []
        for i, entry in enumerate(row):
            cells += [entry.text, *(_ends(entry) if wide[i] else [])]
            cells += [entry.extra or "none"] if extra[i] else []
        writer.writerow(cells)
    return out.getvalue()


def _ends(entry: Entry) -> list[str]:
    ends = re.findall(r"-?\d+(?:\.\d+)?", entry.interval)
    return [ends[0], ends[-1]] if ends else ["none", "none"]
