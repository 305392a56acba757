"""`ringmark check`: an honest campaign passes; each way of being dishonest or torn is named."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest

import made_campaign
import make_records
from made_campaign import LONG_RING, RING_BOTH, Change, edit, headline, of_headline, put, scaled_times
from ringmark import campaign_alone, campaign_check, cli, stats
from ringmark.cell import Cell, MeshShape, Shape


@pytest.fixture
def campaign(tmp_path: Path) -> Path:
    return made_campaign.write(tmp_path / "made")


def _drop_the_worst(data: dict[str, Any]) -> None:
    """Best of N: the slowest iteration is gone from the samples, the summary is as it was."""
    series = headline(data)
    worst = max(range(len(series["samples_ms"][0])), key=lambda i: max(r[i] for r in series["samples_ms"]))
    for row in (*series["samples_ms"], *series["wall_ms"]):
        del row[worst]


def _rank_zero_only(data: dict[str, Any]) -> None:
    del headline(data)["samples_ms"][1], headline(data)["wall_ms"][1]


def _oom_beside_a_time(data: dict[str, Any]) -> None:
    data["status"] = "oom"


def _time_of_a_wrong_answer(data: dict[str, Any]) -> None:
    data["check"]["errors"]["dq"]["relative_error"] = 0.1


def _nan_passes(data: dict[str, Any]) -> None:
    data["check"]["errors"]["dq"]["nonfinite"] = 3


def _unflagged(data: dict[str, Any]) -> None:
    """Work that escaped the clock by 5%, in numbers that are consistent but for the flag."""
    series = headline(data)
    series["wall_ms"] = [[value * 1.05 for value in row] for row in series["samples_ms"]]
    series["clock_disagreement"] = stats.clock_disagreement(series["samples_ms"], series["wall_ms"])[0]


def _hot(*flags: str) -> Change:
    """A GPU that was held down while it was measured, and what the series says of it."""

    def change(data: dict[str, Any]) -> None:
        reasons = {"throttle_reasons": ["gpu_idle", "hw_thermal_slowdown"]}
        data["environment"]["after"]["ranks"][1]["gpu"] = reasons
        data["environment"]["preflight_flags"] = ["preflight_slow"]
        headline(data)["flags"] = list(flags)

    return change


def _profile_of(data: dict[str, Any], part: float) -> dict[str, Any]:
    """A profile as it could be, of so large a part of the median."""
    typical_ms = part * headline(data)["summary"]["median"]
    cell = made_campaign.cell_of("ring")
    return json.loads(json.dumps(make_records._profile(cell, typical_ms)))  # type: ignore[no-any-return]


def _profiled(change: Change) -> Change:
    def changed(data: dict[str, Any]) -> None:
        data["asked"]["profile"], data["profile"] = True, _profile_of(data, 1.0)
        change(data["profile"])

    return changed


HOT = "throttled:hw_thermal_slowdown:rank1"
LIES: dict[str, tuple[Change, str]] = {
    "a median moved": (of_headline("summary", "median", to=lambda x: x * 0.99), "median is"),
    "an interval narrowed": (of_headline("summary", "ci_high", to=lambda x: x * 0.999), "ci_high is"),
    "an outlier dropped": (_drop_the_worst, "are not 2 ranks x 12 iterations"),
    "one rank's times alone": (_rank_zero_only, "are not 2 ranks x 12 iterations"),
    "a sample of zero": (of_headline("samples_ms", 0, 3, to=0.0), "no positive time"),
    "a sample changed": (of_headline("samples_ms", 1, 3, to=lambda x: x * 3), "the samples give"),
    "a rate rounded up": (put("timing", "tflops_per_gpu", to=lambda x: x * 1.01), "tflops_per_gpu is"),
    "disagreeing clocks hidden": (of_headline("clock_disagreement", to=0.0), "clock_disagreement is"),
    "disagreeing clocks not flagged": (_unflagged, "the flag clocks_disagree is due"),
    "clocks flagged that agree": (
        of_headline("flags", to=["clocks_disagree"]),
        "nothing in the record gives",
    ),
    "a hot GPU not flagged": (_hot("preflight_slow"), f"the flag {HOT} is due"),
    "a slow machine not flagged": (_hot(HOT), "the flag preflight_slow is due"),
    "a GPU that was not hot": (of_headline("flags", to=[HOT]), f"gives the flag {HOT}"),
    "too few iterations": (put("asked", "min_iterations", to=40), "asked were 40 to 100"),
    "a target that was not reached": (
        put("asked", "ci_target", to=1e-6),
        "reached its target, and it did not",
    ),
    "a most that was not reached": (of_headline("stopped_by", to="max_iterations"), "it has 12 of 100"),
    "a first call before its start": (put("timing", "first_call_ms", to=-1.0), "not negative"),
    "memory of the best rank": (put("memory", "per_rank_peak_mib", 0, to=1e5), "its ranks' highest is"),
    "memory of some ranks": (put("memory", "per_rank_peak_mib", to=[920.0]), "1 ranks of 2"),
    "the resident set above itself": (
        put("memory", "peak_above_inputs_mib", to=lambda x: x + 201),
        "peak_above_inputs_mib is",
    ),
    "other inputs": (put("memory", "inputs_mib", to=lambda x: x + 1), "the cell's tensors are 1"),
    "a gradient that was not checked": (lambda d: d["check"]["errors"].pop("dk"), "the phase needs"),
    "nothing checked": (put("check", "errors", "dv", "rows_checked", to=0), "0 of 512 rows"),
    "one row checked": (put("check", "errors", "out", "rows_checked", to=1), "1 of 512 rows"),
    "some keys checked": (put("check", "errors", "dk", "rows_checked", to=64), "64 of 512 rows"),
    "a shorter sequence": (put("check", "errors", "dq", "rows_total", to=256), "512 of 256 rows"),
    "more allowed": (put("check", "errors", "dk", "allowed", to=lambda x: x * 2), "dk: allowed is"),
    "a worse kernel": (put("check", "errors", "dk", "kernel_relative_error", to=1e-5), "error gives 2e-05"),
    "less than no error": (put("check", "errors", "dk", "relative_error", to=-1e-7), "is not negative"),
    "again a gradient that was not checked": (
        lambda d: d["check"]["again"]["errors"].pop("dv"),
        "again: the check has",
    ),
    "again more allowed": (
        put("check", "again", "errors", "dk", "allowed", to=lambda x: x * 2),
        "again: dk: allowed is",
    ),
    "sums that were not held": (lambda d: d["check"]["again"]["balance"].popitem(), "again: the sums are"),
    "sums that may differ": (
        put("check", "again", "balance", "dq.q - dk.k", "allowed", to=1.0),
        "again: dq.q - dk.k: allowed is 1, its sides give",
    ),
    "sums that differ": (
        put("check", "again", "balance", "dout.out - dv.v", "gap", to=0.5),
        "above what is allowed",
    ),
    "more allowed where keys weigh alike": (
        put("check", "again", "uniform", "allowed", to=1.0),
        "again: uniform: allowed is 1, the dtype gives",
    ),
    "a row that is off where keys weigh alike": (
        put("check", "again", "uniform", "error", to=0.5),
        "above what is allowed",
    ),
    "less than no error where keys weigh alike": (
        put("check", "again", "uniform", "error", to=-1e-7),
        "uniform: error is -1e-07: it is not negative",
    ),
    "timed iterations that nobody looked at": (
        put("check", "again", "timed", to=None),
        "what the timed iterations left is missing",
    ),
    "timed iterations that may differ": (
        put("check", "again", "timed", "allowed", to=1.0),
        "timed: allowed is 1, the gradients give",
    ),
    "timed iterations that differ": (
        put("check", "again", "timed", "gap", to=0.5),
        "above what is allowed",
    ),
    "a rank that is not there": (
        put("check", "again", "uniform", "worst_rank", to=99),
        "uniform: worst rank 99 is not in a world",
    ),
    "another number of iterations": (put("asked", "min_iterations", to=6), "what was asked is"),
    "a peer's work as ours": (put("ran", "implementation", to="someone 1.0"), "is ringmark's own, and"),
    "a profile that was not asked for": (
        lambda d: d.update(profile=_profile_of(d, 1.0)),
        "a profile that nobody asked for",
    ),
    "a profile of one rank": (_profiled(lambda p: p["ranks"].pop()), "the profile has 1 ranks of 2"),
    "a profile that does not add up": (
        _profiled(lambda p: p["ranks"][1].update(idle_ms=0.0)),
        "are not its span of",
    ),
    "a profile whose span is a word": (
        _profiled(lambda p: p["ranks"][1].update(span_ms="long")),
        "the profile of rank 1 lacks a time",
    ),
    "a profile of a shorter iteration": (
        lambda d: put("asked", "profile", to=True)(d) or d.update(profile=_profile_of(d, 0.1)),
        "far shorter than those that were timed",
    ),
    "another world": (put("ran", "world_size", to=8), "8 ranks ran"),
    "another campaign": (put("campaign", to="other"), "is of the campaign 'other', the others are of"),
    "no schema": (lambda d: d.pop("schema"), "lacks the key 'schema'"),
    "less than no bytes": (put("ran", "bytes_sent_intra", to=-5), "bytes_sent_intra is -5"),
    "bytes of ours that nobody counted": (put("ran", "bytes_sent_inter", to=None), "inter is missing"),
    "no date": (put("ran", "started_at", to="tomorrow"), "started_at is 'tomorrow'"),
    "a check in less than no time": (put("check", "check_ms", to=-1.0), "check_ms is -1.0"),
    "another method's label": (put("ran", "label", to="BurstAttention"), "'BurstAttention', as burst does"),
    "oom beside a time": (_oom_beside_a_time, "cannot have a timing"),
    "the time of a wrong answer": (_time_of_a_wrong_answer, "above what is allowed"),
    "nan passes": (_nan_passes, "above what is allowed"),
    "a torn file": (lambda d: d.pop("status"), "lacks the key 'status'"),
    "another kernel": (put("ran", "kernel_version", to="9.9"), "the kernel is"),
    "another device": (put("ran", "device", to="NVIDIA H100"), "the device is"),
    "another protocol": (put("asked", "warmup", to=4), "what was asked is"),
    "another driver": (
        put("environment", "nodes", to=[{"driver": "555.1", "cpu": "Example CPU"}]),
        "the environment is",
    ),
    "no environment": (put("environment", to={}), "has not the ranks 0 to 1"),
    "a node that is left out": (put("environment", "nodes", to=[]), "has not the ranks 0 to 1"),
    "one rank twice": (put("environment", "nodes", 0, "ranks", 1, "rank", to=0), "not the ranks 0 to 1"),
    "no state after it": (lambda d: d["environment"].pop("after"), "the state of 0 of 2 ranks after"),
    "one rank's state": (lambda d: d["environment"]["before"]["ranks"].pop(), "of 1 of 2 ranks before"),
    "two kinds of device": (of_headline("clock", to="cuda_events"), "not of one kind of device"),
    "the same step twice": (put("ran", "order", to=0), "a second record of step run0 0"),
    "backward for nothing": (
        lambda d: scaled_times(d, 0.2),
        "its forward alone 2",
    ),
}


def test_an_honest_campaign_passes(campaign: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checked = campaign_check.check(campaign)
    assert [str(finding) for finding in checked.findings] == []
    assert cli.main(["check", str(campaign)]) == 0
    assert "SUCCESS: 8 records" in capsys.readouterr().out


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_named_with_its_place(lie: str, campaign: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change, words = LIES[lie]
    edit(campaign, RING_BOTH, change)
    problems = [str(problem) for problem in campaign_check.check(campaign).problems]
    assert any(words in problem for problem in problems), problems
    assert any(RING_BOTH in problem for problem in problems)
    assert cli.main(["check", str(campaign)]) == 1
    assert "SUCCESS" not in capsys.readouterr().out


def test_a_rate_above_the_hardware_is_a_problem(campaign: Path) -> None:
    edit(campaign, LONG_RING, lambda data: scaled_times(data, 0.3))
    problems = [str(problem) for problem in campaign_check.check(campaign).problems]
    assert len(problems) == 1
    assert "above the device's peak of 989.4" in problems[0]


def test_what_a_reader_must_know_of_the_machine_stands_as_flags(campaign: Path) -> None:
    edit(campaign, RING_BOTH, _hot("preflight_slow", HOT))
    assert campaign_check.check(campaign).problems == []


def _first_gpu_of_all(data: dict[str, Any]) -> None:
    ranks = data["environment"]["nodes"][0]["ranks"]
    ranks[1]["gpu"] = ranks[0]["gpu"]


def _no_gpu(data: dict[str, Any]) -> None:
    data["environment"]["nodes"][0]["ranks"][1]["gpu"] = {"value": None, "reason": "the device is a CPU"}


@pytest.mark.parametrize(
    ("change", "words"),
    [(_first_gpu_of_all, "2 ranks share the GPUs of 1"), (_no_gpu, "ran on CUDA and names no GPU")],
)
def test_every_rank_on_cuda_has_a_gpu_of_its_own(change: Change, words: str, campaign: Path) -> None:
    edit(campaign, LONG_RING, change)
    assert words in "\n".join(map(str, campaign_check.check(campaign).problems))


@pytest.mark.parametrize(
    ("method", "gpus", "phase", "mask", "kv_heads", "inputs", "results"),
    [
        ("ring", 4, "fwd_bwd", "causal", 40, 640, 640),  # q, k, v and dout; out, dq, dk and dv
        ("ring", 4, "fwd", "causal", 40, 480, 160),
        ("ring", 4, "fwd_bwd", "causal", 8, 384, 384),
        ("single", 4, "fwd_bwd", "causal", 40, 960, 960),  # half of all keys on every rank
        ("single", 4, "fwd_bwd", "full", 40, 1600, 1600),
        ("single", 1, "fwd_bwd", "causal", 40, 2560, 2560),
    ],
)
def test_the_tensors_of_a_rank(
    method: str, gpus: int, phase: Any, mask: Any, kv_heads: int, inputs: float, results: float
) -> None:
    """65536 tokens of 40 heads of 128 in bf16 are 640 MiB."""
    shape = Shape(1, 40, kv_heads, 128, "bf16", mask)
    cell = Cell(method, 65536, shape, phase, MeshShape(1, gpus))
    assert campaign_alone.inputs_and_results_mib(cell) == (inputs, results)


def test_our_code_does_not_stand_for_a_peers() -> None:
    found = make_records.make(made_campaign.cell_of("te_p2p"))
    assert found.ran is not None
    assert [*campaign_alone.names(found)] == []
    found = dataclasses.replace(found, ran=dataclasses.replace(found.ran, implementation="ringmark"))
    assert [*campaign_alone.names(found)] == [
        "te_p2p is somebody else's, and the record says that ringmark's own code ran"
    ]


@pytest.mark.parametrize("above", [1.0, 0.999, 1.001])
def test_what_a_gpu_needs_beside_its_inputs_follows_from_the_peak(above: float, campaign: Path) -> None:
    changed = put("memory", "peak_above_inputs_mib", to=lambda x: 1.0 if above == 1.0 else above * x)
    edit(campaign, LONG_RING, changed)
    (problem,) = campaign_check.check(campaign).problems
    assert "the peak without the inputs is" in str(problem)


def test_a_gpu_holds_at_least_inputs_and_results(campaign: Path) -> None:
    def consistent(data: dict[str, Any]) -> None:
        inputs = data["memory"]["inputs_mib"]
        data["memory"] |= {
            "peak_above_inputs_mib": 1.0,
            "peak_mib": inputs + 1.0,
            "per_rank_peak_mib": [inputs + 1.0] * 2,
        }

    edit(campaign, LONG_RING, consistent)
    (problem,) = campaign_check.check(campaign).problems
    assert "its inputs and results alone are" in str(problem)


def test_fewer_sampled_rows_than_the_check_takes_are_named(campaign: Path) -> None:
    where = "records/single/b1-hq40-hkv40-d128-bf16-causal/1x2/auto/S131072_fwd.r0.json"
    edit(campaign, where, put("check", "errors", "out", "rows_checked", to=lambda rows: rows - 1))
    (problem,) = campaign_check.check(campaign).problems
    assert "63 of 131072 rows checked, the check takes 64" in str(problem)


@pytest.mark.parametrize("own", [1.0, 1.4, 0.02, 1e-2 + 1e-9])
def test_a_broken_kernel_is_no_measure(own: float, campaign: Path) -> None:
    """Twice the error of a kernel whose gradients are zero would allow anything."""

    def consistent(data: dict[str, Any]) -> None:
        data["check"]["errors"]["out"] |= {"kernel_relative_error": own, "allowed": 2 * own}

    edit(campaign, LONG_RING, consistent)
    nothing, broken = campaign_check.check(campaign).problems
    assert "the kernel's own error gives 0" in str(nothing)
    assert "the kernel alone is off by" in str(broken)


@pytest.mark.parametrize("torn", [3, "x", [3], [{"ranks": 3}], [{"ranks": [3], "libraries": 3}], {"x": 1}])
def test_an_environment_that_is_none_is_told_and_stops_nothing(torn: Any, campaign: Path) -> None:
    everything = {
        "nodes": torn,
        "source": torn,
        "before": torn,
        "after": {"ranks": torn},
        "preflight_flags": torn,
    }
    edit(campaign, RING_BOTH, put("environment", to=everything))
    problems = [str(problem) for problem in campaign_check.check(campaign).problems]
    assert any("has not the ranks 0 to 1" in problem for problem in problems)


def test_an_empty_campaign_is_no_success(tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    assert len(campaign_check.check(tmp_path).problems) == 1


@pytest.mark.parametrize("verb", [["verdict"], ["render", "--out", "out"], ["plot"], ["report"]])
def test_what_is_made_of_a_campaign_is_made_of_one_that_passes(
    verb: list[str], campaign: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The sentence names the folder, so that the check that it sends to can be run."""
    edit(campaign, RING_BOTH, put("timing", "tflops_per_gpu", to=1e6))
    words = [str(tmp_path / word) if word == "out" else word for word in verb]
    assert cli.main([words[0], str(campaign), *words[1:]]) == 2
    said = capsys.readouterr().err
    assert "campaign made does not pass" in said
    assert f"see 'ringmark check {campaign}'" in said
    assert cli.main(["check", str(campaign)]) == 1
