"""The page of a campaign: its groups with their tables, and what stands under them, ready to be laid out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ringmark import catalog, schema, yamlfile
from ringmark.cell import parse_row
from ringmark.errors import nearest
from ringmark.flops import FORMULA
from ringmark.tables import comparison, facts, profiles, verdicts
from ringmark.tables.collect import Collected
from ringmark.tables.group import PHASE_TITLES, Group
from ringmark.tables.table import Table
from ringmark.tables.verdicts import VerdictView


@dataclass(frozen=True)
class PhaseView:
    title: str
    tables: tuple[Table, ...]


@dataclass(frozen=True)
class GroupView:
    """A group as a page shows it."""

    title: str
    kind: str  # one sentence: closed, open, or why it is neither
    phases: tuple[PhaseView, ...]

    @property
    def tables(self) -> tuple[Table, ...]:
        return tuple(table for phase in self.phases for table in phase.tables)


@dataclass(frozen=True)
class Page:
    """Everything that campaign.md.j2 prints."""

    name: str
    title: str
    summary: str
    groups: tuple[GroupView, ...]
    formula: str
    protocol: facts.Facts
    machine: facts.Facts
    links: facts.Facts
    ran_header: tuple[str, ...]
    ran_lines: list[list[str]]
    verdicts: VerdictView | None

    @property
    def tables(self) -> tuple[Table, ...]:
        return tuple(table for group in self.groups for table in group.tables)


@dataclass(frozen=True)
class Block:
    """A block of Markdown files: its template, and the campaigns of which it shows the first there is."""

    kind: str
    campaigns: list[str]


@dataclass(frozen=True)
class Choices:
    """What data/tables.yaml holds."""

    speedup_bases: list[str]
    blocks: dict[str, Block]

    def __post_init__(self) -> None:
        known = catalog.method_names()
        for base in self.speedup_bases:
            method, _ = parse_row(base)
            if method not in known:
                raise ValueError(f"speedup_bases: there is no method {method!r}; {nearest(method, known)}")


def choices() -> dict[str, Any]:
    """What a table shows where there is a choice (data/tables.yaml)."""
    where = "data/tables.yaml"
    found: dict[str, Any] = schema.dump(schema.load(Choices, yamlfile.packaged(where), where))
    return found


def page(collected: Collected, found: list[Group]) -> Page:
    """The page of a campaign's rows, in their groups."""
    bases = choices()["speedup_bases"]
    config = collected.campaign.beside("campaign.json") or {}
    ran_header, ran_lines = facts.what_ran(collected.rows)
    return Page(
        name=collected.campaign.name,
        title=str(config.get("title") or collected.campaign.name),
        summary=facts.summary(collected),
        groups=tuple(group_view(group, bases) for group in found),
        formula=FORMULA,
        protocol=facts.protocol(collected.rows),
        machine=facts.machine(collected.environments, collected.rows),
        links=facts.links(collected.campaign.beside("preflight.json")),
        ran_header=ran_header,
        ran_lines=ran_lines,
        verdicts=verdicts.given(collected.rows, collected.campaign.folder.parent),
    )


def group_view(group: Group, bases: list[str]) -> GroupView:
    phases = []
    for phase in group.phases():
        tables = [comparison.rates(group, phase), comparison.times(group, phase)]
        if phase == "fwd_bwd":
            faster = comparison.speedups(group, phase, bases)
            tables += [faster] if faster else []
        if phase != "bwd":
            tables.append(comparison.memory(group, phase))
            where = profiles.where_time_goes(group, phase)
            tables += [where] if where else []
        phases.append(PhaseView(PHASE_TITLES[phase], tuple(tables)))
    return GroupView(group_title(group), kind(group), tuple(phases))


def group_title(group: Group) -> str:
    row = group.sample
    heads = f"{row.num_heads_q} heads"
    if row.num_heads_kv != row.num_heads_q:
        heads += f", {row.num_heads_kv} of keys and values"
    kernel = "each method's best kernel" if group.open else f"kernel {group.kernel}"
    where = f"{row.nodes} x {row.gpus} ranks"
    return f"batch {row.batch}, {heads} of size {row.head_dim}, {row.dtype}, {row.mask}; {where}; {kernel}"


def kind(group: Group) -> str:
    """Whether the rows may be held against each other and why, how often cells were tried, and by what."""
    return " ".join(filter(None, (_kind(group), _ours(group), _repeats(group), _programs(group))))


def _ours(group: Group) -> str:
    """Rows bear the names of published methods; whose code ran is said here."""
    names = dict.fromkeys(line.label.split(" (")[0] for line in group.lines if line.is_ours)
    return f"ringmark's own implementations: {', '.join(names)}." if names else ""


def _programs(group: Group) -> str:
    found = group.programs
    return f"Measured by ringmark {found[0]} where no note names another." if len(found) > 1 else ""


def _repeats(group: Group) -> str:
    counts = group.repeats
    if counts == [1]:
        return "Every cell was tried once."
    if len(counts) == 1:
        return f"Every cell was tried {counts[0]} times."
    if counts[0] == 1:
        return "A cell without a note of its repeats was tried once."
    return "Cells were tried as often as their notes say."


def _kind(group: Group) -> str:
    ran = ", ".join(f"{kernel} ({'; '.join(found)})" for kernel, found in group.kernels_ran.items()) or "none"
    if group.open:
        kernel = "the fastest kernel it was tried with"
        taken = f"with {kernel}, and with options where they make it faster by what bold asks for"
        return f"Open: each method {taken}, named in the notes. What ran: {ran}."
    if group.closed:
        return f"Closed: every row ran the kernel {ran}, on one kind of device."
    if not group.kernels_ran:
        return "Nothing passed here."
    return f"Not closed: the rows did not all run one kernel on one kind of device ({ran})."
