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
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ringmark import record as records
from ringmark.errors import UserError
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


def collect(campaign: Campaign) -> Collected:
    """Read every record of the campaign; nothing is written."""
    files = campaign.record_files()
    if not files:
        raise UserError(f"{campaign.folder} has no records yet: run its cells first")
    rows: list[CellRow] = []
    environments: dict[str, dict[str, Any]] = {}
    for part_rows, part_environments in _read_all(campaign.folder, files):
        rows += part_rows
        environments.update(part_environments)
    join_bounds(rows)
    rows.sort(key=_order)
    return Collected(campaign, rows, dict(sorted(environments.items())))


_Part = tuple[list[CellRow], dict[str, dict[str, Any]]]


def _read_all(folder: Path, files: list[Path]) -> list[_Part]:
    workers = min(os.cpu_count() or 1, 4)
    if len(files) < _MANY or workers == 1:
        return [_read_part(folder, files)]
    size = -(-len(files) // (workers * 4))
    parts = [files[start : start + size] for start in range(0, len(files), size)]
    with ProcessPoolExecutor(workers) as pool:
        return list(pool.map(_read_part, [folder] * len(parts), parts))


def _read_part(folder: Path, files: Sequence[Path]) -> _Part:
    rows: list[CellRow] = []
    environments: dict[str, dict[str, Any]] = {}
    for path in files:
        found = records.read(folder / path)
        if found.path != path:
            raise UserError(
                f"{folder / path} is the record of {found.path}: move it there or delete it, then try again"
            )
        lasting = _lasting(found.environment)
        text = json.dumps(lasting, sort_keys=True)
        name = hashlib.sha256(text.encode()).hexdigest()[:12]
        environments.setdefault(name, lasting)
        rows.append(from_record(found, name))
    return rows, environments


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
    try:
        records.write_atomic(target, csv_text(collected.rows))
        written = [target]
        parquet = target.with_suffix(".parquet")
        if _write_parquet(collected.rows, parquet):
            written.append(parquet)
    except OSError as error:
        raise UserError(f"cannot write {target}: {error.strerror}; make the folder writable") from None
    return written


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
    temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        pyarrow.parquet.write_table(pyarrow.table(columns, schema=schema), temporary, compression="zstd")
        os.replace(temporary, target)
    finally:
        temporary.unlink(missing_ok=True)
    return True
