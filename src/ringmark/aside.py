"""Records of another question than is asked now: never overwritten, moved aside when the user says so.

A config may change after some of its cells have been measured (another warm-up, another seed). What was
measured before stays as it is: a campaign that would replace it is refused before anything starts.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from ringmark import record
from ringmark.errors import UserError
from ringmark.job import Item
from ringmark.record import Record, Status


def asked_otherwise(items: Iterable[Item]) -> list[tuple[Item, Record]]:
    """The items whose place holds a passed record of another question. A failure may be measured again."""
    found = [(item, record.read(Path(item.out))) for item in items if Path(item.out).exists()]
    return [
        (item, there)
        for item, there in found
        if there.status is Status.PASSED and not item.answered_by(there)
    ]


def check(campaign: str, items: Iterable[Item]) -> None:
    """Refuse to measure over records that were asked for otherwise."""
    found = asked_otherwise(items)
    if not found:
        return
    item, there = found[0]
    differences = [
        f"{name} {value}, now {now}"
        for name, value in vars(there.asked).items()
        if value != (now := getattr(item.asked, name))
    ]
    counted = "1 passed record was" if len(found) == 1 else f"{len(found)} passed records were"
    raise UserError(
        f"{counted} asked for otherwise in campaign {campaign} ({'; '.join(differences) or 'another cell'}), "
        "and none is overwritten: give the campaign another name, or move them aside with "
        "'ringmark plan CONFIG --again'"
    )


def move(folder: Path, items: Iterable[Item]) -> Path | None:
    """Move such records, and their traces, out of a campaign's records; where they are now, or None."""
    target = folder / "aside" / time.strftime("%Y%m%dT%H%M%S")
    moved = False
    for item, _ in asked_otherwise(items):
        source = Path(item.out)
        for path in (source, source.with_suffix(".trace.json.gz")):
            if path.exists():
                there = target / path.relative_to(folder)
                try:
                    there.parent.mkdir(parents=True, exist_ok=True)
                    path.rename(there)
                except OSError as error:
                    raise UserError(f"cannot move {path} to {there}: {error.strerror}") from None
                moved = True
    return target if moved else None
