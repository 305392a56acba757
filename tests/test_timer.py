"""The clock: every rank's every iteration is kept, the slowest counts, all ranks stop together."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch

from ringmark.bench import timer
from ringmark.comm.mesh import Mesh
from ringmark.record import Asked
from ringmark.stats import known_within, slowest_per_iteration, summarize
from world import run_world

ALONE = Mesh(1, 1, 0, torch.device("cpu"))
STEADY = Asked(min_iterations=6, max_iterations=40, ci_target=0.5)


def _nap(ms: float) -> None:
    until = time.perf_counter() + ms / 1e3
    while time.perf_counter() < until:
        pass


def _counted(function: Callable[[int], None]) -> tuple[Callable[[], None], list[int]]:
    """A body that knows which call it is."""
    calls: list[int] = []

    def body() -> None:
        calls.append(len(calls))
        function(calls[-1])

    return body, calls


def _slow_once(mesh: Mesh) -> dict[str, Any]:
    """Rank 1 is slow in the fifth timed iteration only (three warm-up calls come first)."""
    body, _ = _counted(lambda call: time.sleep(0.3 if mesh.rank == 1 and call == 3 + 4 else 0.002))
    asked = Asked(min_iterations=6, max_iterations=6)
    return {"slow": timer.measure(body, mesh, "isolated", asked)}


def _stops(mesh: Mesh) -> dict[str, Any]:
    noisy, _ = _counted(lambda call: time.sleep(0.001 * (1 + call % 7)))
    found = {
        "ci": timer.measure(lambda: time.sleep(0.002), mesh, "isolated", STEADY),
        "max": timer.measure(noisy, mesh, "isolated", Asked(min_iterations=2, max_iterations=9, ci_target=0)),
        "piped": timer.measure(
            lambda: time.sleep(0.002), mesh, "pipelined", Asked(min_iterations=8, max_iterations=8)
        ),
    }
    # Only rank 0's clock says that the time is over; the others follow.
    limit = 0.03 if mesh.rank == 0 else 1e9
    asked = Asked(min_iterations=2, max_iterations=10_000, ci_target=0, time_limit_s=limit)
    found["limit"] = timer.measure(noisy, mesh, "isolated", asked)
    return found


def _whole_story(mesh: Mesh) -> dict[str, Any]:
    started, _ = _counted(lambda call: time.sleep(0.03 * mesh.rank if call == 0 else 0))
    first = timer.first_call_ms(started, mesh)
    return {**_slow_once(mesh), **_stops(mesh), "first": first, "floor": timer.floor_ms(mesh)}


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
    assert slowest[4] == slow.samples_ms[1][4] > 300
    assert slow.samples_ms[0][4] < 200, "the others do not wait inside their timed span"
    assert all(value < 200 for i, value in enumerate(slowest) if i != 4)
    assert slow.summary == summarize(slowest), "nothing is dropped"
    assert slow.summary.p95 > 200


def test_what_ended_the_timing_is_told(told: list[dict[str, Any]]) -> None:
    ends = {name: (told[0][name].stopped_by, told[0][name].summary.n) for name in ("ci", "max", "piped")}
    assert ends["ci"][0] == "ci_target"
    assert 6 <= ends["ci"][1] < 40
    assert ends["max"] == ("max_iterations", 9)
    assert ends["piped"][1] == 8
    assert told[2]["limit"].stopped_by == "time_limit"


def test_the_clock_reads_what_a_body_takes(told: list[dict[str, Any]]) -> None:
    for name in ("ci", "piped"):
        assert 2.0 <= told[0][name].summary.median < 40, name
        assert told[0][name].clock == "monotonic"
    assert 60 <= told[0]["first"] < 600, "the slowest rank's first call"
    assert told[0]["first"] == told[1]["first"]
    assert 0 < told[0]["floor"] < 2.0, "less than the body of 2 ms"


def test_warm_up_is_not_timed_and_a_pipeline_runs_back_to_back() -> None:
    body, calls = _counted(lambda call: _nap(20.0 if call < 4 else 1.0))
    asked = Asked(warmup=4, min_iterations=5, max_iterations=5)
    for protocol in ("isolated", "pipelined"):
        calls.clear()
        series = timer.measure(body, ALONE, protocol, asked)  # type: ignore[arg-type]
        assert len(calls) == 9
        assert min(series.samples_ms[0]) < 15
    assert len(set(series.wall_ms[0])) == 1, "a pipeline's wall time is shared evenly"
    assert sum(series.wall_ms[0]) == pytest.approx(sum(series.samples_ms[0]), rel=0.05)


def test_warm_up_goes_on_for_as_long_as_asked() -> None:
    body, calls = _counted(lambda call: _nap(10.0))
    asked = Asked(warmup=3, warmup_s=0.2, min_iterations=5, max_iterations=5, time_limit_s=0.1)
    series = timer.measure(body, ALONE, "isolated", asked)
    untimed = len(calls) - len(series.samples_ms[0])
    assert 8 <= untimed <= 21, "0.2 s of 10 ms, or a little more"
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
