"""Which rank ended a world, and why: from what the ranks said and how their processes ended. Pure."""

from __future__ import annotations

import signal
from collections.abc import Mapping

from ringmark.bench.progress import DONE, Progress, RankFailure
from ringmark.errors import place
from ringmark.record import Failure, Status


def died(
    told: Mapping[int, RankFailure],
    codes: Mapping[int, int],
    where: Mapping[int, Progress],
    returncode: int,
    log: str,
) -> tuple[Status, Failure]:
    """The status and failure of a world that ended by itself.

    A rank's own reason comes first (out of memory before others, then the earliest), next a rank killed by
    a signal, then one that went without a word, last a rank that merely noticed that others were gone.
    """
    primary = {rank: failure for rank, failure in told.items() if not failure.secondary}
    if primary:
        return _said(primary)
    blamed = _blamed(told, codes, where, returncode)
    if blamed is not None:
        rank, how = blamed
        stage = where[rank].stage if rank in where else "start"
        return Status.CRASHED, Failure(f"rank {rank} {how}", rank, stage, log)
    if told:
        return _said(told)
    stage = min(where.values(), key=lambda at: at.item).stage if where else "start"
    reason = f"the world ended with exit status {returncode} and no rank said why"
    return Status.CRASHED, Failure(reason, None, stage, log)


def _blamed(
    told: Mapping[int, RankFailure], codes: Mapping[int, int], where: Mapping[int, Progress], returncode: int
) -> tuple[int, str] | None:
    """The rank that ended without a word, and how; None where nobody can tell which it was."""
    quiet = [rank for rank, at in sorted(where.items()) if rank not in told and at.stage != DONE]
    # Nothing makes a rank end well in the middle of its work but the method itself.
    well = [rank for rank in quiet if codes.get(rank, returncode) == 0]
    if well:
        return well[0], "ended with exit status 0 before its work was done"
    silent = {rank: code for rank, code in codes.items() if rank not in told and code != 0}
    # The agent ends the ranks that are left with SIGTERM: that is no cause while there is another.
    causes = {rank: code for rank, code in silent.items() if code != -signal.SIGTERM}
    if causes or (silent and not told):
        rank, code = min((causes or silent).items())
        killed = f"was killed by {signal.Signals(-code).name}" if code < 0 else None
        return rank, killed or f"ended with exit status {code}"
    if told and len(quiet) == 1:
        noticed, words = min(told.items(), key=lambda pair: pair[1].at)
        return quiet[0], f"went away without a word; rank {noticed} noticed: {words.reason}"
    return None


def _said(told: Mapping[int, RankFailure]) -> tuple[Status, Failure]:
    rank, first = min(told.items(), key=lambda pair: (pair[1].status is not Status.OOM, pair[1].at))
    return first.status, Failure(first.reason, rank, first.stage, first.detail)


def hung(where: Mapping[int, Progress], quiet: list[int], limit_s: float, log: str) -> tuple[Status, Failure]:
    """The failure of a world that made no progress for its limit; `quiet` ranks no longer beat."""
    stages = ", ".join(f"rank {rank} in {at.stage}" for rank, at in sorted(where.items()))
    reason = f"no result within {limit_s:g} s ({stages or 'no rank has started'})"
    if quiet:
        reason += f"; rank {quiet[0]} has stopped answering"
    behind = quiet[0] if quiet else None
    stage = where[behind].stage if behind is not None and behind in where else None
    return Status.TIMEOUT, Failure(reason, behind, stage, log)


def last_words(log: str) -> str:
    """What was said last by those who failed. After a task's last words Slurm says that it has ended; where a
    task had none, Slurm says why it could not begin."""
    said = [line for line in log.splitlines() if line.strip()]
    own = [line for line in said if not line.startswith("srun: ") and "*** STEP" not in line]
    return (own or said or ["no log"])[-1]


def in_lines(failure: Failure) -> list[str]:
    """A failure for who has to mend it: its reason, then the rank, its stage and the line that it was at."""
    line = place(failure.detail or "")
    where = (
        [f"rank {failure.rank} in stage {failure.stage}"]
        if failure.detail and failure.rank is not None
        else []
    )
    where += [f"at {line}"] if line else []
    return [failure.reason, *([", ".join(where)] if where else [])]
