"""Runs a job to its end: starts a world, watches it, ends it when it hangs, writes the records that it could
not, and starts a new world for what is left. Loads no torch; kills only what it started.
"""

from __future__ import annotations

import errno
import fcntl
import os
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

from ringmark import aside, diagnose, launch, record
from ringmark import job as jobs
from ringmark.bench import progress, stacks
from ringmark.errors import UserError
from ringmark.record import Failure, Record, Status
from ringmark.site import Site

POLL_S = 0.1
POLL_SHARED_S = 1.0  # a shared file system is not asked more often
GRACE_S = 3.0
GRACE_SRUN_S = 45.0  # srun waits for the last of its tasks, by default 30 s
SEEN_S = 10.0  # how long a file that another node wrote may take to be seen here
START_ATTEMPTS = 2  # a port may have been taken between finding it free and using it
SILENT_S = 5.0
Say = Callable[[str], None]


def run(job: jobs.Job, job_file: Path, say: Say = print, *, reasons: bool = True) -> list[Record]:
    """Measure every pending cell of a job; returns the records of all, in the job's order.

    `reasons`: whether to say why a cell has no time, too; whoever prints the records has no need of that.
    """
    check_writable(Path(job.folder))
    with only_one(Path(job.folder), f"job {job.id}"):
        aside.check(job.campaign, job.items)
        clock = Eta(len(job.pending()), say, reasons)
        site = Site(job) if job.pending() else None
        fruitless = not_started = 0
        while (todo := job.pending()) and site is not None:
            try:
                end = World(job, job_file, todo, clock, site).watch()
            except NotStartedError as error:
                not_started += 1
                if not_started == START_ATTEMPTS or not site.hosts:
                    raise
                say(f"{error}; once more")
                continue
            finished = len(todo) - len(job.pending())
            if end is not None and not job.items[end.item].done():
                blame(job, end)
                clock.finished(job.items[end.item])
            fruitless = 0 if finished or end is not None else fruitless + 1
            if fruitless > 1:
                raise UserError(f"job {job.id} ends without a record and without a reason: see {job.folder}")
        return [record.read(Path(item.out)) for item in job.items]


class End:
    """How a world ended before its work was done, and the item that it was at."""

    def __init__(self, item: int, status: Status, failure: Failure, run_id: str) -> None:
        self.item, self.status, self.failure, self.run_id = item, status, failure, run_id


class NotStartedError(UserError):
    """A world that began no cell."""


class World:
    """One world of ranks: a process of ours and the folder that it reports to."""

    def __init__(self, job: jobs.Job, job_file: Path, items: list[int], clock: Eta, site: Site) -> None:
        self.job, self.items, self.clock, self.site = job, items, clock, site
        self.run_id = f"{time.strftime('%Y%m%dT%H%M%S')}-{uuid4().hex[:6]}"
        self.folder = Path(job.folder, self.run_id)
        self.folder.mkdir(parents=True)
        self.log = self.folder / "log.txt"
        self.told: set[int] = set()  # items whose record was seen
        progress.supervise(self.folder)
        command = site.command(job_file, items, self.run_id)
        with open(self.log, "ab") as log:  # stacks of a hang are added to what ranks say
            try:
                self.process = subprocess.Popen(
                    command.argv,
                    env={**site.environ(), **command.env},
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                reason = error.strerror or str(error)
                raise UserError(
                    f"{command.argv[0]} does not start ({reason}): install it here, or name another runtime"
                ) from None

    def watch(self) -> End | None:
        """Wait for the end of the world; None when every item got its record, or every rank did its work."""
        current, since = -1, time.monotonic()
        try:
            while self.process.poll() is None:
                progress.supervise(self.folder)
                where = progress.ranks(self.folder, self.job.mesh.world_size)
                item = max((at.item for at in where.values()), default=-1)
                if item != current:
                    current, since = item, time.monotonic()
                    self.tell_finished()
                limit = self.job.start_limit_s if current < 0 else self.job.cell_limit_s
                if time.monotonic() - since > limit:
                    self.check_allocation()
                    return self.hung(where, limit)
                time.sleep(POLL_SHARED_S if self.site.hosts else POLL_S)
        finally:
            self.kill()
        self.tell_finished()
        ended_well, size = self.process.returncode == 0, self.job.mesh.world_size
        if ended_well and all(self.job.items[index].done() for index in self.items):
            return None
        self.check_allocation()
        progress.wait_for_reasons(self.folder, size, SEEN_S if self.site.hosts else 0.0)
        if ended_well and progress.finished(self.folder, size):
            return None
        nodes, _ = launch.geometry(self.job)
        if progress.told_to_end(self.folder, nodes):
            raise UserError(
                f"the ranks of job {self.job.id} were told to end from outside (by Slurm, where their nodes "
                "are wanted for another job): run again, what is measured is kept"
            )
        where = progress.ranks(self.folder, size)
        said, codes = progress.failures(self.folder, size), progress.exits(self.folder, size)
        return self.end(diagnose.died(said, codes, where, self.process.returncode, self.tail()), where)

    def hung(self, where: dict[int, progress.Progress], limit_s: float) -> End:
        """The end of a world without progress: its ranks say where they are before it is ended."""
        size = self.job.mesh.world_size
        found = stacks.gathered(self.folder, size, progress.silent(self.folder, size, SILENT_S), SEEN_S)
        # Asked again: who stopped shortly before the limit has by now kept silent for long enough.
        quiet = progress.silent(self.folder, size, SILENT_S)
        status, failure = diagnose.hung(where, quiet, limit_s, self.tail())
        try:
            return self.end((status, stacks.explained(failure, found, where, size)), where)
        finally:
            stacks.keep(found, self.log)

    def check_allocation(self) -> None:
        """An allocation that is cancelled, out of time or without a node is no cell's failure."""
        if state := self.site.over():
            raise UserError(
                f"the allocation of job {self.job.id} has ended ({state}): "
                "run again, what is measured is kept"
            )

    def tell_finished(self) -> None:
        """Say which cells got their record since the last look."""
        for index in self.items:
            if index not in self.told and self.job.items[index].done():
                self.told.add(index)
                self.clock.finished(self.job.items[index])

    def struck_item(self, failure: Failure, where: dict[int, progress.Progress]) -> int:
        """The item that the world was at: where the rank to blame was, else the first without a record.

        A rank that ends after its item's record was written spoils no measurement: that item is then told,
        has its record, and nobody is blamed; the next one, not begun, is measured by the next world.
        """
        rank = where.get(failure.rank) if failure.rank is not None else None
        at = rank.item if rank is not None else max(one.item for one in where.values())
        if at in self.items and self.job.items[at].done():
            return at
        return next((index for index in self.items if not self.job.items[index].done()), self.items[-1])

    def end(self, verdict: tuple[Status, Failure], where: dict[int, progress.Progress]) -> End:
        """The end at the item that the world was at; a world that began no item has no cell to blame."""
        status, failure = verdict
        if not any(at.item >= 0 for at in where.values()):
            late = status is Status.TIMEOUT and self.job.cluster is not None
            advice = "; where nodes fetch an image first, raise start_limit_s in the config" if late else ""
            last = diagnose.last_words(self.tail())
            raise NotStartedError(f"the ranks did not start: {failure.reason}{advice}: {last}")
        self.tell_finished()
        return End(self.struck_item(failure, where), status, failure, self.run_id)

    def tail(self) -> str:
        return self.log.read_text(errors="replace")[-2000:]

    def kill(self) -> None:
        """End the world; its ranks die with their agent. srun, told to end, ends its tasks at once."""
        grace = GRACE_SRUN_S if self.site.hosts else GRACE_S
        for number, patience in ((signal.SIGTERM, grace), (signal.SIGKILL, GRACE_S)):
            if self.process.poll() is not None:
                break
            os.killpg(self.process.pid, number)
            try:
                self.process.wait(patience)
            except subprocess.TimeoutExpired:
                continue
        self.site.end_steps(self.run_id)


def blame(job: jobs.Job, end: End) -> None:
    """Write the record that the world could not."""
    item = job.items[end.item]
    if item.done():
        return
    around = progress.environment(Path(job.folder, end.run_id))
    found = Record(item.cell, item.asked, end.status, job.campaign, failure=end.failure, environment=around)
    record.write(found, Path(item.out))


class Eta:
    """Says each finished cell, how many are left and about how long that takes."""

    def __init__(self, total: int, say: Say, reasons: bool) -> None:
        self.total, self.say, self.reasons = total, say, reasons
        self.count, self.start = 0, time.monotonic()

    def finished(self, item: jobs.Item) -> None:
        self.count += 1
        found = record.read(Path(item.out))
        spent = time.monotonic() - self.start
        left = spent / self.count * (self.total - self.count)
        time_text = f"{found.timing.headline.summary.median:.3f} ms" if found.timing else found.status.value
        eta = f", about {left:.0f} s left" if self.count < self.total else ""
        self.say(f"[{self.count}/{self.total}] {item.cell.key}: {time_text}{eta}")
        if found.failure and self.reasons:
            self.say("\n".join(f"    {line}" for line in diagnose.in_lines(found.failure)))


@contextmanager
def only_one(folder: Path, what: str) -> Iterator[None]:
    """One at a time for what a folder stands for: a second one is told so instead of measuring beside it."""
    path = folder / jobs.LOCK
    with open(path, "a+") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise UserError(
                    f"the file system of {path.parent} has no locks ({error.strerror}): put results elsewhere"
                ) from None
            raise UserError(f"{what} is being run by another process: wait for it, or end it") from None
        yield


def check_writable(folder: Path) -> None:
    """Say at once that nothing can be written, before minutes are spent measuring."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / f".probe.{uuid4().hex}"  # two containers on one folder may have the same process id
        probe.touch()
        probe.unlink()
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"cannot write to {folder}: {reason}; choose a place that can be written") from None
