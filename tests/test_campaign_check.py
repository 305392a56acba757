"""`ringmark check`: an honest campaign passes; each way of being dishonest or torn is named."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import make_records
from ringmark import campaign_check, cli, stats
from ringmark.cell import Cell, MeshShape, Shape
from ringmark.schema import dump

MESH = MeshShape(1, 2)
SHAPE = Shape(1, 4, 4, 64, "fp32", "causal")
PAPER = Shape(1, 40, 40, 128, "bf16", "causal")
LONG_RING = "records/ring/b1-hq40-hkv40-d128-bf16-causal/1x2/auto/S131072_fwd.r0.json"
RING_BOTH = "records/ring/b1-hq4-hkv4-d64-fp32-causal/1x2/auto/S512_fwd_bwd.r0.json"
Change = Callable[[dict[str, Any]], None]


def _cell(method: str, phase: Any = "fwd_bwd", shape: Shape = SHAPE, seqlen: int = 512) -> Cell:
    return Cell(method, seqlen, shape, phase, MESH)


@pytest.fixture
def campaign(tmp_path: Path) -> Path:
    cells = [_cell(method, phase) for method in ("single", "ring", "burst") for phase in ("fwd", "fwd_bwd")]
    cells += [_cell(method, "fwd", PAPER, 131072) for method in ("single", "ring")]
    times = {"fwd": 10.0, "fwd_bwd": 35.0}
    made = [
        make_records.make(
            cell,
            rng=random.Random(order),
            median_ms=None if cell.shape == PAPER else times[cell.phase] * (1 + (cell.method != "single")),
            order=order,
        )
        for order, cell in enumerate(cells)
    ]
    return make_records.write_campaign(tmp_path / "made", made)


def _change(campaign: Path, where: str, change: Change) -> None:
    path = campaign / where
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def _headline(data: dict[str, Any]) -> dict[str, Any]:
    return data["timing"]["series"]["isolated"]  # type: ignore[no-any-return]


def _set(*keys: Any, to: Any) -> Change:
    def change(data: dict[str, Any]) -> None:
        for key in keys[:-1]:
            data = data[key]
        data[keys[-1]] = to(data[keys[-1]]) if callable(to) else to

    return change


def _of_headline(*keys: Any, to: Any) -> Change:
    return lambda data: _set(*keys, to=to)(_headline(data))


def _drop_the_worst(data: dict[str, Any]) -> None:
    """Best of N: the slowest iteration is gone from the samples, the summary is as it was."""
    series = _headline(data)
    worst = max(range(len(series["samples_ms"][0])), key=lambda i: max(r[i] for r in series["samples_ms"]))
    for row in (*series["samples_ms"], *series["wall_ms"]):
        del row[worst]


def _rank_zero_only(data: dict[str, Any]) -> None:
    del _headline(data)["samples_ms"][1], _headline(data)["wall_ms"][1]


def _oom_beside_a_time(data: dict[str, Any]) -> None:
    data["status"] = "oom"


def _time_of_a_wrong_answer(data: dict[str, Any]) -> None:
    data["check"]["errors"]["dq"]["relative_error"] = 0.1


def _nan_passes(data: dict[str, Any]) -> None:
    data["check"]["errors"]["dq"]["nonfinite"] = 3


def _unflagged(data: dict[str, Any]) -> None:
    """Work that escaped the clock by 5%, in numbers that are consistent but for the flag."""
    series = _headline(data)
    series["wall_ms"] = [[value * 1.05 for value in row] for row in series["samples_ms"]]
    series["clock_disagreement"] = stats.clock_disagreement(series["samples_ms"], series["wall_ms"])[0]


def _hot(*flags: str) -> Change:
    """A GPU that was held down while it was measured, and what the series says of it."""

    def change(data: dict[str, Any]) -> None:
        reasons = {"throttle_reasons": ["gpu_idle", "hw_thermal_slowdown"]}
        data["environment"]["after"]["ranks"][1]["gpu"] = reasons
        data["environment"]["preflight_flags"] = ["preflight_slow"]
        _headline(data)["flags"] = list(flags)

    return change


HOT = "throttled:hw_thermal_slowdown:rank1"
LIES: dict[str, tuple[Change, str]] = {
    "a median moved": (_of_headline("summary", "median", to=lambda x: x * 0.99), "median is"),
    "an interval narrowed": (_of_headline("summary", "ci_high", to=lambda x: x * 0.999), "ci_high is"),
    "an outlier dropped": (_drop_the_worst, "are not 2 ranks x 12 iterations"),
    "one rank's times alone": (_rank_zero_only, "are not 2 ranks x 12 iterations"),
    "a sample of zero": (_of_headline("samples_ms", 0, 3, to=0.0), "no positive time"),
    "a sample changed": (_of_headline("samples_ms", 1, 3, to=lambda x: x * 3), "the samples give"),
    "a rate rounded up": (_set("timing", "tflops_per_gpu", to=lambda x: x * 1.01), "tflops_per_gpu is"),
    "disagreeing clocks hidden": (_of_headline("clock_disagreement", to=0.0), "clock_disagreement is"),
    "disagreeing clocks not flagged": (_unflagged, "the flag clocks_disagree is due"),
    "clocks flagged that agree": (
        _of_headline("flags", to=["clocks_disagree"]),
        "nothing in the record gives",
    ),
    "a hot GPU not flagged": (_hot("preflight_slow"), f"the flag {HOT} is due"),
    "a slow machine not flagged": (_hot(HOT), "the flag preflight_slow is due"),
    "a GPU that was not hot": (_of_headline("flags", to=[HOT]), f"gives the flag {HOT}"),
    "too few iterations": (_set("asked", "min_iterations", to=40), "asked were 40 to 100"),
    "a target that was not reached": (
        _set("asked", "ci_target", to=1e-6),
        "reached its target, and it did not",
    ),
    "a most that was not reached": (_of_headline("stopped_by", to="max_iterations"), "it has 12 of 100"),
    "a first call before its start": (_set("timing", "first_call_ms", to=-1.0), "not negative"),
    "memory of the best rank": (_set("memory", "per_rank_peak_mib", 0, to=1e5), "its ranks' highest is"),
    "memory of some ranks": (_set("memory", "per_rank_peak_mib", to=[920.0]), "1 ranks of 2"),
    "the resident set above itself": (
        _set("memory", "peak_above_inputs_mib", to=lambda x: x + 201),
        "peak_above_inputs_mib is",
    ),
    "other inputs": (_set("memory", "inputs_mib", to=lambda x: x + 1), "the cell's tensors are 1"),
    "a gradient that was not checked": (lambda d: d["check"]["errors"].pop("dk"), "the phase needs"),
    "nothing checked": (_set("check", "errors", "dv", "rows_checked", to=0), "0 of 512 rows"),
    "one row checked": (_set("check", "errors", "out", "rows_checked", to=1), "1 of 512 rows"),
    "some keys checked": (_set("check", "errors", "dk", "rows_checked", to=64), "64 of 512 rows"),
    "a shorter sequence": (_set("check", "errors", "dq", "rows_total", to=256), "512 of 256 rows"),
    "more allowed": (_set("check", "errors", "dk", "allowed", to=lambda x: x * 2), "dk: allowed is"),
    "a worse kernel": (_set("check", "errors", "dk", "kernel_relative_error", to=1e-5), "error gives 2e-05"),
    "less than no error": (_set("check", "errors", "dk", "relative_error", to=-1e-7), "is not negative"),
    "another world": (_set("ran", "world_size", to=8), "8 ranks ran"),
    "oom beside a time": (_oom_beside_a_time, "cannot have a timing"),
    "the time of a wrong answer": (_time_of_a_wrong_answer, "above what is allowed"),
    "nan passes": (_nan_passes, "above what is allowed"),
    "a torn file": (lambda d: d.pop("status"), "lacks the key 'status'"),
    "another kernel": (_set("ran", "kernel_version", to="9.9"), "the kernel is"),
    "another device": (_set("ran", "device", to="NVIDIA H100"), "the device is"),
    "another protocol": (_set("asked", "warmup", to=4), "what was asked is"),
    "another driver": (
        _set("environment", "nodes", to=[{"driver": "555.1", "cpu": "Example CPU"}]),
        "the environment is",
    ),
    "no environment": (_set("environment", to={}), "has not the ranks 0 to 1"),
    "a node that is left out": (_set("environment", "nodes", to=[]), "has not the ranks 0 to 1"),
    "one rank twice": (_set("environment", "nodes", 0, "ranks", 1, "rank", to=0), "not the ranks 0 to 1"),
    "no state after it": (lambda d: d["environment"].pop("after"), "the state of 0 of 2 ranks after"),
    "one rank's state": (lambda d: d["environment"]["before"]["ranks"].pop(), "of 1 of 2 ranks before"),
    "two kinds of device": (_of_headline("clock", to="cuda_events"), "not of one kind of device"),
    "the same step twice": (_set("ran", "order", to=0), "a second record of step run0 0"),
    "backward for nothing": (
        lambda d: _scaled_times(d, 0.2),
        "its forward alone 2",
    ),
}


def _scaled_times(data: dict[str, Any], factor: float) -> None:
    """Consistent in itself, and impossible beside the forward."""
    series = _headline(data)
    for name in ("samples_ms", "wall_ms"):
        series[name] = [[value * factor for value in row] for row in series[name]]
    for name in ("median", "ci_low", "ci_high", "p5", "p95"):
        series["summary"][name] *= factor
    data["timing"]["tflops_per_gpu"] /= factor


def test_an_honest_campaign_passes(campaign: Path, capsys: pytest.CaptureFixture[str]) -> None:
    checked = campaign_check.check(campaign)
    assert [str(finding) for finding in checked.findings] == []
    assert cli.main(["check", str(campaign)]) == 0
    assert "SUCCESS: 8 records" in capsys.readouterr().out


def test_a_library_in_two_versions_is_two_environments_and_a_missing_one_is_not(campaign: Path) -> None:
    def with_library(version: str | None) -> Any:
        def change(data: dict[str, Any]) -> None:
            for node in data["environment"]["nodes"]:
                node["libraries"] = {"torch": "2.11.0"} | ({"peer": version} if version else {})

        return change

    for path in campaign.glob("records/**/*.json"):
        _change(campaign, str(path.relative_to(campaign)), with_library("1.0"))
    _change(campaign, RING_BOTH, with_library(None))
    assert campaign_check.check(campaign).problems == []
    _change(campaign, RING_BOTH, with_library("1.1"))
    (problem,) = campaign_check.check(campaign).problems
    assert "the version of peer is" in str(problem)


@pytest.mark.parametrize("lie", LIES)
def test_a_lie_is_named_with_its_place(lie: str, campaign: Path, capsys: pytest.CaptureFixture[str]) -> None:
    change, words = LIES[lie]
    _change(campaign, RING_BOTH, change)
    problems = [str(problem) for problem in campaign_check.check(campaign).problems]
    assert any(words in problem for problem in problems), problems
    assert any(RING_BOTH in problem for problem in problems)
    assert cli.main(["check", str(campaign)]) == 1
    assert "SUCCESS" not in capsys.readouterr().out


def test_a_rate_above_the_hardware_is_a_problem(campaign: Path) -> None:
    _change(campaign, LONG_RING, lambda data: _scaled_times(data, 0.3))
    problems = [str(problem) for problem in campaign_check.check(campaign).problems]
    assert len(problems) == 1
    assert "above the device's peak of 989.4" in problems[0]


def test_what_a_reader_must_know_of_the_machine_stands_as_flags(campaign: Path) -> None:
    _change(campaign, RING_BOTH, _hot("preflight_slow", HOT))
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
    _change(campaign, LONG_RING, change)
    assert words in "\n".join(map(str, campaign_check.check(campaign).problems))


@pytest.mark.parametrize("above", [1.0, 0.999, 1.001])
def test_what_a_gpu_needs_beside_its_inputs_follows_from_the_peak(above: float, campaign: Path) -> None:
    changed = _set("memory", "peak_above_inputs_mib", to=lambda x: 1.0 if above == 1.0 else above * x)
    _change(campaign, LONG_RING, changed)
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

    _change(campaign, LONG_RING, consistent)
    (problem,) = campaign_check.check(campaign).problems
    assert "its inputs and results alone are" in str(problem)


def test_fewer_sampled_rows_than_the_check_takes_are_named(campaign: Path) -> None:
    where = "records/single/b1-hq40-hkv40-d128-bf16-causal/1x2/auto/S131072_fwd.r0.json"
    _change(campaign, where, _set("check", "errors", "out", "rows_checked", to=lambda rows: rows - 1))
    (problem,) = campaign_check.check(campaign).problems
    assert "63 of 131072 rows checked, the check takes 64" in str(problem)


@pytest.mark.parametrize("own", [1.0, 1.4, 0.02, 1e-2 + 1e-9])
def test_a_broken_kernel_is_no_measure(own: float, campaign: Path) -> None:
    """Twice the error of a kernel whose gradients are zero would allow anything."""

    def consistent(data: dict[str, Any]) -> None:
        data["check"]["errors"]["out"] |= {"kernel_relative_error": own, "allowed": 2 * own}

    _change(campaign, LONG_RING, consistent)
    (problem,) = campaign_check.check(campaign).problems
    assert "the kernel alone is off by" in str(problem)


def test_a_copy_of_a_record_is_a_duplicate(campaign: Path) -> None:
    (campaign / RING_BOTH.replace(".r0.", ".r1.")).write_text((campaign / RING_BOTH).read_text())
    problems = [str(problem) for problem in campaign_check.check(campaign).problems]
    assert any("two files for one cell" in problem for problem in problems)
    assert any("a second record of cell" in problem for problem in problems)


def test_times_that_the_noise_turned_round_are_a_note(campaign: Path) -> None:
    def blur(data: dict[str, Any]) -> None:
        _scaled_times(data, 10.0 / 35.0 * 0.99)
        series = _headline(data)
        for row in series["samples_ms"]:
            row[0:3] = [value * 1.5 for value in row[0:3]]
        series["summary"] = dump(stats.summarize(stats.slowest_per_iteration(series["samples_ms"])))
        series["wall_ms"] = series["samples_ms"]
        series["clock_disagreement"] = 0.0
        series["stopped_by"] = "time_limit"

    _change(campaign, RING_BOTH, blur)
    found = campaign_check.check(campaign).findings
    about = [finding for finding in found if "its forward alone" in finding.sentence]
    assert len(about) == 1
    assert not about[0].is_problem
    assert "within their intervals" in about[0].sentence


def _another_run(data: dict[str, Any]) -> None:
    data["ran"]["run_id"] = "run1"


def _another_commit(data: dict[str, Any]) -> None:
    data["environment"]["source"]["git_commit"] = "f" * 40


def test_a_forward_of_another_run_of_the_same_commit_is_shorter_as_well(campaign: Path) -> None:
    _change(campaign, RING_BOTH, lambda data: _scaled_times(data, 0.2))
    _change(campaign, RING_BOTH, _another_run)
    (problem,) = campaign_check.check(campaign).problems
    assert "its forward alone 2" in str(problem)
    _change(campaign, RING_BOTH, _another_commit)
    assert campaign_check.check(campaign).problems == [], "another program may be as fast as it likes"


@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("clock_sm_max_mhz", 1755),
        ("clock_memory_max_mhz", 2619),
        ("clock_sm_application_mhz", 1200),
        ("power_limit_w", 500.0),
        ("ecc_mode", [0, 0]),
        ("mig_mode", [1, 1]),
    ],
)
def test_a_gpu_that_is_set_otherwise_is_another_environment(name: str, other: Any, campaign: Path) -> None:
    _change(campaign, LONG_RING, _set("environment", "nodes", 0, "ranks", 1, "gpu", name, to=other))
    (problem,) = campaign_check.check(campaign).problems
    assert "the environment is" in str(problem)


def _paper_pair(folder: Path, factor: float, spread: float = 0.0) -> Path:
    """A forward at 600 TFLOP/s per GPU, and a fwd_bwd of `factor` x its time, with a wider interval."""
    forward_ms = 4 * 131072**2 * 40 * 128 / 2 / 2 / 600e12 * 1e3
    made = [
        make_records.make(_cell("ring", phase, PAPER, 131072), median_ms=time_ms)
        for phase, time_ms in (("fwd", forward_ms), ("fwd_bwd", forward_ms * factor))
    ]
    make_records.write_campaign(folder, made)

    def blur(data: dict[str, Any]) -> None:
        series = _headline(data)
        for row in series["samples_ms"]:
            row[:] = [value * (1 + (i % 2) * spread) for i, value in enumerate(row)]
        series["summary"] = dump(stats.summarize(stats.slowest_per_iteration(series["samples_ms"])))
        series["wall_ms"], series["clock_disagreement"] = series["samples_ms"], 0.0
        series["stopped_by"] = "time_limit"
        operations = 3.5 * 4 * 131072**2 * 40 * 128 / 2
        data["timing"]["tflops_per_gpu"] = operations / 2 / (series["summary"]["median"] * 1e-3) / 1e12

    if spread:
        _change(folder, LONG_RING.replace("_fwd.", "_fwd_bwd."), blur)
    return folder


def test_a_backward_above_the_peak_is_a_problem_although_fwd_bwd_is_below_it(tmp_path: Path) -> None:
    assert campaign_check.check(_paper_pair(tmp_path / "possible", 2.6)).problems == []
    (problem,) = campaign_check.check(_paper_pair(tmp_path / "impossible", 2.4)).problems
    assert "its backward (fwd_bwd - fwd) would run at 10" in str(problem)
    assert "the peak is 989.4" in str(problem)


def test_a_backward_that_the_intervals_allow_is_a_note(tmp_path: Path) -> None:
    checked = campaign_check.check(_paper_pair(tmp_path / "noisy", 2.2, spread=0.2))
    assert checked.problems == []
    assert any("would run at" in str(finding) for finding in checked.findings)


def test_of_several_forwards_the_one_of_its_run_counts_else_the_fastest(campaign: Path) -> None:
    slow = json.loads((campaign / RING_BOTH.replace("fwd_bwd", "fwd")).read_text())
    slow["asked"]["repeat"], slow["ran"]["run_id"] = 1, "run1"
    _scaled_times(slow, 5.0)
    (campaign / RING_BOTH.replace("fwd_bwd.r0", "fwd.r1")).write_text(json.dumps(slow))
    assert campaign_check.check(campaign).problems == []
    _change(campaign, RING_BOTH, lambda data: data["ran"].update(run_id="run2"))
    assert campaign_check.check(campaign).problems == []
    both = json.loads((campaign / RING_BOTH).read_text())
    both["asked"]["repeat"], both["ran"]["run_id"], both["ran"]["order"] = 1, "run1", 99
    (campaign / RING_BOTH.replace(".r0.", ".r1.")).write_text(json.dumps(both))
    (problem,) = campaign_check.check(campaign).problems
    assert ".r1." in str(problem)


def test_what_a_reader_should_know_is_a_note_and_no_problem(campaign: Path) -> None:
    (campaign / "records/single/b1-hq4-hkv4-d64-fp32-causal/1x2/auto/S512_fwd.r0.json").unlink()
    _change(
        campaign, RING_BOTH, _set("environment", "source", to={"git_commit": "a" * 40, "git_dirty": True})
    )
    jobs = campaign / "jobs"
    jobs.mkdir()
    planned = [{"out": f"results/made/{RING_BOTH}"}, {"out": "results/made/records/usp/x.r0.json"}]
    (jobs / "0.job.json").write_text(json.dumps({"items": planned}))
    checked = campaign_check.check(campaign)
    assert checked.problems == []
    notes = "\n".join(map(str, checked.findings))
    assert "its bound (method single, same kernel) is not measured" in notes
    assert "aaaaaaaaaaaa with local changes" in notes
    assert "records/usp/x.r0.json: 1 of 2 planned cells have no record" in notes


def test_a_campaign_without_its_jobs_is_planned_from_its_config(campaign: Path) -> None:
    grid = {
        "methods": ["ring", "burst", "usp"],
        "seqlen_global": [512],
        "shapes": [dump(SHAPE)],
    }
    config = {"campaign": "made", "mesh": {"nodes": 1, "gpus": 2}, "grids": [grid], "repeats": 2}
    (campaign / "campaign.json").write_text(json.dumps(config))
    (finding,) = campaign_check.check(campaign).findings
    assert not finding.is_problem
    assert "10 of 16 planned cells have no record" in finding.sentence
    (campaign / "campaign.json").write_text(json.dumps(config | {"grid": 1}))
    (finding,) = campaign_check.check(campaign).findings
    assert not finding.is_problem
    assert "campaign.json: is no readable plan of cells" in str(finding)


def test_a_method_faster_than_its_bound_is_told(campaign: Path) -> None:
    where = RING_BOTH.replace("ring/", "single/")
    _change(campaign, where, lambda data: _scaled_times(data, 3.0))
    notes = [str(finding) for finding in campaign_check.check(campaign).findings]
    assert sum("is less than its bound" in note for note in notes) == 2


def test_the_bound_of_another_commit_is_none(campaign: Path) -> None:
    single = RING_BOTH.replace("ring/", "single/")
    _change(campaign, single, lambda data: _scaled_times(data, 3.0))
    _change(campaign, single, _another_commit)
    checked = campaign_check.check(campaign)
    notes = [str(finding) for finding in checked.findings if "bound" in finding.sentence]
    assert checked.problems == []
    assert len(notes) == 2
    for note in notes:
        assert "is not measured by its commit (012345678901), only by ffffffffffff" in note


def test_an_empty_campaign_is_no_success(tmp_path: Path) -> None:
    (tmp_path / "records").mkdir()
    assert len(campaign_check.check(tmp_path).problems) == 1
