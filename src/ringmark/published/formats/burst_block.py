"""Burst's benchmark: a method name, a title row, a shape row, then a Time and a TFLOPS line.

The shape row belongs to the Time line after it and to nothing else, so the order is checked strictly: where
two blocks are mixed, no rule could tell whose time a line shows, and the file is refused at that line.
"""

from __future__ import annotations

import re
from typing import Any

from ringmark.published.claim import Claim
from ringmark.published.document import NUMBER, Document, claim_at
from ringmark.published.source import Line

ORDER = 10
FORMAT = "burst_block"
_WORD = re.compile(r"\s*([a-z][a-z0-9_]{1,30})\s*\Z")
_TITLE = ("batch_size", "seqlen", "num_heads", "dim")
_INT_FIELDS = {
    "batch_size": "batch",
    "seqlen": "seqlen_global",
    "num_heads": "num_heads_q",
    "dim": "head_dim",
}
_TIME = re.compile(rf"\s*Time: \| forward: ({NUMBER}|nan) s \| forward_backward: ({NUMBER}|nan) s\s*\Z")
_RATE = re.compile(
    rf"\s*TFLOPS\| \| forward: ({NUMBER}|nan) TFLOPS \| forward_backward: ({NUMBER}|nan) TFLOPS"
    rf" \| backward: ({NUMBER}|nan) TFLOPS\s*\Z"
)


class Reader:
    """One host's Burst blocks; `stage` says what may come next."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.stage = "idle"  # idle -> title -> shape -> time -> idle
        self.word: Line | None = None
        self.columns: list[str] = []
        self.shape: dict[str, Any] = {}
        self.shape_line: Line | None = None

    def take(self, line: Line) -> list[Claim] | None:
        text = line.text
        if not text.strip():
            return None
        cells = [cell.strip() for cell in text.split("|")]
        if tuple(cells[: len(_TITLE)]) == _TITLE:
            return self._title(line, cells)
        self._forget_word()
        if re.match(r"\s*Time: ?\|", text):
            return self._numbers(line, _TIME, "time", "s", ("fwd", "fwd_bwd"))
        if re.match(r"\s*TFLOPS ?\|", text):
            return self._numbers(line, _RATE, "rate", "TFLOPS", ("fwd", "fwd_bwd", "bwd"))
        if self.stage == "title" and "|" in text:
            return self._shape(line, cells)
        if _WORD.match(text):
            self.word = line
            return []
        return None

    def close(self) -> None:
        self._forget_word()
        if self.stage in ("title", "shape") and self.shape_line is not None:
            self.document.skip(self.shape_line, "a Burst block that ends before its Time line")

    def _forget_word(self) -> None:
        if self.word is not None:
            self.document.skip(self.word, "no known format")
            self.word = None

    def _title(self, line: Line, cells: list[str]) -> list[Claim]:
        if self.stage in ("title", "shape"):
            raise line.error(
                "a new Burst block begins before the one above it has shown its Time line: the log is mixed "
                "or cut; separate the runs"
            )
        if self.word is None:
            raise line.error(
                "a Burst title row without the method's name on the line above it; restore that line"
            )
        if any(not re.fullmatch(r"[a-z][a-z0-9_]*", cell) for cell in cells) or len(set(cells)) < len(cells):
            raise line.error("the title row of a Burst block is damaged; restore or remove the block")
        found = _WORD.match(self.word.text)
        self.label = found[1] if found else None
        self.columns, self.stage, self.shape_line, self.word = cells, "title", line, None
        return []

    def _shape(self, line: Line, cells: list[str]) -> list[Claim]:
        if len(cells) != len(self.columns):
            raise line.error(
                f"the shape row has {len(cells)} cells under a title of {len(self.columns)}; "
                "the line is cut or wrapped: restore it"
            )
        fields: dict[str, Any] = {"options": {}}
        for name, cell in zip(self.columns, cells):
            if name in _INT_FIELDS:
                if not re.fullmatch(r"[1-9][0-9]{0,11}", cell):
                    raise line.error(f"{name} is {cell!r}, not a whole number; correct the line")
                fields[_INT_FIELDS[name]] = int(cell)
            elif cell not in ("True", "False"):
                raise line.error(f"{name} is {cell!r}, neither True nor False; correct the line")
            elif name == "causal":
                fields["causal"] = cell == "True"
            else:
                fields["options"][name] = cell
        self.shape, self.shape_line, self.stage = fields, line, "shape"
        return []

    def _numbers(
        self, line: Line, pattern: re.Pattern[str], metric: str, unit: str, phases: tuple[str, ...]
    ) -> list[Claim]:
        allowed = ("shape",) if metric == "time" else ("shape", "time")
        if self.stage not in allowed or self.shape_line is None:
            raise line.error(
                f"a Burst {metric} line without its own shape row above it: the log is mixed or cut; "
                "restore or remove the block"
            )
        found = pattern.match(line.text)
        if not found:
            raise line.error(f"a Burst {metric} line that is cut or damaged; restore it or remove the block")
        self.stage = "time" if metric == "time" else "idle"
        return [
            claim_at(
                line,
                place,
                self.document,
                FORMAT,
                printed,
                metric=metric,
                unit=unit,
                phase=phase,
                label=self.label,
                column=f"{'Time' if metric == 'time' else 'TFLOPS'}/{_PRINTED_PHASE[phase]}",
                row_line=self.shape_line.number,
                table_line=self.shape_line.number,
                **self.shape,
            )
            for place, (printed, phase) in enumerate(zip(found.groups(), phases), 1)
        ]


_PRINTED_PHASE = {"fwd": "forward", "fwd_bwd": "forward_backward", "bwd": "backward"}
