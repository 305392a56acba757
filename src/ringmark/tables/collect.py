"""Collect: every record of a campaign, read under the status law, as one tidy table (cells.csv, Parquet).

The same records give the same bytes. A record that cannot be read stops the collection with one sentence,
and what was collected before stays as it was.
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ringmark import campaign_check
from ringmark import record as records
from ringmark.campaign_finding import Finding
from ringmark.campaign_refused import refuse
from ringmark.errors import UserError
from ringmark.record import Record
from ringmark.tables.bound import join_bounds
from ringmark.tables.campaign import Campaign
from ringmark.tables.cellrow import COLUMNS, CellRow, from_record

_MANY = 1500  # records from which a second process pays for its start
_NODE_STATE = ("before", "after")  # clocks and temperatures: they differ from record to record


@dataclass(frozen=True)
class Collected:
    """A campaign's rows in their fixed order, and the environments that they name."""

    campaign: Campaign
    rows: list[CellRow]
    environments: dict[str, dict[str, Any]]
    notes: tuple[str, ...] = ()  # what the check found worth knowing


def collect(campaign: Campaign) -> Collected:
    """Read every record of the campaign; nothing is written."""
    return _collected(campaign, _read_all(campaign, check=False))


def checked(campaign: Campaign) -> Collected:
    """The same for a campaign that `ringmark check` lets pass; tables are made of no other.

    One reading serves both: a record's samples are looked at where it is read, and left behind there.
    """
    parts = _read_all(campaign, check=True)
    findings = [finding for part in parts for finding in part.findings]
    findings += campaign_check.together(
        campaign.folder, [record for part in parts for record in part.records]
    )
    problems = [finding for finding in findings if finding.is_problem]
    refuse(campaign.folder, problems)
    return replace(_collected(campaign, parts), notes=tuple(map(str, findings)))


@dataclass
class _Part:
    """What one process read."""

    rows: list[CellRow] = field(default_factory=list)
    environments: dict[str, dict[str, Any]] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    records: list[tuple[str, Record]] = field(default_factory=list)  # without their samples


def _collected(campaign: Campaign, parts: list[_Part]) -> Collected:
    rows = [row for part in parts for row in part.rows]
    environments = {name: found for part in parts for name, found in part.environments.items()}
    join_bounds(rows)
    rows.sort(key=_order)
    return Collected(campaign, rows, dict(sorted(environments.items())))


def _read_all(campaign: Campaign, *, check: bool) -> list[_Part]:
    files = campaign.record_files()
    if not files:
        raise UserError(f"{campaign.folder} has no records yet: run its cells first")
    workers = min(os.cpu_count() or 1, 4)
    if len(files) < _MANY or workers == 1:
        return [_read_part(campaign.folder, files, check)]
    size = -(-len(files) // (workers * 4))
    parts = [files[start : start + size] for start in range(0, len(files), size)]
    with ProcessPoolExecutor(workers) as pool:
        return list(pool.map(_read_part, [campaign.folder] * len(parts), parts, [check] * len(parts)))


def _read_part(folder: Path, files: Sequence[Path], check: bool) -> _Part:
    part = _Part()
    for path in files:
        found = records.read(folder / path)
        if found.path != path:
            raise UserError(
                f"{folder / path} is the record of {found.path}: move it there or delete it, then try again"
            )
        lasting = _lasting(found.environment)
        text = json.dumps(lasting, sort_keys=True)
        name = hashlib.sha256(text.encode()).hexdigest()[:12]
        known = part.environments.setdefault(name, lasting)
        part.rows.append(from_record(found, name))
        if check:
            part.findings += campaign_check.alone(path.as_posix(), found)
            part.records.append((path.as_posix(), _without_samples(found, known)))
    return part


def _without_samples(found: Record, environment: dict[str, Any]) -> Record:
    """A record light enough to go from one process to another."""
    timing = found.timing
    if timing is not None:
        series = {name: replace(one, samples_ms=[], wall_ms=[]) for name, one in timing.series.items()}
        timing = replace(timing, series=series)
    return replace(found, timing=timing, environment=environment, profile=None)


def _lasting(value: Any) -> Any:
    """An environment without what changes from one cell to the next, so that equal machines are equal."""
    if isinstance(value, dict):
        return {key: _lasting(item) for key, item in value.items() if key not in _NODE_STATE}
    if isinstance(value, list):
        return [_lasting(item) for item in value]
    return value


def _order(row: CellRow) -> tuple[Any, ...]:
    place = (row.row, row.shape, row.nodes, row.gpus, row.kernel_asked)
    return (*place, row.seqlen_global, row.phase, row.repeat)


def csv_text(rows: Sequence[CellRow]) -> str:
    """The tidy table as CSV; a figure that does not exist is empty, and the status says why."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for row in rows:
        writer.writerow([_text(value) for value in row.__dict__.values()])
    return out.getvalue()


def _text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    return repr(value) if isinstance(value, float) else str(value)


def write(collected: Collected) -> list[Path]:
    """Write cells.csv, and cells.parquet where pyarrow is there; what was written."""
    target = collected.campaign.folder / "cells.csv"
    records.write_atomic(target, csv_text(collected.rows))
    parquet = target.with_suffix(".parquet")
    return [target, parquet] if _write_parquet(collected.rows, parquet) else [target]


def _plain(kind: object) -> str:
    """'float | None' -> 'float'."""
    return str(kind).split(" ")[0]


def _write_parquet(rows: Sequence[CellRow], target: Path) -> bool:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        return False
    kinds = {
        "int": pyarrow.int64(),
        "float": pyarrow.float64(),
        "bool": pyarrow.bool_(),
        "str": pyarrow.string(),
    }
    fields = CellRow.__dataclass_fields__
    schema = pyarrow.schema(
        [(name, kinds.get(_plain(fields[name].type), pyarrow.string())) for name in COLUMNS]
    )
    columns = {name: [getattr(row, name) for row in rows] for name in COLUMNS}
    with records.in_place_of(target) as temporary:
        pyarrow.parquet.write_table(pyarrow.table(columns, schema=schema), temporary, compression="zstd")
    return True
