"""The columns that benchmark tables have: what each says, and how strictly its text is read."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ringmark.published.document import STATUS_WORDS
from ringmark.published.source import Line

_INTEGER = re.compile(r"[1-9][0-9]{0,11}\Z")
_WORD = re.compile(r"[A-Za-z0-9_+()./, -]{1,40}\Z")
_TWO_DECIMALS = re.compile(r"[0-9]{1,12}\.[0-9]{2}\Z")
_ANY_DECIMALS = re.compile(r"[0-9]{1,12}(\.[0-9]{1,6})?\Z")


@dataclass(frozen=True)
class Column:
    """One column: a coordinate of the row (`to` a claim's field or an option), or a result."""

    name: str
    to: str = ""
    kind: str = "text"  # integer, text, bool, result
    metric: str = ""
    unit: str = ""
    phase: str | None = None


def _result(name: str, metric: str, unit: str, phase: str | None = None) -> Column:
    return Column(name, kind="result", metric=metric, unit=unit, phase=phase)


COLUMNS = {
    column.name: column
    for column in (
        Column("Dtype", "dtype"),
        Column("QKV Format", "options.qkv_format"),
        Column("CUDA Kernel", "kernel"),
        Column("B", "batch", "integer"),
        Column("Seq Len", "seqlen_global", "integer"),
        Column("CP", "options.cp", "bool"),
        Column("Window", "options.window"),
        Column("SP Size", "options.sp_size", "integer"),
        Column("ring type", "options.ring_type"),
        Column("seq_len", "seqlen_global", "integer"),
        Column("ulysses_degree", "options.ulysses_degree", "integer"),
        Column("ring_degree", "options.ring_degree", "integer"),
        Column("fwd_only", "fwd_only", "bool"),
        Column("batch_size", "batch", "integer"),
        Column("nheads", "num_heads_q", "integer"),
        Column("head_size", "head_dim", "integer"),
        _result("FWD (ms)", "time", "ms", "fwd"),
        _result("FWD+BWD (ms)", "time", "ms", "fwd_bwd"),
        _result("Memory (MB)", "memory", "MB"),
        _result("TFLOPs/s", "rate", "TFLOPs/s"),
        _result("throughput(iters/s)", "throughput", "iters/s"),
        _result("latency(ms/iter)", "time", "ms/iter"),
        _result("peak memory(MB/device)", "memory", "MB/device"),
        _result("speed(TFLOPS)", "rate", "TFLOPS"),
    )
}


def header(line: Line, cells: list[str]) -> list[Column] | None:
    """The columns of a header row, or None where it is none; a header with an unknown column is refused."""
    known = [cell for cell in cells if cell in COLUMNS]
    if len(known) < 3 or 2 * len(known) <= len(cells):
        return None
    for cell in cells:
        if cell not in COLUMNS:
            raise line.error(f"unknown column {cell!r}; known are: {', '.join(COLUMNS)}")
    if len(set(cells)) < len(cells):
        raise line.error("a column appears twice in this header; correct it")
    return [COLUMNS[cell] for cell in cells]


def read_row(
    line: Line, columns: list[Column], cells: list[str], strict: bool
) -> tuple[dict[str, Any], dict[int, str]]:
    """(coordinates, printed results by position) of a row; `strict` asks for a tool's two decimals."""
    if len(cells) != len(columns):
        raise line.error(
            f"the row has {len(cells)} cells under a header of {len(columns)}; "
            "it is cut, wrapped or of another table: restore it"
        )
    fields: dict[str, Any] = {"options": {}}
    results: dict[int, str] = {}
    for position, (column, cell) in enumerate(zip(columns, cells), 1):
        if column.kind == "result":
            pattern = _TWO_DECIMALS if strict else _ANY_DECIMALS
            if not pattern.match(cell) and cell.lower() not in STATUS_WORDS:
                raise line.error(
                    f"{column.name} is {cell!r}, neither a number nor a status; correct the line"
                )
            results[position] = cell
            continue
        value = _coordinate(line, column, cell)
        if column.name == "fwd_only":
            fields["phase"] = "fwd" if value else "fwd_bwd"
        elif column.to.startswith("options."):
            fields["options"][column.to.removeprefix("options.")] = cell
        else:
            fields[column.to] = value
    return fields, results


def _coordinate(line: Line, column: Column, cell: str) -> Any:
    if column.kind == "integer":
        if not _INTEGER.match(cell):
            raise line.error(f"{column.name} is {cell!r}, not a whole number; correct the line")
        return int(cell)
    if column.kind == "bool":
        if cell not in ("True", "False"):
            raise line.error(f"{column.name} is {cell!r}, neither True nor False; correct the line")
        return cell == "True"
    if not _WORD.match(cell):
        raise line.error(f"{column.name} is {cell!r}, not a word; correct the line")
    return cell
