"""A table as Markdown that also reads well as plain text: columns padded to one width."""

from __future__ import annotations

from collections.abc import Sequence

from ringmark.tables.table import Entry, Table

_RAISED = str.maketrans("0123456789", "⁰¹²³⁴⁵⁶⁷⁸⁹")


def table_text(table: Table) -> str:
    """The table, and its notes below it."""
    lines = grid_text(table.header, [[entry_text(entry) for entry in row] for row in table.rows])
    if table.notes:
        lines += ["", *notes_text(table)]
    return "\n".join(lines)


def grid_text(header: Sequence[str], rows: Sequence[Sequence[str]], words: bool = False) -> list[str]:
    """Plain cells as the lines of a Markdown table: words to the left, figures to the right."""
    texts = [[escape(text) for text in row] for row in [list(header), *rows]]
    widths = [max(3, *(len(row[i]) for row in texts)) for i in range(len(header))]
    sides = [str.ljust] + [str.ljust if words else str.rjust] * (len(header) - 1)
    lines = ["| " + " | ".join(side(t, w) for side, t, w in zip(sides, row, widths)) + " |" for row in texts]
    rule = ["-" * widths[0], *("-" * (width - 1) + ("-" if words else ":") for width in widths[1:])]
    lines.insert(1, "| " + " | ".join(rule) + " |")
    return lines


def entry_text(entry: Entry) -> str:
    number = f"**{entry.text}**" if entry.best else entry.text
    parts = [number, entry.interval, entry.extra, marks_text(entry.marks)]
    return " ".join(part for part in parts if part)


def marks_text(marks: tuple[int, ...]) -> str:
    return "˒".join(str(mark).translate(_RAISED) for mark in marks)


def notes_text(table: Table) -> list[str]:
    # Two spaces at the end: a line of its own, without a list's indentation.
    return [f"{marks_text((i,))} {escape(note)}  " for i, note in enumerate(table.notes, 1)]


def escape(text: str) -> str:
    """Text that cannot end a cell or start markup of its own."""
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())
