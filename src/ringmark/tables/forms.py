"""The forms that this field publishes its results in, filled from anything that gives runs of named fields.

A run is a mapping from a field's name to its text; what is unknown is said so. The forms themselves are
data (data/forms.yaml); runs come from our records (`runs.py`) and from published claims (`claimed.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from ringmark import schema, yamlfile
from ringmark.errors import UserError, nearest
from ringmark.tables.numbers import decimals, fixed
from ringmark.tables.table import Entry, Table

Run = Mapping[str, "str | float"]
UNSAID = "not said"


@dataclass(frozen=True)
class FormColumn:
    head: str
    field: str
    decimals: int | None = None


@dataclass(frozen=True)
class Form:
    """A published form: its columns, and whether it has a row for each phase."""

    title: str
    columns: list[FormColumn]
    by_phase: bool = False


@dataclass(frozen=True)
class Forms:
    """What data/forms.yaml holds."""

    forms: dict[str, Form]


@cache
def forms() -> dict[str, Form]:
    """The forms there are, by name."""
    return schema.load(Forms, yamlfile.packaged("data/forms.yaml"), "data/forms.yaml").forms


def form(name: str) -> Form:
    if name not in forms():
        raise UserError(f"there is no form {name!r}: {nearest(name, forms())}")
    return forms()[name]


def form_table(name: str, runs: Sequence[Run], table_name: str, title: str) -> Table:
    """Runs laid out in a form; a field that a run does not have is 'not said'."""
    shape = form(name)
    rows = [tuple(_entry(column, run.get(column.field)) for column in shape.columns) for run in runs]
    return Table(table_name, title, tuple(column.head for column in shape.columns), tuple(rows))


def _entry(column: FormColumn, value: str | float | None) -> Entry:
    text = text_of(column, value)
    is_figure = column.decimals is not None and text.replace(".", "", 1).isdecimal()
    return Entry(text, is_number=is_figure)


def text_of(column: FormColumn, value: str | float | None) -> str:
    """A number with the form's decimals, or as many as 3 digits of it need; a text as it is."""
    if value is None or value == "":
        return UNSAID
    if isinstance(value, float) and column.decimals is not None:
        return fixed(value, max(column.decimals, decimals([value], digits=3)))
    return str(value)


def texts(name: str, run: Run) -> dict[str, str]:
    """A run's texts by field, as the form prints them: for templates that lay a form out as plain text."""
    return {column.field: text_of(column, run.get(column.field)) for column in form(name).columns}
