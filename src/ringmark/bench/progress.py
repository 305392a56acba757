"""What a world tells its supervisor, in small files on a folder both can see: one set a run, one a rank.

    <job folder>/<run id>/rank3.json      where the rank is: item, stage          (written at each stage)
    <job folder>/<run id>/rank3.beat      touched every second                    (a stopped process is not)
    <job folder>/<run id>/rank3.stack     where its threads are, once it was asked    (of a world that hangs)
    <job folder>/<run id>/failure3.json   why the rank gave up: status, reason    (at most once)
    <job folder>/<run id>/exit3.json      how its process ended                   (by the agent)
    <job folder>/<run id>/environment.json what the world measures on   (by rank 0, before any item)
    <job folder>/<run id>/told0           the agent of a node was told to end     (by Slurm, or by whom)
    <job folder>/<run id>/supervisor      touched at every look by the supervisor (agents end without it);
                                          holds a word once the ranks' stacks are wanted

Files work alike on one host and on a cluster's shared file system, and survive every process.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from ringmark import record, schema

T = TypeVar("T")
DONE = "done"  # the last stage of a rank
_STACKS = "stacks"


@dataclass(frozen=True)
class Progress:
    """Where a rank is."""

    item: int
    stage: str
    at: float
    host: str
    pid: int


@dataclass(frozen=True)
class RankFailure:
    """Why a rank gave up. `secondary`: it only noticed that another rank was gone."""

    item: int
    stage: str
    status: record.Status
    reason: str
    detail: str
    at: float
    secondary: bool


class Reporter:
    """A rank's pen: says where it is, and beats."""

    def __init__(self, folder: str, run_id: str, rank: int) -> None:
        self.folder, self.rank = Path(folder, run_id), rank
        self.folder.mkdir(parents=True, exist_ok=True)
        self.item, self.stage = -1, "start"
        threading.Thread(target=self._beat, daemon=True).start()
        self.at("start", -1)

    def at(self, stage: str, item: int | None = None) -> None:
        # The item first: what looks in between must never take the start of one item for that of the last.
        self.item = self.item if item is None else item
        self.stage = stage
        where = Progress(self.item, stage, time.time(), os.uname().nodename, os.getpid())
        _write(self.folder / f"rank{self.rank}.json", where)

    def failed(self, status: record.Status, reason: str, detail: str, secondary: bool) -> None:
        failure = RankFailure(self.item, self.stage, status, reason, detail, time.time(), secondary)
        _write(self.folder / f"failure{self.rank}.json", failure)

    def _beat(self) -> None:
        path = self.folder / f"rank{self.rank}.beat"
        while True:
            path.touch()
            time.sleep(1.0)


def keep_environment(folder: Path, environment: Mapping[str, Any]) -> None:
    """For the records that the world cannot write itself."""
    record.write_atomic(folder / "environment.json", json.dumps(environment))


def environment(folder: Path) -> dict[str, Any]:
    """What a world measured on; nothing, where it has not said so."""
    path = folder / "environment.json"
    found: dict[str, Any] = json.loads(path.read_text()) if path.exists() else {}
    return found


def write_exit(folder: str, run_id: str, rank: int, exitcode: int) -> None:
    """Say how the process of a rank ended (negative: the signal)."""
    record.write_atomic(Path(folder, run_id, f"exit{rank}.json"), json.dumps({"exitcode": exitcode}))


def write_told_to_end(folder: str, run_id: str, node: int) -> None:
    """Say that this node's agent was told to end."""
    Path(folder, run_id, f"told{node}").touch()


def told_to_end(folder: Path, nodes: int) -> bool:
    """Whether every agent was: where one ends by its ranks' failure, srun tells only the others."""
    return all((folder / f"told{node}").exists() for node in range(nodes))


def ranks(folder: Path, world_size: int) -> dict[int, Progress]:
    """Where each rank is that has said so."""
    found = {rank: _read(folder / f"rank{rank}.json", Progress) for rank in range(world_size)}
    return {rank: where for rank, where in found.items() if where is not None}


def failures(folder: Path, world_size: int) -> dict[int, RankFailure]:
    found = {rank: _read(folder / f"failure{rank}.json", RankFailure) for rank in range(world_size)}
    return {rank: failure for rank, failure in found.items() if failure is not None}


def exits(folder: Path, world_size: int) -> dict[int, int]:
    """The exit codes that agents have reported."""
    codes = {}
    for rank in range(world_size):
        path = folder / f"exit{rank}.json"
        if path.exists():
            codes[rank] = int(json.loads(path.read_text())["exitcode"])
    return codes


def supervise(folder: Path) -> None:
    """Say that the supervisor lives, without asking a clock: it may step back, a file server's be ahead."""
    (folder / "supervisor").touch()


def ask_for_stacks(folder: Path) -> None:
    """Ask all ranks for their stacks, in a file that is there: that a new one is there may be seen late."""
    (folder / "supervisor").write_text(_STACKS)


def stacks_asked(folder: Path) -> bool:
    """Whether the supervisor wants the stacks; opening a file shows what another node has written."""
    try:
        return (folder / "supervisor").read_text() == _STACKS
    except OSError:
        return False


class Lease:
    """Whether the supervisor of a run still lives, as its agents on other nodes see it.

    Only changes are looked at, by the reader's own clock: the clocks of two nodes may differ.
    """

    def __init__(self, folder: str, run_id: str, seconds: float) -> None:
        self.path, self.seconds = Path(folder, run_id, "supervisor"), seconds
        self.last, self.since = 0.0, time.monotonic()

    def expired(self) -> bool:
        beat = self.path.stat().st_mtime if self.path.exists() else 0.0
        if beat != self.last:
            self.last, self.since = beat, time.monotonic()
        return time.monotonic() - self.since > self.seconds


def finished(folder: Path, world_size: int) -> bool:
    """Whether every rank has said that its work is done."""
    found = ranks(folder, world_size)
    return len(found) == world_size and all(at.stage == DONE for at in found.values())


def wait_for_reasons(folder: Path, world_size: int, seconds: float) -> None:
    """Give files that other nodes have just written the time to be seen."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline and not any(
        said(folder, world_size) for said in (failures, exits, finished)
    ):
        time.sleep(0.2)


def silent(folder: Path, world_size: int, seconds: float) -> list[int]:
    """Ranks that have not beaten for so long: their process is stopped or gone.

    Now is what the file system says of the supervisor's own beat: the clocks of two nodes may differ.
    """
    ours = folder / "supervisor"
    ours.touch()
    now, quiet = ours.stat().st_mtime, []
    for rank in range(world_size):
        beat = folder / f"rank{rank}.beat"
        if beat.exists() and now - beat.stat().st_mtime > seconds:
            quiet.append(rank)
    return quiet


def _write(path: Path, value: object) -> None:
    record.write_atomic(path, json.dumps(schema.dump(value)))


def _read(path: Path, kind: type[T]) -> T | None:
    return schema.load(kind, json.loads(path.read_text()), str(path)) if path.exists() else None
