"""A table as LaTeX: booktabs rules, numbers aligned by siunitx, words in braces, notes below it."""

from __future__ import annotations

import re

from ringmark.tables.table import Entry, Table

_SPECIAL = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "×": r"$\times$",
    "²": r"$^2$",
    "–": "--",
}


def escape(text: str) -> str:
    """Text as LaTeX prints it; what its fonts may lack becomes a question mark."""
    known = "".join(_SPECIAL.get(letter, letter) for letter in text)
    return known.encode("latin-1", "replace").decode("latin-1")


def table_text(table: Table) -> str:
    """A tabular in a threeparttable-free form: it needs booktabs and siunitx alone."""
    lines = [
        f"% {table.title}",
        r"\begin{tabular}{" + _columns(table) + "}",
        r"\toprule",
        " & ".join(_header(table)) + r" \\",
        r"\midrule",
    ]
    for i, row in enumerate(table.rows):
        if table.last_is_apart and i == len(table.rows) - 1 and i > 0:
            lines.append(r"\midrule")
        cells = [escape(row[0].text)]
        for entry, wide in zip(row[1:], _has_interval(table)):
            cells += _cells(entry, wide)
        lines.append(" & ".join(cells) + r" \\")
    lines += [r"\bottomrule", r"\end{tabular}"]
    for i, note in enumerate(table.notes, 1):
        lines.append(rf"\par\footnotesize\textsuperscript{{{i}}}~{escape(note)}")
    return "\n".join(lines) + "\n"


def _has_interval(table: Table) -> list[bool]:
    """For each column of figures, whether a second one for intervals stands beside it."""
    columns = range(1, len(table.header))
    return [any(row[i].interval or row[i].extra or row[i].marks for row in table.rows) for i in columns]


def _columns(table: Table) -> str:
    parts = ["l"]
    for i, wide in enumerate(_has_interval(table), 1):
        parts.append(f"S[table-format={_format(table, i)}]" + (r"@{\,}l" if wide else ""))
    return "".join(parts)


def _format(table: Table, column: int) -> str:
    numbers = [row[column].text for row in table.rows if row[column].is_number]
    whole = max((len(text.split(".")[0]) for text in numbers), default=1)
    places = max((len(text.partition(".")[2]) for text in numbers), default=0)
    return f"{whole}.{places}"


def _header(table: Table) -> list[str]:
    heads = [escape(table.header[0])]
    for head, wide in zip(table.header[1:], _has_interval(table)):
        text = escape(head)
        heads.append(rf"\multicolumn{{2}}{{c}}{{{text}}}" if wide else f"{{{text}}}")
    return heads


def _word(entry: Entry, wide: bool) -> str:
    """A word in the place of a number: over both of its columns, or in the braces that siunitx asks for."""
    raised = rf"\textsuperscript{{{','.join(map(str, entry.marks))}}}" if entry.marks else ""
    text = escape(entry.text) + raised
    return rf"\multicolumn{{2}}{{c}}{{{text}}}" if wide else f"{{{text}}}"


def _cells(entry: Entry, wide: bool) -> list[str]:
    if entry.is_number and re.fullmatch(r"-?\d+(\.\d+)?", entry.text):
        number = rf"\bfseries {entry.text}" if entry.best else entry.text
    else:
        return [_word(entry, wide)]
    if not wide:
        return [number]
    beside = " ".join(escape(part) for part in (entry.interval, entry.extra) if part)
    raised = ",".join(map(str, entry.marks))
    small = rf"{{\footnotesize {beside}}}" if beside else ""
    return [number, small + (rf"\textsuperscript{{{raised}}}" if raised else "")]
