"""The report that a benchmark of one setting prints: a title, its configuration, its performance."""

from __future__ import annotations

import re
from typing import Any

from ringmark.published.claim import Claim
from ringmark.published.document import NUMBER, Document, claim_at
from ringmark.published.source import Line

ORDER = 5
FORMAT = "report"
_TITLE = re.compile(r"\s*Benchmark Results for (\S{1,80})\s*\Z")
_ENTRY = re.compile(r"\s*- ([A-Z][A-Za-z0-9+ ]{1,40}?) ?: (\S.*?)\s*\Z")
_INTEGERS = {
    "Batch Size": "batch",
    "Sequence Length": "seqlen_global",
    "Num Heads": "num_heads_q",
    "Head Dimension": "head_dim",
    "GQA Groups": "num_heads_kv",  # the number of key-value groups, each with one head
    "World Size": "world_size",
}
_WORDS = ("Dtype", "Attention Mask")
_OPTIONS = {"QKV Format": "qkv_format", "Window Size": "window", "Context Parallel": "cp"}
_RESULTS: dict[str, tuple[str, str, str | None, str | None]] = {
    "Forward Time": ("time", "ms", "fwd", None),
    "Forward+Backward Time": ("time", "ms", "fwd_bwd", None),
    "FlashAttention Kernel": ("share", "%", None, "FlashAttention Kernel"),
    "RingComm": ("share", "%", None, "RingComm"),
    "Memory Usage": ("memory", "MB", None, None),
    "Performance": ("rate", "TFLOPs/s", None, None),
}

_KNOWN = {*_INTEGERS, *_WORDS, *_OPTIONS, *_RESULTS}


class Reader:
    """One host's reports."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.stage = "idle"  # idle -> title -> configuration -> performance -> idle
        self.label: str | None = None
        self.fields: dict[str, Any] = {}
        self.seen: set[str] = set()
        self.table_line = 0

    def take(self, line: Line) -> list[Claim] | None:
        text = line.text.strip()
        found = _TITLE.match(text)
        if found:
            self.stage, self.label, self.table_line = "title", found[1], line.number
            self.fields, self.seen = {"options": {}}, set()
            return []
        if text in ("Configuration:", "Performance:"):
            return self._part(line, text)
        if self.stage == "performance" and re.fullmatch(r"={2,}", text):
            self.stage = "idle"
            return []
        entry = _ENTRY.match(line.text)
        if not entry or (entry[1] not in _KNOWN):
            return None
        if self.stage not in ("configuration", "performance"):
            raise line.error(f"{entry[1]!r} stands outside of a report's parts; restore the report's title")
        if entry[1] in self.seen:
            raise line.error(f"{entry[1]!r} appears twice in one report: the log is mixed; separate the runs")
        self.seen.add(entry[1])
        if (entry[1] in _RESULTS) != (self.stage == "performance"):
            raise line.error(f"{entry[1]!r} is in the wrong part of the report: the log is mixed or cut")
        return (
            self._result(line, *entry.groups())
            if entry[1] in _RESULTS
            else self._setting(line, *entry.groups())
        )

    def close(self) -> None:
        """Whatever was read stands for itself."""

    def _part(self, line: Line, text: str) -> list[Claim] | None:
        before = {"Configuration:": "title", "Performance:": "configuration"}[text]
        if self.stage == "idle":
            return None
        if self.stage != before:
            raise line.error(
                f"{text!r} comes after {self.stage}: the log is mixed or cut; restore the report"
            )
        self.stage = text.rstrip(":").lower()
        return []

    def _setting(self, line: Line, name: str, text: str) -> list[Claim]:
        if name in _INTEGERS:
            if not re.fullmatch(r"[1-9][0-9]{0,11}", text):
                raise line.error(f"{name} is {text!r}, not a whole number; correct the line")
            self.fields[_INTEGERS[name]] = int(text)
            return [self._claim(line, text, kind="setting", metric=_INTEGERS[name], column=name)]
        if name in _OPTIONS:
            if ";" in text:
                raise line.error(f"{name} is {text!r}, which no option looks like; correct the line")
            self.fields["options"][_OPTIONS[name]] = text
        elif name == "Dtype":
            self.fields["dtype"] = text
        elif name == "Attention Mask":
            self.fields["options"]["mask"] = text
            self.fields["causal"] = {"causal": True, "full": False, "no_mask": False}.get(text)
        return []  # a word, which the results carry with them

    def _result(self, line: Line, name: str, text: str) -> list[Claim]:
        metric, unit, phase, item = _RESULTS[name]
        found = re.fullmatch(rf"({NUMBER}|nan) {re.escape(unit)}", text)
        if not found:
            raise line.error(
                f"{name} is {text!r}, not a number with two decimals and the unit {unit}; the line is cut"
            )
        return [
            self._claim(
                line, found[1], metric=metric, unit=unit, phase=phase, item=item, column=name, **self.fields
            )
        ]

    def _claim(self, line: Line, printed: str, **rest: Any) -> Claim:
        return claim_at(
            line,
            1,
            self.document,
            FORMAT,
            printed,
            label=self.label,
            row_line=self.table_line,
            table_line=self.table_line,
            **rest,
        )
