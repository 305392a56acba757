"""The published claims as a page and as tables: each document's tables in their forms, digit for digit."""

from __future__ import annotations

from dataclasses import dataclass

from ringmark.published.claim import Claim
from ringmark.published.profile import Profile, profiles_of
from ringmark.tables import claimed
from ringmark.tables.forms import form_table
from ringmark.tables.table import Entry, Table, word


@dataclass(frozen=True)
class ReportView:
    """A published report of one cell: what it prints, line by line."""

    title: str
    source: str
    lines: list[list[str]]


@dataclass(frozen=True)
class SourcedTable:
    """A table, with the place that it was read from."""

    source: str
    table: Table

    @property
    def title(self) -> str:
        return self.table.title


@dataclass(frozen=True)
class PublishedPage:
    """What published.md.j2 prints."""

    count: int
    sources: list[str]
    tables: list[SourcedTable]
    reports: list[ReportView]
    profiles: list[SourcedTable]

    @property
    def all_tables(self) -> list[Table]:
        return [sourced.table for sourced in (*self.tables, *self.profiles)]


def page(claims: list[Claim]) -> PublishedPage:
    """The page of all claims."""
    tables = []
    for found in claimed.tables(claims):
        name = "published-" + "-".join(found.where.replace(".txt", "").replace("_", "-").split(":"))
        tables.append(SourcedTable(found.where, form_table(found.form, found.runs, name, found.title)))
    reports = [_report(lines) for lines in claimed.reports(claims)]
    profiles = [_profile(profile) for profile in profiles_of(claims)]
    sources = list(dict.fromkeys(claim.source_file for claim in claims))
    return PublishedPage(len(claims), sources, tables, reports, profiles)


def _report(lines: list[Claim]) -> ReportView:
    printed = [[line.column or line.metric, f"{line.printed} {line.unit or ''}".strip()] for line in lines]
    places = [line.source_line for line in lines]
    where = f"{lines[0].source_file}:{min(places)}-{max(places)}"
    return ReportView(lines[0].label or "report", where, printed)


def _profile(profile: Profile) -> SourcedTable:
    columns = list(dict.fromkeys(claim.column or "" for row in profile.rows for claim in row.claims.values()))
    rows = []
    for row in profile.rows:
        by_column = {claim.column: claim for claim in row.claims.values()}
        rows.append((word(row.item), *(_cell(by_column.get(column)) for column in columns)))
    name = "published-profile-" + profile.where.replace(".txt", "").replace("_", "-").replace(":", "-")
    return SourcedTable(profile.where, Table(name, "profile", ("Name", *columns), tuple(rows)))


def _cell(claim: Claim | None) -> Entry:
    """A number with its unit, as a profiler prints it."""
    return word("not said") if claim is None else word(f"{claim.printed}{claim.unit or ''}")
