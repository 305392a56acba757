"""Sentences that set the stage: `hidden_size` = 5120, (bs=2, nheads=16), 32 GPUs 4nodes, 8 * 4090D, versions.

Each number becomes a setting, and the coordinate of every result under it.
"""

from __future__ import annotations

import re
from typing import Any

from ringmark.published.claim import Claim
from ringmark.published.document import Document, claim_at
from ringmark.published.source import Line

ORDER = 40
FORMAT = "settings"
_INTEGER = r"[1-9][0-9]{0,11}"
_BULLET = re.compile(rf"\s*- `([a-z_ ]{{1,40}})` = ({_INTEGER}(?:, {_INTEGER})*)\s*\Z")
_MESH = re.compile(rf"\(({_INTEGER}) ?GPUs? ({_INTEGER}) ?nodes? ({_INTEGER}) ?GPUs? each\)")
_DEVICES = re.compile(rf"\(?设备为 ({_INTEGER}) ?[*x×] ?([A-Za-z0-9-]{{2,20}})(?=\))")
_ASSIGNED = re.compile(rf"\(((?:[a-z_]+=[0-9]+)(?:, ?[a-z_]+={_INTEGER})*)\)")
_IMAGE = re.compile(r"\s*- `(?:[a-z0-9.-]+/)+([a-z0-9-]+):([A-Za-z0-9._-]+)` docker image\.?\s*\Z")
_PACKAGE = re.compile(r"\s*- `([A-Za-z]{2,40}) ([0-9]+(?:\.[0-9]+)*)`\s*\Z")
_LOG = re.compile(r"\s*`(?:\./)?(?:[\w.-]+/)*([\w.-]{1,120}\.log)`\s*\Z", re.ASCII)
_FIELDS = {
    "hidden_size": "hidden_size",
    "num_attn_heads": "num_heads_q",
    "num_heads": "num_heads_q",
    "nheads": "num_heads_q",
    "head_size": "head_dim",
    "head_dim": "head_dim",
    "batch size": "batch",
    "batch_size": "batch",
    "bs": "batch",
    "seq_len": "seqlen_global",
}


class Reader:
    """The settings of a page."""

    def __init__(self, document: Document) -> None:
        self.document = document

    def take(self, line: Line) -> list[Claim] | None:
        mesh = _MESH.search(line.text)
        if mesh:
            names = ("world_size", "nodes", "gpus_per_node")
            claims = [self._claim(line, i, n, t) for i, (n, t) in enumerate(zip(names, mesh.groups()), 1)]
            for name, text in zip(names, mesh.groups()):
                self.document.say(line, name, int(text), by_heading=True)
            return claims
        bullet = _BULLET.match(line.text)
        if bullet and bullet[1] in _FIELDS:
            return self._bullet(line, _FIELDS[bullet[1]], bullet[1], bullet[2].split(", "))
        for pattern, metric in ((_IMAGE, "version"), (_PACKAGE, "version"), (_LOG, "log_name")):
            found = pattern.match(line.text)
            if found:
                item, text = (found[1], found[2]) if metric == "version" else (self.document.title, found[1])
                return [self._claim(line, 1, metric, text, item=item, as_text=True)]
        return self._sentence(line)

    def close(self) -> None:
        """Each line stands for itself."""

    def _bullet(self, line: Line, field: str, name: str, texts: list[str]) -> list[Claim]:
        if len(texts) == 1 and field != "seqlen_global":
            self.document.say(line, field, int(texts[0]))
        return [self._claim(line, i, field, text, column=name) for i, text in enumerate(texts, 1)]

    def _sentence(self, line: Line) -> list[Claim] | None:
        claims: list[Claim] = []
        devices = _DEVICES.search(line.text)
        if devices:
            self.document.say(line, "world_size", int(devices[1]))
            self.document.say(line, "device", devices[2])
            claims.append(self._claim(line, 1, "world_size", devices[1], item=devices[2]))
        for found in _ASSIGNED.finditer(line.text):
            for pair in found[1].split(","):
                name, text = pair.strip().split("=")
                if name in _FIELDS and re.fullmatch(_INTEGER, text):
                    self.document.say(line, _FIELDS[name], int(text))
                    claims.append(self._claim(line, len(claims) + 1, _FIELDS[name], text, column=name))
        return claims or None

    def _claim(self, line: Line, position: int, metric: str, printed: str, **rest: Any) -> Claim:
        return claim_at(line, position, self.document, FORMAT, printed, kind="setting", metric=metric, **rest)
