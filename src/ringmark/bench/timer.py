"""The clock: one body, many iterations, every rank's every time kept.

    isolated    sync | barrier | sync | start  body  end | sync        each iteration alone
    pipelined   sync | barrier | sync | t body t body t ... body t | sync    K back to back

The clock is CUDA events on the current stream (a monotonic clock on CPU); wall clock, read around the same
span with the device idle on both sides, is the witness: work that escaped to a stream that the events do not
see makes the two differ. The engine times; a method cannot. docs/metrics.md derives the figures.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import time
from collections.abc import Callable, Iterator
from statistics import median
from typing import Literal

import torch

from ringmark import flags
from ringmark.bench import gather
from ringmark.comm.mesh import Mesh
from ringmark.record import Asked, Protocol, Series
from ringmark.stats import clock_disagreement, known_within, slowest_per_iteration, summarize

Body = Callable[[], object]
Times = tuple[list[float], list[float]]  # this rank's samples and wall times, in ms
StoppedBy = Literal["ci_target", "max_iterations", "time_limit"]

_REASONS: tuple[StoppedBy, ...] = ("ci_target", "max_iterations", "time_limit")


def measure(body: Body, mesh: Mesh, protocol: Protocol, asked: Asked) -> Series:
    """Time `body` until the median is known well enough or a limit is reached; all ranks stop together."""
    times = _isolated if protocol == "isolated" else _pipelined
    with no_garbage_collection():
        _warm_up(times, body, mesh, asked)
        timed_from = time.monotonic()
        samples: list[list[float]] = [[] for _ in range(mesh.world_size)]
        walls: list[list[float]] = [[] for _ in range(mesh.world_size)]
        stopped_by = None
        while stopped_by is None:
            count = _next_round(len(samples[0]), asked)
            mine, wall = times(body, mesh, count)
            for rank, row in enumerate(gather.rows(mesh, [*mine, *wall])):
                samples[rank] += row[:count]
                walls[rank] += row[count:]
            stopped_by = _decide(mesh, samples, asked, time.monotonic() - timed_from)
    return _series(mesh, samples, walls, stopped_by)


def _warm_up(times: Callable[[Body, Mesh, int], Times], body: Body, mesh: Mesh, asked: Asked) -> None:
    """The iterations that nobody times: so many, and for so long by rank 0's clock."""
    started = time.monotonic()
    times(body, mesh, asked.warmup)
    while gather.decided_by_rank_0(mesh, int(time.monotonic() - started < asked.warmup_s)):
        times(body, mesh, 1)


def first_call_ms(body: Body, mesh: Mesh) -> float:
    """The very first call, by wall clock, the slowest rank's: compilation, communicators, allocation."""
    _line_up(mesh)
    started = time.perf_counter()
    body()
    gather.synchronize(mesh)
    return max(row[0] for row in gather.rows(mesh, [(time.perf_counter() - started) * 1e3]))


def floor_ms(mesh: Mesh, iterations: int = 20) -> float:
    """What an empty body measures as: the median of the slowest rank's, by the isolated protocol."""
    mine = own_times_ms(lambda: None, mesh, iterations)
    return median(slowest_per_iteration(gather.rows(mesh, mine)))


def own_times_ms(body: Body, mesh: Mesh, iterations: int) -> list[float]:
    """This rank's own times by the isolated protocol, after three calls that are not timed."""
    with no_garbage_collection():
        _isolated(body, mesh, 3)
        return _isolated(body, mesh, iterations)[0]


def _isolated(body: Body, mesh: Mesh, count: int) -> Times:
    samples, walls = [], []
    for _ in range(count):
        sample, wall = _span(body, mesh, 1)
        samples += sample
        walls += wall
    return samples, walls


def _pipelined(body: Body, mesh: Mesh, count: int) -> Times:
    return _span(body, mesh, count)


def _span(body: Body, mesh: Mesh, count: int) -> Times:
    """`count` calls back to back from an idle device: each one's time, and the wall clock shared evenly."""
    _line_up(mesh)
    marks = [_mark(mesh)]
    wall_started = _wall(mesh)
    for _ in range(count):
        body()
        marks.append(_mark(mesh))
    gather.synchronize(mesh)
    wall_ms = (_wall(mesh) - wall_started) * 1e3
    samples = [_between_ms(before, after) for before, after in itertools.pairwise(marks)]
    return samples, [wall_ms / count] * count


def _line_up(mesh: Mesh) -> None:
    """Every rank arrives with an idle device, and leaves at the barrier's end."""
    gather.synchronize(mesh)
    gather.barrier(mesh)
    gather.synchronize(mesh)


def _mark(mesh: Mesh) -> torch.cuda.Event | float:
    if mesh.device.type != "cuda":
        return time.perf_counter()
    event: torch.cuda.Event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event


def _between_ms(before: torch.cuda.Event | float, after: torch.cuda.Event | float) -> float:
    if isinstance(before, float):
        assert isinstance(after, float)
        return (after - before) * 1e3
    assert not isinstance(after, float)
    return float(before.elapsed_time(after))


def _wall(mesh: Mesh) -> float:
    """The witness: the host's monotonic clock beside CUDA events, the calendar clock beside that one."""
    return time.perf_counter() if mesh.device.type == "cuda" else time.time()


def _next_round(done: int, asked: Asked) -> int:
    """How many iterations before the ranks talk again: a quarter more each time, so talking stays rare."""
    wanted = asked.min_iterations if done == 0 else max(1, done // 4)
    return min(wanted, asked.max_iterations - done)


def _decide(mesh: Mesh, samples: list[list[float]], asked: Asked, elapsed_s: float) -> StoppedBy | None:
    """Rank 0's verdict on going on, told to all outside the timed span."""
    choice = -1
    summary = summarize(slowest_per_iteration(samples))
    if summary.n >= asked.min_iterations and known_within(summary, asked.ci_target):
        choice = 0
    elif summary.n >= asked.max_iterations:
        choice = 1
    elif elapsed_s >= asked.time_limit_s:
        choice = 2
    choice = gather.decided_by_rank_0(mesh, choice)
    return None if choice < 0 else _REASONS[choice]


def _series(
    mesh: Mesh, samples: list[list[float]], walls: list[list[float]], stopped_by: StoppedBy
) -> Series:
    fraction, gap_ms = clock_disagreement(samples, walls)
    return Series(
        samples_ms=samples,
        wall_ms=walls,
        summary=summarize(slowest_per_iteration(samples)),
        stopped_by=stopped_by,
        clock="cuda_events" if mesh.device.type == "cuda" else "monotonic",
        clock_disagreement=fraction,
        flags=flags.of_clocks(fraction, gap_ms),
    )


@contextlib.contextmanager
def no_garbage_collection() -> Iterator[None]:
    """Python's collector would run at a moment of its own choosing; graphs die by their reference counts."""
    was_on = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
