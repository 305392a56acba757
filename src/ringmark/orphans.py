"""Jobs that an earlier run left behind: found, and waited for, before anything is measured beside them.

When the driver is killed hard its jobs live on. A second job beside such an orphan would measure on nodes
that are busy; so a new run finds its orphans, in Slurm's own list by the folder and the comment that the
plugin gives every job, on this host by the locks that supervisors hold, and lets them finish. What they
measure counts like anything else.
"""

from __future__ import annotations

import fcntl
import shutil
import subprocess
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from ringmark.errors import UserError
from ringmark.job import LOCK
from ringmark.submit import comment

POLL_S = 5.0
TELL_S = 300.0
GIVE_UP_AFTER = 12  # silent answers in a row
Say = Callable[[str], None]


@dataclass(frozen=True)
class Orphan:
    """A job in Slurm that is one of the campaign's."""

    slurm_job: str
    state: str
    job_id: str


def find(job_ids: Iterable[str], folder: Path) -> list[Orphan]:
    """The campaign's jobs that Slurm still has, in any state before their end."""
    asked = ["squeue", "-h", "--me", "-o", "%i|%T|%Z|%k"]
    for attempt in range(GIVE_UP_AFTER):
        done = subprocess.run(asked, capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return among(done.stdout, job_ids, folder)
        time.sleep(0 if attempt + 1 == GIVE_UP_AFTER else POLL_S)
    raise UserError(
        f"squeue does not answer ({' '.join(done.stderr.split())}): nobody can say whether jobs of an "
        "earlier run are still there, so nothing is submitted"
    )


def among(listing: str, job_ids: Iterable[str], folder: Path) -> list[Orphan]:
    """The campaign's jobs in squeue's listing."""
    by_comment = {comment(job_id): job_id for job_id in job_ids}
    found = []
    for line in listing.splitlines():
        slurm_job, state, where, said = line.split("|", 3)
        if Path(where) == folder and said in by_comment:
            found.append(Orphan(slurm_job, state, by_comment[said]))
    return found


def settle(job_ids: list[str], folder: Path, say: Say) -> list[Orphan]:
    """Wait until no orphan is left; returns those that there were."""
    if shutil.which("squeue") is None:
        return []
    first = left = find(job_ids, folder)
    told = float("-inf")
    while left:
        if time.monotonic() - told > TELL_S:
            told = time.monotonic()
            names = ", ".join(f"{one.slurm_job} ({one.state.lower()}, {one.job_id})" for one in left)
            ids = " ".join(one.slurm_job for one in left)
            say(
                f"ringmark: jobs of an earlier run are still in Slurm: {names}. Waiting for them: what they "
                f"measure counts. Not wanted? scancel {ids}"
            )
        time.sleep(POLL_S)
        left = find(job_ids, folder)
    return first


def settle_here(jobs_folder: Path, say: Say) -> None:
    """Wait until nobody on this host, or on another that sees the folder, measures jobs of a campaign."""
    busy = at_work(jobs_folder)
    if busy:
        say(
            "ringmark: another process, perhaps of an earlier run, still measures "
            f"{', '.join(busy)}. Waiting for it: what it measures counts"
        )
    while busy:
        time.sleep(POLL_S)  # also after the last: the list of a job's records is written without the lock
        busy = at_work(jobs_folder)


def at_work(jobs_folder: Path) -> list[str]:
    """The jobs whose supervisor holds its lock."""
    return [lock.parent.name for lock in sorted(jobs_folder.glob(f"*/{LOCK}")) if is_held(lock)]


def is_held(lock: Path) -> bool:
    try:
        with open(lock) as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # cannot be locked or read: the supervisor says so
        return False
    return False
