"""A claim: one number that somebody printed, with where it stands and what was said around it.

What the source leaves unsaid is None. A claim of kind `result` is a measurement, of kind `setting` a number
or name that describes how results were obtained. `printed` is the text of the number, digit for digit.
"""

from __future__ import annotations

import csv
import io
import json
import math
import re
import types
import typing
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

from ringmark import schema
from ringmark.errors import UserError

SCHEMA_VERSION = "ringmark.claims/1"
_NUMBER = re.compile(r"-?[0-9]{1,15}(?:\.([0-9]{1,12}))?\Z")


def decimals_of(printed: str) -> int | None:
    """The number of digits after the point, or None where the text is no plain decimal number."""
    found = _NUMBER.match(printed)
    return None if found is None else len(found[1] or "")


@dataclass(frozen=True)
class Claim:
    """One published number."""

    source_file: str
    source_line: int
    position: int  # the cell of a table row, or the number's place in its line; from 1
    format: str
    kind: Literal["result", "setting"]
    metric: str
    printed: str
    value: float | None = None
    unit: str | None = None
    decimals: int | None = None  # precision as printed
    status: str | None = None  # the word that stands where a number would: oom, x
    phase: Literal["fwd", "bwd", "fwd_bwd"] | None = None
    label: str | None = None  # the system's name as printed
    system: str | None = None  # the same name for the same system in every file (data/published_systems.yaml)
    options: dict[str, str] = field(default_factory=dict)
    item: str | None = None  # what the number is about, where not the whole run: a kernel, a package
    device: str | None = None
    world_size: int | None = None
    nodes: int | None = None
    gpus_per_node: int | None = None
    batch: int | None = None
    seqlen_global: int | None = None
    num_heads_q: int | None = None
    num_heads_kv: int | None = None
    head_dim: int | None = None
    hidden_size: int | None = None
    dtype: str | None = None
    causal: bool | None = None
    kernel: str | None = None
    column: str | None = None  # the column or field name as printed
    section: str | None = None
    log_host: str | None = None
    row_line: int | None = None  # claims of one run in one table share it
    table_line: int | None = None

    def __post_init__(self) -> None:
        if self.value is not None and not math.isfinite(self.value):
            raise ValueError(f"value {self.value} is not finite")
        if self.value is not None and self.value != float(self.printed):
            raise ValueError(f"value {self.value} is not the printed {self.printed!r}")

    @property
    def id(self) -> str:
        return f"{self.source_file}:{self.source_line}:{self.position}"

    @property
    def where(self) -> str:
        return f"{self.source_file}:{self.source_line}"

    @property
    def head_dim_known(self) -> int | None:
        """The head size: said, or what hidden size over heads leaves."""
        if self.head_dim is None and self.hidden_size and self.num_heads_q:
            return self.hidden_size // self.num_heads_q
        return self.head_dim

    @property
    def world_known(self) -> int | None:
        """The ranks: said, or the size of the sequence-parallel group."""
        if self.world_size is None and self.options.get("sp_size", "").isdecimal():
            return int(self.options["sp_size"])
        return self.world_size

    @property
    def bounds(self) -> tuple[float, float]:
        """The interval of values that print as this text does."""
        if self.value is None:
            raise ValueError(f"{self.id} has no value")
        half = 0.5 * 10.0 ** -(self.decimals or 0)
        return self.value - half, self.value + half


def to_csv(claims: Iterable[Claim]) -> str:
    """The claims as CSV; an empty cell is null, options are key=value joined by semicolons."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = [each.name for each in fields(Claim)]
    writer.writerow(names)
    for claim in claims:
        writer.writerow([_to_cell(getattr(claim, name)) for name in names])
    return out.getvalue()


def _to_cell(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, dict):
        return ";".join(f"{key}={item}" for key, item in value.items())
    return repr(value) if isinstance(value, float) else str(value)


def to_json(claims: Sequence[Claim], skipped: Sequence[Any]) -> str:
    """The claims and the lines that were not read, as JSON."""
    lists = {"claims": schema.dump(claims), "skipped": schema.dump(skipped)}
    parts = [f'{{"schema": {json.dumps(SCHEMA_VERSION)}']
    for name, items in lists.items():  # a line for each: readable, and a change shows as one line
        body = ",\n".join(json.dumps(item, ensure_ascii=False, allow_nan=False) for item in items)
        parts.append(f'"{name}": [\n{body}\n]' if items else f'"{name}": []')
    return ",\n".join(parts) + "}\n"


def read_csv(path: Path) -> list[Claim]:
    """The claims of a CSV file that `to_csv` wrote."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {path}: {error}; run `ringmark ingest FILE...` to make it") from None
    rows = list(csv.reader(io.StringIO(text)))
    names = [each.name for each in fields(Claim)]
    if not rows or rows[0] != names:
        raise UserError(f"{path}:1 is not the header of a claims file; run `ringmark ingest FILE...` again")
    claims = []
    for number, row in enumerate(rows[1:], 2):
        if len(row) != len(names):
            raise UserError(f"{path}: row {number} has {len(row)} cells, not {len(names)}; ingest again")
        claims.append(_from_row(dict(zip(names, row)), f"{path}: row {number}"))
    return claims


def _from_row(row: dict[str, str], where: str) -> Claim:
    hints = typing.get_type_hints(Claim)
    data = {name: _from_cell(hints[name], text, f"{where}, {name}") for name, text in row.items()}
    return schema.load(Claim, data, where)


def _from_cell(kind: Any, text: str, where: str) -> Any:
    if typing.get_origin(kind) is dict:
        return dict(part.split("=", 1) for part in text.split(";") if "=" in part)
    choices = typing.get_args(kind) if typing.get_origin(kind) in (types.UnionType, typing.Union) else (kind,)
    if text == "" and type(None) in choices:
        return None
    try:
        if bool in choices:
            return {"True": True, "False": False}[text]
        for number in (int, float):
            if number in choices:
                return number(text)
    except (ValueError, KeyError):
        raise UserError(f"{where}: {text!r} does not fit; ingest again") from None
    return text
