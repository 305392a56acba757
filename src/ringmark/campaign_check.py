"""Whether a campaign may be believed: every derived number made again from its raw samples, every law held.

A problem makes a campaign unfit for a table. A note is worth knowing and stops nothing. No torch: it runs
where the tables are made.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ringmark import flops, record, stats
from ringmark.campaign_together import TOGETHER, Finding
from ringmark.errors import UserError
from ringmark.record import Record, Series

_SAME = 1e-9  # a number made again from the same samples by the same formula


@dataclass(frozen=True)
class Checked:
    """What a campaign's check found."""

    records: int
    findings: list[Finding]

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
    return Checked(len(files), findings)


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


# What a record must satisfy alone. (Its status law is held already where it is read.)


def timing(one: Record) -> Iterator[str]:
    """Every series' summary, and the rate, follow from the samples."""
    if one.timing is None:
        return
    for protocol, series in one.timing.series.items():
        for sentence in _series(one, series):
            yield f"{protocol}: {sentence}"
    cell = one.cell
    total = flops.cell_flops(cell)
    rate = flops.tflops_per_gpu(total, one.timing.headline.summary.median, cell.world_size)
    yield from _differs("tflops_per_gpu", one.timing.tflops_per_gpu, rate)
    for name in ("first_call_ms", "floor_ms"):
        value = getattr(one.timing, name)
        if not (math.isfinite(value) and value >= 0):
            yield f"{name} is {value}: a time is not negative"


def _series(one: Record, series: Series) -> Iterator[str]:
    rows, walls, asked = series.samples_ms, series.wall_ms, one.asked
    shapes = {(len(rows), len(row)) for row in rows} | {(len(walls), len(row)) for row in walls}
    if shapes != {(one.cell.world_size, series.summary.n)}:
        yield f"the samples are not {one.cell.world_size} ranks x {series.summary.n} iterations"
        return
    if not all(math.isfinite(value) and value > 0 for row in rows for value in row):
        yield "a sample is no positive time"
        return
    again = stats.summarize(stats.slowest_per_iteration(rows))
    for name in ("median", "ci_low", "ci_high", "ci_level", "p5", "p95"):
        yield from _differs(name, getattr(series.summary, name), getattr(again, name))
    yield from _differs(
        "clock_disagreement", series.clock_disagreement, stats.clock_disagreement(rows, walls)[0]
    )
    n, within = again.n, stats.known_within(again, asked.ci_target)
    if n > asked.max_iterations or (n < asked.min_iterations and series.stopped_by != "time_limit"):
        yield f"{n} iterations, asked were {asked.min_iterations} to {asked.max_iterations}"
    if series.stopped_by == "ci_target" and not within:
        yield "it says that the interval reached its target, and it did not"
    if series.stopped_by == "max_iterations" and n != asked.max_iterations:
        yield f"it says that it reached the most iterations, and it has {n} of {asked.max_iterations}"


def peak(one: Record) -> Iterator[str]:
    """No rate is above what the hardware's maker states."""
    if one.timing is None or one.ran is None:
        return
    stated = flops.peak_tflops(one.ran.device, one.cell.shape.dtype)
    if stated is not None and one.timing.tflops_per_gpu > stated.tflops:
        yield (
            f"{one.timing.tflops_per_gpu:.1f} TFLOP/s per GPU is above the device's peak of {stated.tflops} "
            f"({stated.source})"
        )


def answer(one: Record) -> Iterator[str]:
    """Every result was checked, and against something."""
    if one.check is None:
        return
    wanted = {"out"} if one.cell.phase == "fwd" else {"out", "dq", "dk", "dv"}
    if set(one.check.errors) != wanted:
        yield f"the check has {sorted(one.check.errors)}, the phase needs {sorted(wanted)}"
    for name, error in one.check.errors.items():
        if not 0 < error.rows_checked <= error.rows_total:
            yield f"{name}: {error.rows_checked} of {error.rows_total} rows checked"
        if not 0 <= error.worst_rank < one.cell.world_size:
            yield f"{name}: worst rank {error.worst_rank} is not in a world of {one.cell.world_size}"


def memory(one: Record) -> Iterator[str]:
    """The peak is the highest rank's."""
    if one.memory is None:
        return
    ranks = one.memory.per_rank_peak_mib
    if len(ranks) != one.cell.world_size:
        yield f"memory has {len(ranks)} ranks of {one.cell.world_size}"
    elif one.memory.peak_mib != max(ranks):
        yield f"peak_mib is {one.memory.peak_mib}, its ranks' highest is {max(ranks)}"
    if one.memory.peak_above_inputs_mib > one.memory.peak_mib:
        yield "memory above the inputs is more than memory in all"


def names(one: Record) -> Iterator[str]:
    """What ran is what the cell says."""
    if one.ran is None:
        return
    if one.ran.world_size != one.cell.world_size:
        yield f"{one.ran.world_size} ranks ran, the mesh is {one.cell.mesh}"
    asked = one.cell.kernel
    if asked != "auto" and one.ran.implementation == "ringmark" and one.ran.kernel != asked:
        yield f"kernel {one.ran.kernel} ran, {asked} was asked for"


ALONE: tuple[Callable[[Record], Iterable[str]], ...] = (timing, peak, answer, memory, names)


def _missing(folder: Path, there: set[str]) -> Iterator[Finding]:
    """Worth knowing: cells that were planned and have no record."""
    wanted = set()
    for path in sorted((folder / "jobs").glob("*.job.json")):
        try:
            items = json.loads(path.read_text(encoding="utf-8"))["items"]
        except (OSError, ValueError, KeyError):
            yield Finding(f"jobs/{path.name}", "is no readable job file", False)
            continue
        for item in items:
            wanted.add("records" + str(item["out"]).rpartition("/records")[2])
    left = sorted(wanted - there)
    if left:
        yield Finding(left[0], f"{len(left)} planned cells have no record, this is the first", False)


def _differs(name: str, written: float, again: float) -> Iterator[str]:
    if not math.isclose(written, again, rel_tol=_SAME, abs_tol=1e-12):
        yield f"{name} is {written:.9g}, the samples give {again:.9g}"
