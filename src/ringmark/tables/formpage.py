"""The page of published forms, filled from a campaign's records: a chapter per group, a part per method."""

from __future__ import annotations

from dataclasses import dataclass

from ringmark.tables.forms import form_table, texts
from ringmark.tables.group import Group, Line
from ringmark.tables.numbers import fixed
from ringmark.tables.page import group_title
from ringmark.tables.profiles import kernel_shares
from ringmark.tables.runs import has_degrees, runs
from ringmark.tables.table import Entry, Table, word


@dataclass(frozen=True)
class FormLine:
    """One method's results in every form that fits it."""

    label: str
    method: str
    evaluation: Table
    log: Table
    sp_log: Table
    burst_runs: list[dict[str, str]]
    burst_missing: list[str]  # that tool prints nothing of a run that fails
    report: dict[str, str] | None  # of the longest cell that passed both phases


@dataclass(frozen=True)
class FormGroup:
    title: str
    lines: list[FormLine]
    degrees: Table | None  # one table for all methods that have degrees

    together: list[Table]  # each form once, its systems in a first column: for LaTeX and CSV

    @property
    def tables(self) -> list[Table]:
        return self.together + ([self.degrees] if self.degrees else [])


def form_groups(closed: list[Group]) -> list[FormGroup]:
    """The groups of a campaign, without the open ones: a form names one kernel."""
    return [_form_group(group) for group in closed if not group.open]


def _form_group(group: Group) -> FormGroup:
    lines = [_form_line(group, line) for line in group.lines]
    split = [run for line in group.lines if has_degrees(line) for run in runs(group, line, "degrees")]
    name = f"{group.slug}-form-degrees"
    degrees = form_table("degrees", split, name, "ring type and degrees") if split else None
    together = [_together(f"{group.slug}-form-{form}", form, lines) for form in ("evaluation", "log")]
    return FormGroup(group_title(group), lines, degrees, together)


def _together(name: str, form: str, lines: list[FormLine]) -> Table:
    """One table of all methods in a form."""
    parts = [(line.label, getattr(line, form)) for line in lines]
    rows = [(word(label), *row) for label, table in parts for row in table.rows]
    return Table(name, f"{form}, all systems", ("System", *parts[0][1].header), tuple(rows))


def _form_line(group: Group, line: Line) -> FormLine:
    def table(form: str) -> Table:
        name = f"{group.slug}-form-{form}-{_plain(line.row)}".replace("_", "-")
        return form_table(form, runs(group, line, form), name, line.label)

    shown = [texts("burst", run) for run in runs(group, line, "burst")]
    whole = [run for run in shown if run["fwd_bwd_s"][0].isdigit() and run["fwd_s"][0].isdigit()]
    missing = [
        f"{run['seqlen_global']}: forward {_word_of(run['fwd_s'])}, "
        f"forward + backward {_word_of(run['fwd_bwd_s'])}"
        for run in shown
        if run not in whole
    ]
    tables = table("evaluation"), table("log"), table("sp_log")
    return FormLine(line.label, line.method, *tables, whole, missing, _report(group, line))


def _report(group: Group, line: Line) -> dict[str, str] | None:
    """The configuration and performance of one cell; the kernels' shares where it was profiled."""
    passed = [
        seqlen
        for seqlen in group.seqlens_global
        if all((p := line.points.get((phase, seqlen))) and p.passed for phase in ("fwd", "fwd_bwd"))
    ]
    if not passed:
        return None
    longest = max(passed)
    run = next(run for run in runs(group, line, "log") if run["seqlen_global"] == str(longest))
    shares = kernel_shares(line.points[("fwd_bwd", longest)])
    row = group.sample
    return {
        **texts("log", run),
        "num_heads_q": str(row.num_heads_q),
        "num_heads_kv": str(row.num_heads_kv),
        "head_dim": str(row.head_dim),
        "mask": row.mask,
        "world_size": str(row.world_size),
        "attention_percent": fixed(100 * shares["attention"], 2) if shares else "",
        "send_recv_percent": fixed(100 * shares["send_recv"], 2) if shares else "",
    }


def _word_of(text: str) -> str:
    return "passed" if text[0].isdigit() else text


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
