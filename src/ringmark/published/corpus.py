"""All claims at once, arranged for the rules: rows, tables, series, shapes, and the phases of rates."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ringmark.published.claim import Claim
from ringmark.published.fit import Reading, Shape, rate_of, read_table, said_shape
from ringmark.published.rows import Row, Series, Table, rows_of, series_of, tables_of

FITTED = 0.003  # two shape constants nearer than this are one
FINE = 0.01  # half the width of a printed number over the number


@dataclass(frozen=True)
class Corpus:
    """What the rules of the audit look at."""

    claims: Sequence[Claim]

    @cached_property
    def files(self) -> list[str]:
        return list(dict.fromkeys(claim.source_file for claim in self.claims))

    @cached_property
    def rows(self) -> list[Row]:
        return rows_of(self.claims)

    @cached_property
    def tables(self) -> list[Table]:
        return tables_of(self.rows)

    @cached_property
    def series(self) -> list[Series]:
        return series_of(self.tables)

    @cached_property
    def shapes(self) -> list[Shape]:
        """The shapes that some row says in full, each once."""
        found: dict[tuple[object, ...], Shape] = {}
        for row in self.rows:
            shape = said_shape(row)
            if shape is not None:
                key = (shape.num_heads_q, shape.head_dim, shape.causal, shape.world_size)
                found.setdefault(key, shape)
        return list(found.values())

    @cached_property
    def readings(self) -> list[tuple[Table, Reading]]:
        """Each table that has rates beside times, with the reading of them."""
        pairs = [(table, read_table(table, self.shapes)) for table in self.tables]
        return [(table, reading) for table, reading in pairs if reading is not None]

    @cached_property
    def phase_of_column(self) -> dict[str, tuple[str, str]]:
        """A rate column's phase by its name, where every table that has times agrees: (phase, where)."""
        seen: dict[str, dict[str, str]] = {}
        for table, reading in self.readings:
            if reading.phase not in (None, "said") and reading.common:
                column = reading.spans[0][1].column or ""
                seen.setdefault(column, {}).setdefault(str(reading.phase), table.where)
        return {column: next(iter(found.items())) for column, found in seen.items() if len(found) == 1}

    def phase(self, claim: Claim) -> tuple[str | None, str]:
        """(phase, how it is known) of a claim: said, or fitted from the column of that name."""
        if claim.phase is not None or claim.metric != "rate":
            return claim.phase, "said"
        found = self.phase_of_column.get(claim.column or "")
        if found is None:
            return None, "unsaid"
        return found[0], f"column {claim.column!r} agrees with that phase's time at {found[1]}"

    @cached_property
    def _constants(self) -> dict[Row, float]:
        """K of each row's table, where its rates and times share one."""
        return {
            row: (reading.common[0] + reading.common[1]) / 2
            for table, reading in self.readings
            if reading.common
            for row in table.rows
        }

    def constant(self, row: Row) -> float | None:
        """K of a row's table, where its rates and times share one."""
        return self._constants.get(row)

    def work(self, row: Row, phase: str, constant: float) -> float:
        """What a rate in TFLOP/s is divided into to give a time in ms."""
        return rate_of(constant, 1.0, row.seqlen_global, row.first.batch or 1, phase)

    def fine_time_ms(self, row: Row, phase: str) -> float | None:
        """A row's time: as printed, or from its rate where the printed time has too few digits to compare."""
        time = row.time_ms(phase)
        if time is not None and time.relative_half_width < FINE:
            return time.mid
        rate, constant = row.find("rate", phase), self.constant(row)
        if rate is None or rate.value is None or constant is None:
            return None
        return self.work(row, phase, constant) / rate.value

    def fitted_shape(self, row: Row) -> Shape | None:
        """The shape, said in full elsewhere, that a row's rate and time agree with."""
        constant = self.constant(row)
        if constant is None:
            return None
        return next((s for s in self.shapes if abs(s.constant / constant - 1) < FITTED), None)

    def contradicts_shape(self, row: Row) -> bool:
        """Whether a row's rate and time agree with another shape than the one printed beside them."""
        first, constant = row.first, self.constant(row)
        heads, dim, world = first.num_heads_q, first.head_dim_known, first.world_known
        if row not in self._paired:
            return False
        if constant is None:
            return True
        if heads is None or dim is None or world is None:
            return False
        masks = (0.5, 1.0) if first.causal is None else (0.5 if first.causal else 1.0,)
        return all(abs(heads * dim * mask / world / constant - 1) >= FITTED for mask in masks)

    @cached_property
    def _paired(self) -> set[Row]:
        """The rows whose table has rates beside times."""
        return {row for _, reading in self.readings for row, _, _ in reading.spans}

    def settings(self, source_file: str, metric: str) -> list[Claim]:
        return [
            c for c in self.claims if (c.source_file, c.metric, c.kind) == (source_file, metric, "setting")
        ]
