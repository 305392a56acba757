"""Claims put back together: the row of one run, the table of several, the series along seqlen_global."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ringmark.published.claim import Claim

RUN_METRICS = ("time", "rate", "memory", "throughput")
_MS = {"s": 1e3, "ms": 1.0, "ms/iter": 1.0, "us": 1e-3}


class Span(NamedTuple):
    """A printed number and the interval of values that print as it does."""

    low: float
    mid: float
    high: float

    @property
    def relative_half_width(self) -> float:
        return (self.high - self.low) / 2 / self.mid if self.mid else float("inf")


def span(claim: Claim, scale: float = 1.0) -> Span:
    low, high = claim.bounds
    return Span(low * scale, (claim.value or 0.0) * scale, high * scale)


@dataclass(frozen=True, eq=False)
class Row:
    """The claims of one run in one place."""

    claims: tuple[Claim, ...]

    @property
    def first(self) -> Claim:
        return self.claims[0]

    @property
    def seqlen_global(self) -> int:
        return self.first.seqlen_global or 0

    @property
    def name(self) -> str:
        return self.first.label or f"the unnamed table at {self.first.source_file}:{self.first.table_line}"

    @property
    def where(self) -> list[str]:
        return sorted({claim.where for claim in self.claims}, key=lambda text: (len(text), text))

    @property
    def run(self) -> tuple[object, ...]:
        """What tells two runs of one document apart, besides their length and phase."""
        first = self.first
        return (first.label, tuple(sorted(first.options.items())), first.batch, first.dtype)

    def find(self, metric: str, phase: str | None = None) -> Claim | None:
        """The claim of a metric that has a value; with a phase, of that phase."""
        for claim in self.claims:
            if claim.metric == metric and claim.value is not None and phase in (None, claim.phase):
                return claim
        return None

    def time_ms(self, phase: str) -> Span | None:
        """The time of a phase; backward alone is forward + backward less forward."""
        claim = self.find("time", phase)
        if claim is not None:
            return span(claim, _MS[claim.unit or "ms"])
        if phase == "bwd":
            forward, both = self.time_ms("fwd"), self.time_ms("fwd_bwd")
            if forward and both:
                return Span(both.low - forward.high, both.mid - forward.mid, both.high - forward.low)
        return None


def rows_of(claims: Iterable[Claim]) -> list[Row]:
    """The rows, in the order of the files."""
    groups: dict[tuple[object, ...], list[Claim]] = defaultdict(list)
    for claim in claims:
        if claim.kind == "result" and claim.metric in RUN_METRICS and claim.seqlen_global:
            groups[claim.source_file, claim.log_host, claim.row_line].append(claim)
    return [Row(tuple(group)) for group in groups.values()]


@dataclass(frozen=True)
class Table:
    """Rows printed together: one table, or the blocks of one benchmark run."""

    rows: tuple[Row, ...]

    @property
    def where(self) -> str:
        lines = [claim.source_line for row in self.rows for claim in row.claims]
        name = self.rows[0].first.source_file
        return f"{name}:{min(lines)}" if min(lines) == max(lines) else f"{name}:{min(lines)}-{max(lines)}"

    @property
    def name(self) -> str:
        names = list(dict.fromkeys(row.name for row in self.rows))
        return ", ".join(names)


def tables_of(rows: Sequence[Row]) -> list[Table]:
    """The tables; Burst prints a block per length, so its blocks under one heading are one table."""
    groups: dict[tuple[object, ...], list[Row]] = defaultdict(list)
    for row in rows:
        first = row.first
        place = (first.section, first.label) if first.format == "burst_block" else (first.table_line,)
        groups[(first.source_file, first.log_host, first.format, *place)].append(row)
    return [Table(tuple(group)) for group in groups.values()]


@dataclass(frozen=True)
class Series:
    """The rows of one table that differ in seqlen_global alone, shortest first."""

    rows: tuple[Row, ...]
    table: Table

    @property
    def name(self) -> str:
        return self.rows[0].name + degrees(self.rows[0])


def degrees(row: Row) -> str:
    """The degrees of a row, where it has any, as they are spoken of."""
    names = [key for key in ("ulysses_degree", "ring_degree") if key in row.first.options]
    text = ", ".join(f"{key} {row.first.options[key]}" for key in names)
    return f" ({text})" if text else ""


def series_of(tables: Sequence[Table]) -> list[Series]:
    """The series, each once: a series repeated digit for digit in another table is left out."""
    found: list[Series] = []
    seen = set()
    for table in tables:
        groups: dict[tuple[object, ...], list[Row]] = defaultdict(list)
        for row in table.rows:
            own_phase = row.first.phase if row.first.format == "markdown_table" else None
            groups[(*row.run, own_phase)].append(row)
        for key, group in groups.items():
            ordered = tuple(sorted(group, key=lambda row: row.seqlen_global))
            content = (
                ordered[0].first.source_file,
                key,
                tuple(c.printed for row in ordered for c in row.claims),
            )
            if content not in seen:
                seen.add(content)
                found.append(Series(ordered, table))
    return found
