"""Records of another question than is asked now: never overwritten, moved aside when the user says so.

A config may change after some of its cells have been measured (another warm-up, another seed). What was
measured before stays as it is: a campaign that would replace it is refused before anything starts.

ringmark itself may change as well. What another state of it measured answers what is asked, and stays: an
edit of a comment must not cost a campaign of many hours. It is said, and --again moves such records too.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterable
from pathlib import Path

from ringmark import record, state
from ringmark.errors import UserError
from ringmark.job import Item, Job
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


def by_another_state(jobs: Iterable[Job]) -> list[tuple[Item, Record]]:
    """The items whose record is their answer, and was measured by other files of ringmark than those here."""
    found, here = [], _here()
    for job in jobs:
        if job.cluster is not None and job.cluster.runtime != "bare":
            continue  # the image's files measure, not those here
        for item in job.items:
            if not Path(item.out).exists():
                continue
            there = record.read(Path(item.out))
            if item.answered_by(there) and state.tree_of(there) not in (None, here):
                found.append((item, there))
    return found


def told(jobs: Iterable[Job]) -> str | None:
    """One sentence of the records that another state of ringmark measured; None where there are none."""
    found = by_another_state(jobs)
    if not found:
        return None
    trees = sorted({tree[:12] for _, there in found if (tree := state.tree_of(there))})
    counted = "1 record was" if len(found) == 1 else f"{len(found)} records were"
    kept, them = ("it is kept", "it") if len(found) == 1 else ("they are kept", "them")
    return (
        f"{counted} measured by another state of ringmark (tree {', '.join(trees)}; here it is "
        f"{(_here() or '')[:12]}): {kept}, and 'ringmark plan CONFIG --again' moves {them} "
        "aside to measure again"
    )


def _here() -> str | None:
    """The tree of the files here; files that cannot be read are no reason to stop."""
    try:
        return state.tree_here()
    except OSError:
        return None


def move(folder: Path, items: Iterable[Item]) -> Path | None:
    """Move records, and their traces, out of a campaign's records; where they are now, or None."""
    target = None
    for item in items:
        source = Path(item.out)
        for path in (source, source.with_suffix(".trace.json.gz")):
            if path.exists():
                try:
                    target = target or _new(folder / "aside")
                    there = target / path.relative_to(folder)
                    there.parent.mkdir(parents=True, exist_ok=True)
                    path.rename(there)
                except OSError as error:
                    raise UserError(f"cannot move {path} aside in {folder}: {error.strerror}") from None
    return target


def _new(folder: Path) -> Path:
    """A folder named by the time; a second may come twice, when clocks step back, and nothing is replaced."""
    name = time.strftime("%Y%m%dT%H%M%S")
    numbers = itertools.count(2)
    path = folder / name
    while path.exists():
        path = folder / f"{name}-{next(numbers)}"
    path.mkdir(parents=True)
    return path
