"""The record of one cell: what was asked, what ran, what was measured, on what.

Status decides which fields may exist.
A passed record has a timing, a check and a memory figure; any other has a reason and no timing, ever
(`Record.__post_init__` is the law, and nothing can build a record around it). Written atomically.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import Enum
from pathlib import Path
from typing import Any, Literal
from uuid import uuid4

from ringmark import schema
from ringmark.cell import Cell
from ringmark.errors import UserError
from ringmark.stats import Summary

SCHEMA_VERSION = "ringmark.record/1"
Protocol = Literal["isolated", "pipelined"]


class Status(str, Enum):
    """How a cell ended, in one word; tables print the word where there is no number."""

    PASSED = "passed"
    WRONG = "wrong"
    OOM = "oom"
    UNSUPPORTED = "unsupported"
    UNAVAILABLE = "unavailable"
    TIMEOUT = "timeout"
    CRASHED = "crashed"


@dataclass(frozen=True)
class Measure:
    """How a cell is measured; the defaults of a config and of the command line."""

    protocols: list[Protocol] = field(default_factory=lambda: ["isolated"])
    warmup: int = 3
    warmup_s: float = 0.0
    min_iterations: int = 10
    max_iterations: int = 100
    ci_target: float = 0.02
    time_limit_s: float = 60.0
    profile: bool = False

    def __post_init__(self) -> None:
        if not self.protocols or len(set(self.protocols)) < len(self.protocols):
            raise ValueError(f"protocols is {self.protocols}: name isolated, pipelined or both, each once")
        if self.warmup < 3:
            raise ValueError(f"warmup is {self.warmup}: at least 3 untimed iterations come before a timing")
        if not 1 <= self.min_iterations <= self.max_iterations:
            raise ValueError(
                f"iterations from {self.min_iterations} to {self.max_iterations}: "
                "give min_iterations of at least 1 and max_iterations not below it"
            )
        for name in ("warmup_s", "ci_target", "time_limit_s"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}: give a number, 0 or more")
        if not self.time_limit_s:
            raise ValueError("time_limit_s is 0: give more, or nothing is timed")


@dataclass(frozen=True)
class Asked(Measure):
    """What the config or the command line asked of the measurement, besides the cell itself."""

    repeat: int = 0
    seed: int = 0


@dataclass(frozen=True)
class Ran:
    """What really ran: the kernel behind `auto`, the layout, the backend, and the bytes that a rank sent."""

    run_id: str
    order: int
    kernel: str
    kernel_version: str
    layout: str
    opt_bwd: bool | None
    deterministic: bool
    device: str
    backend: str
    transport: str
    world_size: int
    bytes_sent_intra: int | None  # None: the implementation is not ours, nobody counted
    bytes_sent_inter: int | None
    started_at: str
    settings: dict[str, Any] = field(default_factory=dict)
    label: str = ""
    implementation: str = "ringmark"


@dataclass(frozen=True)
class Series:
    """One protocol's timing: every rank's every iteration, and what follows from them."""

    samples_ms: list[list[float]]
    wall_ms: list[list[float]]
    summary: Summary
    stopped_by: Literal["ci_target", "max_iterations", "time_limit"]
    clock: Literal["cuda_events", "monotonic"]
    clock_disagreement: float
    flags: list[str] = field(default_factory=list)


@dataclass(frozen=True)
class Timing:
    """How long the cell took. The headline is `isolated` where it was measured, else `pipelined`."""

    first_call_ms: float
    floor_ms: float
    series: dict[Protocol, Series]
    tflops_per_gpu: float

    def __post_init__(self) -> None:
        if not self.series:
            raise ValueError("series is empty: a timing has one for each protocol that was asked for")

    @property
    def headline(self) -> Series:
        return self.series[headline(self.series)]


def headline(series: Mapping[Protocol, Series]) -> Protocol:
    """The protocol that a cell's one time is taken from."""
    return "isolated" if "isolated" in series else next(iter(series))


@dataclass(frozen=True)
class TensorError:
    """How far one tensor is from exact attention, and how far the kernel alone is on the same rows."""

    relative_error: float
    kernel_relative_error: float
    allowed: float
    rows_checked: int
    rows_total: int
    worst_rank: int
    nonfinite: int = 0  # elements that are nan or infinite, in any row; they count as zero in the error

    @property
    def ok(self) -> bool:
        return self.nonfinite == 0 and self.relative_error <= self.allowed


@dataclass(frozen=True)
class Balance:
    """Two things that are equal in a right answer, and by how much of their scale they differ."""

    gap: float
    allowed: float

    @property
    def ok(self) -> bool:
        return self.gap <= self.allowed


@dataclass(frozen=True)
class Uniform:
    """The worst row of all where every visible key weighs alike, in units of what its elements are."""

    error: float
    allowed: float
    worst_rank: int

    @property
    def ok(self) -> bool:
        return self.error <= self.allowed


@dataclass(frozen=True)
class Check:
    """The answer held against exact attention before any timing; `again` after it, on other numbers."""

    errors: dict[str, TensorError]
    reference_dtype: str
    check_ms: float
    balance: dict[str, Balance] = field(default_factory=dict)
    uniform: Uniform | None = None
    timed: Balance | None = None  # what the last timed iteration left, and one that was not timed
    again: Check | None = None

    @property
    def ok(self) -> bool:
        held = [error.ok for error in self.errors.values()] + [sums.ok for sums in self.balance.values()]
        held += [one.ok for one in (self.uniform, self.timed, self.again) if one is not None]
        return all(held)


@dataclass(frozen=True)
class Memory:
    """The highest rank's peak in an iteration: above its inputs (on a CPU: what was there), and in all."""

    peak_above_inputs_mib: float
    peak_mib: float
    inputs_mib: float
    device_used_mib: float | None
    per_rank_peak_mib: list[float]
    source: Literal["cuda_allocator", "resident_set"]


@dataclass(frozen=True)
class Failure:
    """Why there is no time: one sentence, the rank that it is about, the stage it was in."""

    reason: str
    rank: int | None = None
    stage: str | None = None
    detail: str | None = None


@dataclass(frozen=True)
class Record:
    """The JSON of one cell."""

    cell: Cell
    asked: Asked
    status: Status
    campaign: str
    ran: Ran | None = None
    timing: Timing | None = None
    check: Check | None = None
    memory: Memory | None = None
    failure: Failure | None = None
    profile: dict[str, Any] | None = None
    environment: dict[str, Any] = field(default_factory=dict)
    schema: str = SCHEMA_VERSION

    def __post_init__(self) -> None:
        passed = self.status is Status.PASSED
        if passed and not (self.ran and self.timing and self.check and self.memory):
            raise ValueError("a passed record needs ran, timing, check and memory")
        if passed and self.failure is not None:
            raise ValueError("a passed record has no failure")
        if passed and self.check is not None and not self.check.ok:
            raise ValueError(
                "a passed record cannot have an error above what is allowed: its status is wrong"
            )
        if not passed and (self.timing is not None or self.memory is not None or self.profile is not None):
            raise ValueError(
                f"a record with status {self.status.value} cannot have a timing, memory or profile"
            )
        if not passed and (self.failure is None or not self.failure.reason):
            raise ValueError(f"a record with status {self.status.value} needs a failure with its reason")
        if self.status is Status.WRONG and (self.check is None or self.check.ok):
            raise ValueError("a wrong record needs the check that it failed")
        if self.schema != SCHEMA_VERSION:
            raise ValueError(f"schema is {self.schema!r}, this ringmark reads {SCHEMA_VERSION!r}")

    @property
    def path(self) -> Path:
        """Where the record lives under its campaign's folder."""
        return record_path(self.cell, self.asked.repeat)


def record_path(cell: Cell, repeat: int) -> Path:
    """The path of a record under its campaign's folder: the cell's key and the repeat."""
    return Path("records", f"{cell.key}.r{repeat}.json")


def write_atomic(path: Path, content: str | bytes, *, durable: bool = True) -> None:
    """Write a file so that a reader, or a crash, sees the whole of it or nothing.

    What can be made again at any time need not be durable: it may be lost with the machine's power.
    An unwritable place is told in one sentence, whoever writes there.
    """
    data = content if isinstance(content, bytes) else content.encode("utf-8")
    with in_place_of(path) as temporary, open(temporary, "wb") as file:
        file.write(data)
        if durable:
            file.flush()
            os.fsync(file.fileno())


@contextmanager
def in_place_of(path: Path) -> Iterator[Path]:
    """A file beside `path` to write to, which takes its name once it is whole."""
    # Two containers on one folder may have the same process id.
    temporary = path.with_name(f".{path.name}.{uuid4().hex}.tmp")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            yield temporary
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        reason = error.strerror or str(error)
        raise UserError(f"cannot write {path}: {reason}; choose a place that can be written") from None


def write(record: Record, path: Path) -> None:
    """Write a record; one that `read` would refuse is refused before, and nothing is written."""
    try:
        text = json.dumps(schema.dump(record), indent=1, allow_nan=False) + "\n"
    except (TypeError, ValueError) as error:
        raise UserError(f"{path} would hold what a record cannot: {error}") from None
    from_json(json.loads(text), str(path))
    write_atomic(path, text)


def read(path: Path) -> Record:
    """Read a record; a file that is none is told in one sentence, and left as it is."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(
            f"{path} is no readable record ({error}): restore or delete it, then run again"
        ) from None
    return from_json(data, str(path))


def from_json(data: Mapping[str, Any], where: str) -> Record:
    found = schema.load(Record, data, where)
    if "schema" not in data:
        raise UserError(f"{where} lacks the key 'schema': what it was written by is not known")
    return found
