"""The table of torch.profiler: fixed columns, each number with its unit (us, ms, s; %; b, Kb, Mb, Gb).

The rule of dashes gives the columns' places, so a name may hold any sign. Numbers are printed flush right:
one that does not end where its column ends was cut, and is refused.
"""

from __future__ import annotations

import re

from ringmark.published.claim import Claim
from ringmark.published.document import Document, claim_at
from ringmark.published.source import Line

ORDER = 0
FORMAT = "profiler"
_RULE = re.compile(r"-{4,}(  -{4,})+\s*\Z")
_TOTAL = re.compile(r"\s*(Self (?:CPU|CUDA|XPU) time total): ([0-9]+\.[0-9]{3})(us|ms|s)\s*\Z")
_SHARE = re.compile(r"([0-9]{1,3}\.[0-9]{2})(%)\Z")
_TIME = re.compile(r"([0-9]{1,12}\.[0-9]{3})(us|ms|s)\Z")
_CALLS = re.compile(r"([0-9]{1,12})()\Z")
_MEMORY = re.compile(r"(-?[0-9]{1,12}(?:\.[0-9]{2})?) (b|B|[KMGT]b|[KMGT]B)\Z")
_COLUMNS = {
    "Self CPU %": ("self_cpu_share", _SHARE),
    "Self CPU": ("self_cpu_time", _TIME),
    "CPU total %": ("cpu_total_share", _SHARE),
    "CPU total": ("cpu_total_time", _TIME),
    "CPU time avg": ("cpu_time_avg", _TIME),
    "Self CUDA": ("self_cuda_time", _TIME),
    "Self CUDA %": ("self_cuda_share", _SHARE),
    "CUDA total": ("cuda_total_time", _TIME),
    "CUDA time avg": ("cuda_time_avg", _TIME),
    "# of Calls": ("calls", _CALLS),
    "CPU Mem": ("cpu_memory", _MEMORY),
    "Self CPU Mem": ("self_cpu_memory", _MEMORY),
    "CUDA Mem": ("cuda_memory", _MEMORY),
    "Self CUDA Mem": ("self_cuda_memory", _MEMORY),
}


class Reader:
    """One host's profiler tables."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.header: tuple[Line, list[str]] | None = None
        self.spans: list[tuple[int, int]] = []
        self.rows = 0

    def take(self, line: Line) -> list[Claim] | None:
        text = line.text.rstrip()
        if _RULE.match(text):
            return self._rule(line, text)
        found = _TOTAL.match(text)
        if found:
            self.header = None
            return [self._total(line, *found.groups())]
        if re.match(r"\s*Self (CPU|CUDA|XPU) time total", text):
            raise line.error("a total of the profiler that is cut or damaged; restore the line")
        names = re.split(r"\s{2,}", text.strip())
        if names[0] == "Name" and "# of Calls" in names:
            return self._header(line, names)
        if self.header is None or not self.spans or not text:
            return None
        return self._row(line, text, self.header[0].number, self.header[1])

    def _total(self, line: Line, name: str, printed: str, unit: str) -> Claim:
        values = {"metric": name.lower().replace(" ", "_"), "unit": unit, "column": name}
        return claim_at(line, 1, self.document, FORMAT, printed, False, row_line=line.number, **values)

    def close(self) -> None:
        """Rows stand for themselves."""

    def _header(self, line: Line, names: list[str]) -> list[Claim]:
        for name in names[1:]:
            if name not in _COLUMNS:
                raise line.error(f"unknown column {name!r} of the profiler; known are: {', '.join(_COLUMNS)}")
        self.header, self.rows = (line, names), 0
        return []

    def _rule(self, line: Line, text: str) -> list[Claim]:
        spans = [(found.start(), found.end()) for found in re.finditer(r"-{4,}", text)]
        if self.header is not None and self.rows:
            self.header = None  # the rule under the rows closes the table
        elif self.header is not None and len(spans) != len(self.header[1]):
            raise line.error(
                f"a rule of {len(spans)} columns under a profiler header of {len(self.header[1])}; restore it"
            )
        self.spans = spans
        return []

    def _row(self, line: Line, text: str, table_line: int, names: list[str]) -> list[Claim] | None:
        if len(names) != len(self.spans):
            raise line.error("a profiler row under a rule that does not fit the header; restore the table")
        item = text[: self.spans[0][1]].strip()
        cells = [text[start:end] for start, end in self.spans[1:]]
        gaps = [text[self.spans[i][1] : self.spans[i + 1][0]] for i in range(len(self.spans) - 1)]
        flush = all(
            cell and len(cell) == end - start and not cell[-1].isspace()
            for cell, (start, end) in zip(cells, self.spans[1:])
        )
        if not item or not flush or any(gap.strip() for gap in gaps) or len(text) > self.spans[-1][1]:
            raise line.error(
                "a profiler row whose cells do not fill their columns: the line is cut or shifted"
            )
        self.rows += 1
        claims = []
        for position, (name, cell) in enumerate(zip(names[1:], cells), 2):
            metric, pattern = _COLUMNS[name]
            found = pattern.match(cell.strip())
            if not found:
                if cell.strip() == "--":
                    continue  # the profiler's own sign for nothing
                raise line.error(
                    f"{name} is {cell.strip()!r}, which the profiler does not print; correct the line"
                )
            claims.append(
                claim_at(
                    line,
                    position,
                    self.document,
                    FORMAT,
                    found[1],
                    metric=metric,
                    unit=found[2] or None,
                    item=item,
                    column=name,
                    row_line=line.number,
                    table_line=table_line,
                )
            )
        return claims
