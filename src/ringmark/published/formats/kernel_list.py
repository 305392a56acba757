"""What a benchmark extracts from its own profile: {'flash': [(time, share), ...], 'SendRecv': []}.

Its numbers carry no unit and get none; rank lists under `inter intra` are read here too.
"""

from __future__ import annotations

import re

from ringmark.published.claim import Claim
from ringmark.published.document import Document, claim_at
from ringmark.published.source import Line

ORDER = 3
FORMAT = "kernel_list"
_NUMBER = r"[0-9]{1,12}\.[0-9]{1,12}"
_PAIR = rf"\({_NUMBER}, {_NUMBER}\)"
_ENTRY = rf"'[A-Za-z_]{{1,40}}': \[(?:{_PAIR}(?:, {_PAIR})*)?\]"
_DICT = re.compile(rf"\s*\{{{_ENTRY}(?:, {_ENTRY})*\}}\s*\Z")
_LOOKS_LIKE = re.compile(r"\s*\{'[A-Za-z_]+': \[")
_RANKS = re.compile(r"\s*\[([0-9]{1,6}(?:, [0-9]{1,6})*)\]\s+\[([0-9]{1,6}(?:, [0-9]{1,6})*)\]\s*\Z")


class Reader:
    """One host's lists."""

    def __init__(self, document: Document) -> None:
        self.document = document
        self.names: list[str] | None = None

    def take(self, line: Line) -> list[Claim] | None:
        if line.text.split() == ["inter", "intra"]:
            self.names = ["inter", "intra"]
            return []
        if self.names is not None and line.text.strip():
            names, self.names = self.names, None
            return self._ranks(line, names)
        if not _LOOKS_LIKE.match(line.text):
            return None
        if not _DICT.match(line.text):
            raise line.error("a list of kernel times that is cut or damaged; restore or remove the line")
        return self._pairs(line)

    def close(self) -> None:
        """Each line stands for itself."""

    def _pairs(self, line: Line) -> list[Claim]:
        claims: list[Claim] = []
        for name, body in re.findall(r"'([A-Za-z_]+)': \[([^\]]*)\]", line.text):
            for time, share in re.findall(rf"\(({_NUMBER}), ({_NUMBER})\)", body):
                for metric, printed in (("listed_time", time), ("listed_share", share)):
                    position = len(claims) + 1
                    claims.append(self._claim(line, position, printed, metric, name, "result"))
        return claims

    def _ranks(self, line: Line, names: list[str]) -> list[Claim]:
        found = _RANKS.match(line.text)
        if not found:
            raise line.error("the ranks under 'inter intra' are cut or damaged; restore or remove both lines")
        claims: list[Claim] = []
        for name, group in zip(names, found.groups()):
            for rank in group.split(", "):
                claims.append(self._claim(line, len(claims) + 1, rank, f"{name}_rank", name, "setting"))
        return claims

    def _claim(self, line: Line, position: int, printed: str, metric: str, item: str, kind: str) -> Claim:
        return claim_at(
            line,
            position,
            self.document,
            FORMAT,
            printed,
            metric=metric,
            item=item,
            kind=kind,
            row_line=line.number,
        )
