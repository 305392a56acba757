"""A job: some cells that one world of ranks measures in turn, and the folder where the world reports.

Importing torch and starting communicators costs seconds, a small cell milliseconds; so a world is started
once for a job, and again only for what is left after a failure.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from ringmark import record, schema
from ringmark.cell import Cell, MeshShape
from ringmark.cluster import Cluster
from ringmark.errors import UserError

Device = Literal["auto", "cpu", "cuda"]
LOCK = "lock"  # in the folder of a job, or of a campaign's jobs: held by who measures


@dataclass(frozen=True)
class Item:
    """One cell of a job, and the file that its record goes to."""

    cell: Cell
    asked: record.Asked
    out: str

    def done(self) -> bool:
        """Whether the record is there already, and answers just what is asked now."""
        path = Path(self.out)
        return path.exists() and self.answered_by(record.read(path))

    def answered_by(self, found: record.Record) -> bool:
        """Whether a record is of this cell, asked just as it is now."""
        return found.cell == self.cell and found.asked == self.asked


@dataclass(frozen=True)
class Job:
    """Cells of one mesh, for one world of ranks."""

    id: str
    campaign: str
    mesh: MeshShape
    items: list[Item]
    folder: str  # where progress, failures and logs of the world are written
    device: Device = "auto"
    virtual_nodes: bool = False
    env: dict[str, str] = field(default_factory=dict)  # variables of every rank, the fabric's among them
    cluster: Cluster | None = None  # None: this host
    preflight: str | None = None  # the campaign's preflight.json: measured by the first world that comes
    allow_slow: bool = False
    cell_limit_s: float = 600.0
    start_limit_s: float = 300.0

    def __post_init__(self) -> None:
        for item in self.items:
            if item.cell.mesh != self.mesh:
                raise ValueError(f"cell {item.cell.key} is not of mesh {self.mesh}: a job is one world")

    def pending(self) -> list[int]:
        """The items without their record, by index."""
        return [index for index, item in enumerate(self.items) if not item.done()]


def part(job: Job, name: str, items: list[Item], folder: Path) -> Job:
    """A job like another, of other items."""
    return dataclasses.replace(job, id=name, items=items, folder=str(folder / name))


def anchored(job: Job) -> Job:
    """The job with its paths from the root: they hold for a process that goes to another folder, too."""
    items = [dataclasses.replace(item, out=os.path.abspath(item.out)) for item in job.items]
    preflight = os.path.abspath(job.preflight) if job.preflight is not None else None
    return dataclasses.replace(job, items=items, folder=os.path.abspath(job.folder), preflight=preflight)


def digest(items: list[Item]) -> str:
    """Eight characters that change when what is asked changes."""
    text = json.dumps([[item.cell.key, item.out, schema.dump(item.asked)] for item in items], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def save(job: Job, path: Path) -> None:
    record.write_atomic(path, json.dumps(schema.dump(job), indent=1) + "\n")


def load(path: Path) -> Job:
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is no readable job ({error}): make it again with 'ringmark plan'") from None
    return schema.load(Job, data, str(path))
