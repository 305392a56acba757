"""The clock: every rank's every iteration is kept, the slowest counts, all ranks stop together."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest import mock

import pytest
import torch

from ringmark.bench import gather, timer
from ringmark.comm.mesh import Mesh
from ringmark.record import Asked
from ringmark.stats import known_within, slowest_per_iteration, summarize
from world import run_world

ALONE = Mesh(1, 1, 0, torch.device("cpu"))
STEADY = Asked(min_iterations=6, max_iterations=40, ci_target=0.5)


class Clock:
    """A rank's time, of which a body takes what it says, on a machine however busy: bodies take time, waiting
    for the others at a barrier, and a microsecond each look at the clock."""

    def __init__(self) -> None:
        self.now_s = 1000.0

    def take(self, ms: float) -> None:
        self.now_s += ms / 1e3

    def read(self) -> float:
        self.take(0.001)
        return self.now_s

    perf_counter = monotonic = time = read

    def barrier(self, mesh: Mesh) -> None:
        self.now_s = max(row[0] for row in gather.rows(mesh, [self.now_s]))

    @contextmanager
    def ticking(self) -> Iterator[None]:
        with mock.patch.object(timer, "time", self), mock.patch.object(gather, "barrier", self.barrier):
            yield


def _counted(function: Callable[[int], None]) -> tuple[Callable[[], None], list[int]]:
    """A body that knows which call it is."""
    calls: list[int] = []

    def body() -> None:
        calls.append(len(calls))
        function(calls[-1])

    return body, calls


def _slow_once(mesh: Mesh, clock: Clock) -> dict[str, Any]:
    """Rank 1 is slow in the fifth timed iteration only (three warm-up calls come first)."""
    body, _ = _counted(lambda call: clock.take(300 if mesh.rank == 1 and call == 3 + 4 else 2))
    asked = Asked(min_iterations=6, max_iterations=6)
    return {"slow": timer.measure(body, mesh, "isolated", asked)}


def _stops(mesh: Mesh, clock: Clock) -> dict[str, Any]:
    noisy, _ = _counted(lambda call: clock.take(1 + call % 7))
    found = {
        "ci": timer.measure(lambda: clock.take(2), mesh, "isolated", STEADY),
        "max": timer.measure(noisy, mesh, "isolated", Asked(min_iterations=2, max_iterations=9, ci_target=0)),
        "piped": timer.measure(
            lambda: clock.take(2), mesh, "pipelined", Asked(min_iterations=8, max_iterations=8)
        ),
    }
    # Only rank 0's clock says that the time is over; the others follow.
    limit = 0.03 if mesh.rank == 0 else 1e9
    asked = Asked(min_iterations=2, max_iterations=10_000, ci_target=0, time_limit_s=limit)
    found["limit"] = timer.measure(noisy, mesh, "isolated", asked)
    return found


def _whole_story(mesh: Mesh) -> dict[str, Any]:
    clock = Clock()
    started, _ = _counted(lambda call: clock.take(30 * mesh.rank if call == 0 else 0))
    with clock.ticking():
        first = timer.first_call_ms(started, mesh)
        found = {**_slow_once(mesh, clock), **_stops(mesh, clock), "floor": timer.floor_ms(mesh)}
    return {**found, "first": first}


@pytest.fixture(scope="module")
def told() -> list[dict[str, Any]]:
    return run_world(3, _whole_story)


def test_every_rank_holds_the_same_matrix(told: list[dict[str, Any]]) -> None:
    for name in ("slow", "ci", "max", "piped", "limit"):
        series = [rank[name] for rank in told]
        assert series[0] == series[1] == series[2], name
        rows = series[0].samples_ms
        assert len(rows) == len(series[0].wall_ms) == 3
        assert {len(row) for row in (*rows, *series[0].wall_ms)} == {series[0].summary.n}, name


def test_an_iteration_takes_as_long_as_its_slowest_rank(told: list[dict[str, Any]]) -> None:
    slow = told[0]["slow"]
    slowest = slowest_per_iteration(slow.samples_ms)
    assert slowest[4] == slow.samples_ms[1][4] == pytest.approx(300, abs=0.01)
    others = [value for row in slow.samples_ms for value in row if value != slowest[4]]
    assert others == pytest.approx([2.0] * 17, abs=0.01), "the others do not wait inside their timed span"
    assert slow.summary == summarize(slowest), "nothing is dropped"
    assert slow.summary.p95 > 200


def test_what_ended_the_timing_is_told(told: list[dict[str, Any]]) -> None:
    ends = {name: (told[0][name].stopped_by, told[0][name].summary.n) for name in ("ci", "max", "piped")}
    assert ends["ci"] == ("ci_target", 6)
    assert ends["max"] == ("max_iterations", 9)
    assert ends["piped"][1] == 8
    assert told[2]["limit"].stopped_by == "time_limit"
    assert 30 <= sum(told[0]["limit"].samples_ms[0]) < 40


def test_the_clock_reads_what_a_body_takes(told: list[dict[str, Any]]) -> None:
    for name in ("ci", "piped"):
        assert told[0][name].summary.median == pytest.approx(2.0, abs=0.01), name
        assert told[0][name].clock == "monotonic"
    assert told[0]["first"] == pytest.approx(60, abs=0.01), "the slowest rank's first call"
    assert told[0]["first"] == told[1]["first"]
    assert 0 < told[0]["floor"] < 0.01, "looks at the clock"


def test_real_time_is_what_is_read() -> None:
    asked = Asked(min_iterations=3, max_iterations=3)
    for protocol in ("isolated", "pipelined"):
        series = timer.measure(lambda: time.sleep(0.002), ALONE, protocol, asked)  # type: ignore[arg-type]
        assert min(series.samples_ms[0]) >= 2.0
    assert timer.floor_ms(ALONE) > 0


def test_warm_up_is_not_timed_and_a_pipeline_runs_back_to_back() -> None:
    clock = Clock()
    body, calls = _counted(lambda call: clock.take(20 if call < 4 else 1))
    asked = Asked(warmup=4, min_iterations=5, max_iterations=5)
    for protocol in ("isolated", "pipelined"):
        calls.clear()
        with clock.ticking():
            series = timer.measure(body, ALONE, protocol, asked)  # type: ignore[arg-type]
        assert len(calls) == 9
        assert series.samples_ms[0] == pytest.approx([1.0] * 5, abs=0.01)
    assert len(set(series.wall_ms[0])) == 1, "a pipeline's wall time is shared evenly"
    assert sum(series.wall_ms[0]) == pytest.approx(sum(series.samples_ms[0]), rel=0.05)


def test_warm_up_goes_on_for_as_long_as_asked() -> None:
    clock = Clock()
    body, calls = _counted(lambda call: clock.take(10))
    asked = Asked(warmup=3, warmup_s=0.2, min_iterations=5, max_iterations=5, time_limit_s=0.1)
    with clock.ticking():
        series = timer.measure(body, ALONE, "isolated", asked)
    untimed = len(calls) - len(series.samples_ms[0])
    assert untimed == 20, "0.2 s of 10 ms"
    assert len(series.samples_ms[0]) == 5, "the time limit is that of the timing"


def test_no_garbage_is_collected_inside_a_timed_span() -> None:
    seen = []
    asked = Asked(min_iterations=1, max_iterations=1)
    timer.measure(lambda: seen.append(gc.isenabled()), ALONE, "isolated", asked)
    assert seen == [False] * 4
    assert gc.isenabled()


def test_a_failing_body_is_not_swallowed_and_leaves_the_collector_on() -> None:
    def fails() -> None:
        raise MemoryError("no more")

    with pytest.raises(MemoryError):
        timer.measure(fails, ALONE, "isolated", Asked())
    assert gc.isenabled()


@pytest.mark.parametrize(
    ("samples", "within"),
    [
        ([10.0] * 6, True),
        ([10.0] * 5, False),  # five samples enclose the median with 93.75% only
        ([10.0, 10.0, 10.0, 10.0, 10.0, 10.3], False),
        ([10.0, 10.0, 10.0, 10.0, 10.0, 10.1], True),
        ([0.0] * 6, True),
    ],
)
def test_the_target_is_on_both_ends_of_the_interval(samples: list[float], within: bool) -> None:
    assert known_within(summarize(samples), 0.02) is within


def test_rounds_grow_by_a_quarter_and_never_pass_the_maximum() -> None:
    asked, done, rounds = Asked(min_iterations=5, max_iterations=23), 0, []
    while done < 23:
        rounds.append(timer._next_round(done, asked))
        done += rounds[-1]
    assert rounds == [5, 1, 1, 1, 2, 2, 3, 3, 4, 1]


def test_a_witness_that_sees_more_than_the_clock_flags_the_series() -> None:
    mesh = Mesh(1, 2, 0, torch.device("cpu"))
    clock = [[10.0, 10.0], [10.0, 10.0]]
    honest = timer._series(mesh, clock, [[10.1, 10.1], [10.0, 10.1]], "ci_target")
    assert honest.flags == []
    assert honest.clock_disagreement == pytest.approx(0.01)
    escaped = timer._series(mesh, clock, [[10.0, 10.0], [10.0, 11.0]], "ci_target")
    assert escaped.flags == ["clocks_disagree"]
    assert escaped.clock_disagreement == pytest.approx(0.05)
    tiny = timer._series(mesh, [[0.1], [0.1]], [[0.15], [0.1]], "ci_target")
    assert tiny.flags == [], "the host's wake-up is no escaped work"
