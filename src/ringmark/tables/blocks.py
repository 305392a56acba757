"""The rendered blocks of Markdown files: what stands between ringmark:begin NAME and ringmark:end NAME."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

from ringmark.errors import UserError, nearest
from ringmark.tables.page import choices

# At a line's start; elsewhere it is spoken of.
_MARK = re.compile(r"^<!-- ringmark:(begin|end) ", re.MULTILINE)
_BLOCK = re.compile(
    r"^(?P<begin><!-- ringmark:begin (?P<name>[\w.-]+) -->\n)(?P<body>.*?)"
    r"^(?P<end><!-- ringmark:end (?P=name) -->)",
    re.DOTALL | re.MULTILINE,
)


def pages(root: Path) -> Iterator[Path]:
    """The Markdown files that may hold blocks."""
    yield from sorted([*root.glob("*.md"), *root.glob("docs/*.md")])


def filled(text: str, body_of: Callable[[str], str | None], where: Path) -> str:
    """The text with its blocks' bodies replaced; a body of None leaves the block as it is."""
    marks, whole = _MARK.findall(text), len(_BLOCK.findall(text))
    begun, ended = marks.count("begin"), marks.count("end")
    if not begun == ended == whole:
        raise UserError(
            f"{where}: {begun} blocks begin and {ended} end, {whole} of them whole: "
            "give each ringmark:begin NAME its ringmark:end NAME"
        )

    def replaced(found: re.Match[str]) -> str:
        body = body_of(found["name"])
        return found[0] if body is None else f"{found['begin']}{body.rstrip()}\n{found['end']}"

    return _BLOCK.sub(replaced, text)


def source(name: str, where: Path) -> tuple[str, list[str]]:
    """A block's kind and the campaigns that it may show, from data/tables.yaml."""
    blocks = choices()["blocks"]
    if name not in blocks:
        raise UserError(f"{where}: there is no block {name!r}: {nearest(name, blocks)}")
    return blocks[name]["kind"], blocks[name]["campaigns"]
