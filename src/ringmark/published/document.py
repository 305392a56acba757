"""What a document has said so far: headings, settings, and the lines that nobody could read."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from ringmark.published.claim import Claim, decimals_of
from ringmark.published.source import Line
from ringmark.published.systems import by_label

_HEADING = re.compile(r"\s*(#{1,6})\s*(\S.*?)\s*\Z")
_BULLET = re.compile(r"\s*[-*]\s+([^-=\s|].*?)\s*\Z")
NUMBER = r"[0-9]{1,12}\.[0-9]{2}"
_OF_PAGES = "markdown_table"
STATUS_WORDS = ("oom", "x", "nan", "n/a", "-")


@dataclass(frozen=True)
class Skipped:
    """A line that no format reads, and why it was passed over."""

    source_file: str
    source_line: int
    reason: str


@dataclass
class Document:
    """The state that headings and settings leave for the tables under them."""

    file: str
    section: str | None = None
    title: str | None = None  # of the next table; a title serves one table
    said: dict[str, Any] = field(default_factory=dict)  # coordinates said for the whole document
    said_by_heading: dict[str, Any] = field(default_factory=dict)  # until the next heading of its level
    heading_level: int = 0
    skipped: list[Skipped] = field(default_factory=list)

    def note_heading(self, line: Line) -> bool:
        """Take the line as a heading or a bullet that titles what follows; whether it is one."""
        found = _HEADING.match(line.text)
        if found:
            if len(found[1]) <= self.heading_level:
                self.said_by_heading = {}
            self.section = self.title = found[2]
            self.heading_level = len(found[1])
            return True
        found = _BULLET.match(line.text)
        if found and ": " not in found[1]:
            self.title = found[1]
            return True
        return False

    def take_title(self) -> str | None:
        title, self.title = self.title, None
        return title

    def skip(self, line: Line, reason: str) -> None:
        self.skipped.append(Skipped(line.file, line.number, reason))

    def say(self, line: Line, field_name: str, value: int | str, by_heading: bool = False) -> None:
        """Note a coordinate for the tables that follow; two words for one coordinate are refused."""
        others = self.said if by_heading else {**self.said, **self.said_by_heading}
        if others.get(field_name, value) != value:
            raise line.error(
                f"{field_name} is {value} here and {others[field_name]} above: whose tables are whose is "
                "unclear; "
                "split the page"
            )
        (self.said_by_heading if by_heading else self.said)[field_name] = value

    def coordinates(self, format_name: str) -> dict[str, Any]:
        """What the page's words say of a table; they speak of its own tables, not of a log pasted into it."""
        return {**self.said, **self.said_by_heading} if format_name == _OF_PAGES else {}


def claim_at(
    line: Line,
    position: int,
    document: Document,
    format_name: str,
    printed: str,
    as_text: bool = False,
    **rest: Any,
) -> Claim:
    """A claim for a text printed on `line`: a number, or a status word where a number would stand.

    A text that is a name (a version, a log's name) is given as_text and has no value.
    """
    label = rest.get("label")
    found = by_label(label)
    decimals = None if as_text else decimals_of(printed)
    status = None
    if decimals is None and rest.get("kind", "result") == "result":
        status = printed.lower()
        if status not in STATUS_WORDS:
            raise line.error(f"{printed!r} is neither a number nor a status; correct or remove the line")
    values = {**document.coordinates(format_name), **rest}
    values.setdefault("kind", "result")
    return Claim(
        source_file=line.file,
        source_line=line.number,
        position=position,
        format=format_name,
        printed=printed,
        value=None if decimals is None else float(printed),
        decimals=decimals,
        status=status,
        system=found.system if found else None,
        section=document.section,
        log_host=line.host,
        **values,
    )
