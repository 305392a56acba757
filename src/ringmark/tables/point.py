"""A point: one cell of a table, folded from all the repeats of one measurement. No repeat is left out.

The value is the median of the repeats' medians; the interval runs from the lowest to the highest end of
their intervals. The rate is made from these, not folded beside them: of an even number of repeats the median
of rates is not the rate of the median. One wrong answer among the repeats makes the point wrong.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import median

from ringmark.flops import attention_flops, peak_tflops, tflops_per_gpu
from ringmark.stats import LEVEL
from ringmark.tables.cellrow import CellRow

NOT_RUN = "not run"
WRONG = "wrong"
IMPOSSIBLE = "impossible"
NOISE = "within noise"
# The interval of one launch knows nothing of the next: the same cell differs by 1% from one to another, and
# one of less than 10 ms by up to 1.8 times (docs/performance.md), so a lead of less is none. The interval of
# three launches or more knows.
CLEAR_LEAD = 1.01
SHORT_MS = 10.0
CLEAR_LEAD_SHORT = 2.0
ENOUGH_LAUNCHES = 3
OUTRUN = "above 1: faster than the bound, which is the kernel alone in larger calls"
CHECKED_ONCE = "the answer was checked before the timing and not again after it"
OTHER_BOUND = "the bound is from another run of this campaign"
BOUND_ASKED = "the bound was asked for as"
OF_THE_BOUND = (OUTRUN, OTHER_BOUND, BOUND_ASKED)  # how notes begin that only a fraction needs
APART = "the repeats differ by more than their intervals"
OTHER_RUNS = "forward, and forward + backward, are from different runs"
APART_FROM_COLUMN = "measured in another run than most of its column"


@dataclass(frozen=True)
class Span:
    """A value with the interval around it."""

    value: float
    low: float
    high: float

    def over(self, divisor: Span) -> Span:
        """This span divided by another: the widest interval that both allow."""
        return Span(self.value / divisor.value, self.low / divisor.high, self.high / divisor.low)


@dataclass(frozen=True)
class Point:
    """What a table shows of one measurement: a time, or the word that stands in its place."""

    status: str
    rows: tuple[CellRow, ...]
    time_ms: Span | None = None
    rate: Span | None = None  # TFLOP/s per GPU
    fraction: float | None = None
    memory_above_inputs_mib: float | None = None
    memory_peak_mib: float | None = None
    taken: tuple[str, ...] = ()  # of an open table: the kernel and options that it took
    notes: tuple[str, ...] = field(default=())

    @property
    def told(self) -> tuple[str, ...]:
        """All that a table says beside its number."""
        return (*self.taken, *self.notes)

    @property
    def passed(self) -> bool:
        return self.time_ms is not None

    @property
    def clear_lead(self) -> float:
        """By what factor another has to be better, or worse, for that to be more than luck."""
        launches = sum(row.passed for row in self.rows)
        short = self.time_ms is not None and self.time_ms.value < SHORT_MS
        return CLEAR_LEAD_SHORT if short and launches < ENOUGH_LAUNCHES else CLEAR_LEAD

    @property
    def runs(self) -> set[str | None]:
        """The runs that its time is from. Two points without a common one also differ by their runs."""
        return {row.run_id for row in self.rows if row.passed}


def point(rows: Sequence[CellRow]) -> Point:
    """Fold the repeats of one cell."""
    passed = [row for row in rows if row.median_ms is not None]
    others = [row for row in rows if row.median_ms is None]
    wrong = [row for row in others if row.status == WRONG]
    if wrong or not passed:
        status = WRONG if wrong else Counter(row.status for row in others).most_common(1)[0][0]
        reasons = sorted({row.reason or "" for row in others if row.status == status})
        return Point(status, tuple(rows), notes=tuple(f"{status}: {reason}" for reason in reasons))
    time_ms = _fold(passed)
    fractions = [row.fraction_of_bound for row in passed if row.fraction_of_bound is not None]
    return Point(
        "passed",
        tuple(rows),
        time_ms=time_ms,
        rate=_rate(passed[0], passed[0].phase, time_ms),
        fraction=median(fractions) if fractions else None,
        memory_above_inputs_mib=_highest(passed, "memory_above_inputs_mib"),
        memory_peak_mib=_highest(passed, "memory_peak_mib"),
        notes=tuple(_notes(passed, others)),
    )


def _fold(rows: Sequence[CellRow]) -> Span:
    lows, highs = [row.ci_low_ms or 0.0 for row in rows], [row.ci_high_ms or 0.0 for row in rows]
    return Span(median(row.median_ms or 0.0 for row in rows), min(lows), max(highs))


def _highest(rows: Sequence[CellRow], name: str) -> float | None:
    return max((getattr(row, name) for row in rows if getattr(row, name) is not None), default=None)


def _notes(passed: Sequence[CellRow], others: Sequence[CellRow]) -> list[str]:
    notes = []
    if others:
        words = ", ".join(sorted(f"{row.status} ({row.reason})" for row in others))
        notes.append(f"{len(passed)} of {len(passed) + len(others)} repeats passed; the rest: {words}")
    if max(row.ci_low_ms or 0.0 for row in passed) > min(row.ci_high_ms or 0.0 for row in passed):
        notes.append(APART)
    for row in passed:
        notes += [_in_words(flag) for flag in json.loads(row.flags)]
        if row.ci_level is not None and row.ci_level < LEVEL:
            notes.append(f"{row.n} iterations: the interval covers {row.ci_level:.3g}, not {LEVEL}")
        if row.stopped_by == "time_limit":
            notes.append("stopped by the time limit before the interval was as narrow as asked")
        if row.checks < 2:
            notes.append(CHECKED_ONCE)
        measured, _, asked = (row.bound_from or "").partition(", ")
        if measured == "campaign":
            notes.append(OTHER_BOUND)
        if asked:
            notes.append(f"{BOUND_ASKED} {asked}, which ran the same one and was faster")
        if row.fraction_of_bound is not None and row.fraction_of_bound > CLEAR_LEAD:
            notes.append(OUTRUN)
    return list(dict.fromkeys(notes))


def _in_words(flag: str) -> str:
    """A flag as a table tells it: which ranks were throttled stands in the record."""
    kind, _, rest = flag.partition(":")
    return f"some GPU's clocks were held down ({rest.rpartition(':')[0]})" if kind == "throttled" else flag


def backward(forward: Point | None, both: Point | None) -> Point | None:
    """The backward alone, derived: forward + backward less forward. It was never timed by itself.

    What no backward can have taken (no time at all, or so little that its rate is above the device's peak)
    is a word.
    """
    if forward is None or both is None:
        return None
    if forward.time_ms is None or both.time_ms is None:
        failed = forward if forward.time_ms is None else both
        return Point(failed.status, failed.rows, notes=failed.notes)
    first, whole = forward.time_ms, both.time_ms
    time_ms = Span(whole.value - first.value, whole.low - first.high, whole.high - first.low)
    notes = [] if forward.runs == both.runs else [OTHER_RUNS]
    if time_ms.high <= 0:
        reason = "forward + backward took less time than the forward alone"
        return Point(IMPOSSIBLE, both.rows, notes=(f"{IMPOSSIBLE}: {reason}", *notes))
    if time_ms.low <= 0:
        return Point(NOISE, both.rows, notes=("the two intervals differ by less than they are wide", *notes))
    rate = _rate(both.rows[0], "bwd", time_ms)
    peak = _peak(both.rows[0])
    if rate.value > peak:
        reason = f"the difference would be {rate.value:.0f} TFLOP/s per GPU, above the peak of {peak:g}"
        return Point(IMPOSSIBLE, both.rows, notes=(f"{IMPOSSIBLE}: {reason}", *notes))
    if rate.high > peak:
        reason = f"the interval of the difference reaches above the device's peak of {peak:g} TFLOP/s"
        return Point(NOISE, both.rows, notes=(reason, *notes))
    return Point("passed", both.rows, time_ms=time_ms, rate=rate, notes=tuple(notes))


def _peak(row: CellRow) -> float:
    peak = peak_tflops(row.device or "", row.dtype)
    return peak.tflops if peak else math.inf


def _rate(row: CellRow, phase: str, time_ms: Span) -> Span:
    """The rate of a time: its long end is the rate's low one."""
    work = attention_flops(
        batch=row.batch,
        seqlen_global=row.seqlen_global,
        num_heads_q=row.num_heads_q,
        head_dim=row.head_dim,
        causal=row.mask == "causal",
        phase=phase,
    )
    value, high, low = (
        tflops_per_gpu(work, end, row.world_size) for end in (time_ms.value, time_ms.low, time_ms.high)
    )
    return Span(value, low, high)
