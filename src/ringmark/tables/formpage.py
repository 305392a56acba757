"""The page of published forms, filled from a campaign's records: a chapter per group, a part per method."""

from __future__ import annotations

from dataclasses import dataclass

from ringmark.tables.forms import form_table, texts
from ringmark.tables.group import Group, Line
from ringmark.tables.page import group_title
from ringmark.tables.runs import has_degrees, runs
from ringmark.tables.table import Entry, Table


@dataclass(frozen=True)
class FormLine:
    """One method's results in every form that fits it."""

    label: str
    method: str
    evaluation: Table
    log: Table
    sp_log: Table
    burst_runs: list[dict[str, str]]


@dataclass(frozen=True)
class FormGroup:
    title: str
    lines: list[FormLine]
    degrees: Table | None  # one table for all methods that have degrees

    @property
    def tables(self) -> list[Table]:
        made = [table for line in self.lines for table in (line.evaluation, line.log, line.sp_log)]
        return made + ([self.degrees] if self.degrees else [])


def form_groups(closed: list[Group]) -> list[FormGroup]:
    """The groups of a campaign, without the open ones: a form names one kernel."""
    return [_form_group(group) for group in closed if not group.open]


def _form_group(group: Group) -> FormGroup:
    lines = [_form_line(group, line) for line in group.lines]
    split = [run for line in group.lines if has_degrees(line) for run in runs(group, line, "degrees")]
    name = f"{group.slug}-form-degrees"
    degrees = form_table("degrees", split, name, "ring type and degrees") if split else None
    return FormGroup(group_title(group), lines, degrees)


def _form_line(group: Group, line: Line) -> FormLine:
    def table(form: str) -> Table:
        name = f"{group.slug}-form-{form}-{_plain(line.row)}".replace("_", "-")
        return form_table(form, runs(group, line, form), name, line.label)

    burst_runs = [texts("burst", run) for run in runs(group, line, "burst")]
    return FormLine(line.label, line.method, table("evaluation"), table("log"), table("sp_log"), burst_runs)


def _plain(row: str) -> str:
    return row.replace("+", "-").replace("=", "-")


def rules_text(table: Table, width: int = 120) -> str:
    """A table as a benchmark log prints it: centred columns between rules."""
    rows = [list(table.header), *([_text(entry) for entry in row] for row in table.rows)]
    widths = [max(len(row[i]) for row in rows) + 2 for i in range(len(table.header))]
    lines = ["|".join(text.center(size) for text, size in zip(row, widths)).rstrip() for row in rows]
    rule = "=" * width
    return "\n".join([rule, lines[0], "-" * width, *lines[1:], rule])


def _text(entry: Entry) -> str:
    return entry.text
