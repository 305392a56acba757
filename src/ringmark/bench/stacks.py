"""Where the ranks of a hung world are: each dumps its Python stacks before the world is ended.

The supervisor asks through a file, since it reaches only what it started (an srun, a container). Each agent
passes that on to its own ranks as a signal, which a rank hears whatever its interpreter is waiting for.
"""

from __future__ import annotations

import dataclasses
import faulthandler
import os
import re
import signal
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ringmark.bench import progress
from ringmark.bench.progress import Progress
from ringmark.record import Failure

ASK_S = 0.5
FLUSH_S = 1.0
DETAIL = 4000
LINES, MOST_LINES = 40, 8  # of the stacks of all ranks, and of one, in a record
_THREAD = re.compile(r"(Current thread|Thread) 0x\w+.*\(most recent call first\)")
_FRAME = re.compile(r'  File "(.*)", line (\S+) in (.*)')
_OURS = re.compile(r"/ringmark/(?:methods|peers|comm|kernels)/")
# Innermost there, a rank waits for others: in a collective, a hop, or for its GPU, which waits in one.
_WAITING = re.compile(r"/torch/distributed/|/torch/cuda/|/ringmark/comm/|/ringmark/bench/gather\.py$")


def register(folder: Path, rank: int) -> None:
    """Let this process dump the stacks of its threads when it is asked to."""
    folder.mkdir(parents=True, exist_ok=True)
    file = open(_path(folder, rank), "wb", buffering=0)  # noqa: SIM115 (the handler keeps it, and it stays open)
    faulthandler.register(signal.SIGUSR1, file=file, all_threads=True)


def pass_on(folder: Path, world_size: int) -> None:
    """Wait until the stacks are asked for; then have the ranks that this process started dump theirs."""
    while not progress.stacks_asked(folder):
        time.sleep(ASK_S)
    mine = {rank: at.pid for rank, at in progress.ranks(folder, world_size).items() if _is_child(at.pid)}
    for pid in mine.values():
        with suppress(OSError):
            os.kill(pid, signal.SIGUSR1)
    time.sleep(FLUSH_S)
    for rank in mine:  # on another node the supervisor sees only what has left this one's memory
        with suppress(OSError), open(_path(folder, rank), "rb+") as file:
            os.fsync(file.fileno())


def gathered(folder: Path, world_size: int, quiet: Collection[int], patience_s: float) -> dict[int, str]:
    """The stacks of all ranks that can still say them; a stack that does not come costs no more than that."""
    found: dict[int, str] = {}
    with suppress(OSError):
        progress.ask_for_stacks(folder)
        ready = [rank for rank in range(world_size) if rank not in quiet and _path(folder, rank).exists()]
        deadline = time.monotonic() + patience_s
        before: dict[int, str] | None = None
        while ready and time.monotonic() < deadline and not (found == before and all(map(found.get, ready))):
            before = found
            time.sleep(ASK_S)
            found = {rank: _path(folder, rank).read_text("utf-8", "replace") for rank in ready}
    return {rank: text for rank, text in found.items() if text}


def keep(found: Mapping[int, str], log: Path) -> None:
    """Add the stacks, whole, to the log of their world."""
    with suppress(OSError), open(log, "a", encoding="utf-8") as file:
        for rank, text in sorted(found.items()):
            file.write(f"\nrank {rank}, when it was ended:\n{text}")


def explained(
    failure: Failure, found: Mapping[int, str], where: Mapping[int, Progress], world_size: int
) -> Failure:
    """The failure of a hang with what the stacks say: where each rank was, and for whom the others waited."""
    points = {rank: stack for rank, text in found.items() if (stack := at_work(text))}
    if not points:
        return failure
    if failure.rank is None and (late := keeps_waiting(points, world_size)) is not None:
        reason = f"{failure.reason}; rank {late} is in {points[late][0]}, the others wait for it"
        failure = dataclasses.replace(failure, reason=reason, rank=late, stage=where[late].stage)
    lines = min(MOST_LINES, max(2, LINES // len(points)))
    order = sorted(points, key=lambda rank: (rank == failure.rank, rank))  # whom it is about comes last
    told = ["\n  ".join([f"rank {rank} is in", *map(str, points[rank][:lines])]) for rank in order]
    detail = "\n".join([*filter(None, [(failure.detail or "").rstrip()]), *told])
    return dataclasses.replace(failure, detail=detail[-DETAIL:])


@dataclass(frozen=True)
class Frame:
    """A function that has been called, and how far it is."""

    file: str
    line: str
    function: str

    def __str__(self) -> str:
        return f"{self.function} ({'/'.join(Path(self.file).parts[-2:])}:{self.line})"


def at_work(text: str) -> list[Frame]:
    """Of a dump the stack, innermost frame first, of the thread that does the rank's work.

    That is the main one (the handler runs in it), or the one in which autograd runs the backward for it.
    """
    main: list[Frame] = []
    others: list[list[Frame]] = []
    into: list[Frame] = []
    for line in text.splitlines():
        if thread := _THREAD.match(line):
            into = []
            if thread[1] == "Thread":
                others.append(into)
            else:
                main = into
        elif frame := _FRAME.match(line):
            into.append(Frame(*frame.groups()))
    if main and "/torch/autograd/" in main[0].file:
        return next((stack for stack in others if any(_OURS.search(one.file) for one in stack)), main)
    return main


def keeps_waiting(points: Mapping[int, list[Frame]], world_size: int) -> int | None:
    """The one rank that is not waiting while all others are; None where nobody or more than one is not."""
    busy = [rank for rank, stack in points.items() if not _WAITING.search(stack[0].file)]
    return busy[0] if len(busy) == 1 and len(points) == world_size > 1 else None


def _path(folder: Path, rank: int) -> Path:
    return folder / f"rank{rank}.stack"


def _is_child(pid: int) -> bool:
    """Whether a process is one that this one started: on another node its number is somebody else's."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1]) == os.getpid()
    except (OSError, ValueError):
        return False
