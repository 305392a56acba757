"""Whether a campaign may be believed: every derived number made again from its raw samples, every law held.

A problem makes a campaign unfit for a table. A note is worth knowing and stops nothing. No torch: it runs
where the tables are made.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ringmark import config as configs
from ringmark import record
from ringmark.campaign_alone import ALONE
from ringmark.campaign_finding import Finding
from ringmark.campaign_together import TOGETHER
from ringmark.errors import UserError
from ringmark.record import Record

PLAN = "campaign.json"


@dataclass(frozen=True)
class Checked:
    """What a campaign's check found."""

    records: int  # files, those that cannot be read among them
    findings: list[Finding]
    found: list[tuple[str, Record]]  # those that can, and where they are

    @property
    def problems(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.is_problem]


def check(folder: Path) -> Checked:
    """Check every record under `folder`/records, alone and beside the others."""
    found: list[tuple[str, Record]] = []
    findings: list[Finding] = []
    files = sorted(path for path in (folder / "records").rglob("*.json") if not path.name.startswith("."))
    for path in files:
        where = str(path.relative_to(folder))
        try:
            one = record.read(path)
        except UserError as error:
            findings.append(Finding(where, str(error)))
            continue
        found.append((where, one))
        findings += alone(where, one)
    findings += together(folder, found)
    if not files:
        findings.append(Finding(str(folder.name), "there are no records: measure its cells first"))
    return Checked(len(files), findings, found)


def alone(where: str, one: Record) -> list[Finding]:
    """What is to be said of one record by itself; the only part that looks at samples."""
    findings = [Finding(where, sentence) for look in ALONE for sentence in look(one)]
    if str(one.path) != where:
        findings.append(Finding(where, f"is the record of {one.path}: two files for one cell, or one moved"))
    return findings


def together(folder: Path, found: Sequence[tuple[str, Record]]) -> list[Finding]:
    """What is to be said of all records beside each other; they may come without their samples."""
    findings = [finding for compare in TOGETHER for finding in compare(found)]
    return [*findings, *_missing(folder, {where for where, _ in found})]


def _missing(folder: Path, there: set[str]) -> Iterator[Finding]:
    """Worth knowing: how many planned cells have no record."""
    try:
        wanted = planned(folder)
    except (OSError, ValueError, UserError) as error:
        yield Finding(PLAN, f"is no readable plan of cells: {error}", False)
        return
    left = sorted(wanted - there)
    if left:
        sentence = f"{len(left)} of {len(wanted)} planned cells have no record, this is the first"
        yield Finding(left[0], sentence, False)


def planned(folder: Path) -> set[str]:
    """The paths of all records of the config that was planned last; of records without a plan none."""
    plan = folder / PLAN  # job files of an earlier plan may still lie beside those of this one
    if not plan.exists():
        return set()
    config = configs.from_data(json.loads(plan.read_text(encoding="utf-8")), plan.name)
    return {
        record.record_path(cell, repeat).as_posix()
        for cell in configs.cells(config)
        for repeat in range(config.repeats)
    }
