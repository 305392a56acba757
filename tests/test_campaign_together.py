"""`ringmark check` of records beside each other: contradictions, what is not comparable, what is missing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import made_campaign
import make_records
from made_campaign import LONG_RING, PAPER, RING_BOTH, SHAPE, cell_of, edit, headline, put, scaled_times
from ringmark import campaign_check, stats
from ringmark.schema import dump


@pytest.fixture
def campaign(tmp_path: Path) -> Path:
    return made_campaign.write(tmp_path / "made")


def _another_run(data: dict[str, Any]) -> None:
    data["ran"]["run_id"] = "run1"


def _another_commit(data: dict[str, Any]) -> None:
    data["environment"]["source"]["git_commit"] = "f" * 40


def test_a_forward_of_another_run_of_the_same_commit_is_shorter_as_well(campaign: Path) -> None:
    edit(campaign, RING_BOTH, lambda data: scaled_times(data, 0.2))
    edit(campaign, RING_BOTH, _another_run)
    (problem,) = campaign_check.check(campaign).problems
    assert "its forward alone 2" in str(problem)
    edit(campaign, RING_BOTH, _another_commit)
    assert campaign_check.check(campaign).problems == [], "another program may be as fast as it likes"


def test_times_that_the_noise_turned_round_are_a_note(campaign: Path) -> None:
    def blur(data: dict[str, Any]) -> None:
        scaled_times(data, 10.0 / 35.0 * 0.99)
        series = headline(data)
        for row in series["samples_ms"]:
            row[0:3] = [value * 1.5 for value in row[0:3]]
        series["summary"] = dump(stats.summarize(stats.slowest_per_iteration(series["samples_ms"])))
        series["wall_ms"] = series["samples_ms"]
        series["clock_disagreement"] = 0.0
        series["stopped_by"] = "time_limit"

    edit(campaign, RING_BOTH, blur)
    found = campaign_check.check(campaign).findings
    about = [finding for finding in found if "its forward alone" in finding.sentence]
    assert len(about) == 1
    assert not about[0].is_problem
    assert "within their intervals" in about[0].sentence


def test_three_iterations_are_too_few_to_be_sure_of(campaign: Path) -> None:
    """Their interval covers three quarters: on a busy machine a cell of a millisecond lies outside."""

    def three(data: dict[str, Any]) -> None:
        scaled_times(data, 0.2)
        series = headline(data)
        for name in ("samples_ms", "wall_ms"):
            series[name] = [row[:3] for row in series[name]]
        series["summary"] = dump(stats.summarize(stats.slowest_per_iteration(series["samples_ms"])))
        series["stopped_by"] = "time_limit"

    edit(campaign, RING_BOTH, three)
    found = campaign_check.check(campaign).findings
    (about,) = [finding for finding in found if "its forward alone" in finding.sentence]
    assert not about.is_problem
    assert about.sentence.endswith(": of too few iterations")


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
    edit(campaign, LONG_RING, put("environment", "nodes", 0, "ranks", 1, "gpu", name, to=other))
    (problem,) = campaign_check.check(campaign).problems
    assert "the environment is" in str(problem)


def _paper_pair(folder: Path, factor: float, spread: float = 0.0) -> Path:
    """A forward at 600 TFLOP/s per GPU, and a fwd_bwd of `factor` x its time, with a wider interval."""
    forward_ms = 4 * 131072**2 * 40 * 128 / 2 / 2 / 600e12 * 1e3
    made = [
        make_records.make(cell_of("ring", phase, PAPER, 131072), median_ms=time_ms)
        for phase, time_ms in (("fwd", forward_ms), ("fwd_bwd", forward_ms * factor))
    ]
    make_records.write_campaign(folder, made)

    def blur(data: dict[str, Any]) -> None:
        series = headline(data)
        for row in series["samples_ms"]:
            row[:] = [value * (1 + (i % 2) * spread) for i, value in enumerate(row)]
        series["summary"] = dump(stats.summarize(stats.slowest_per_iteration(series["samples_ms"])))
        series["wall_ms"], series["clock_disagreement"] = series["samples_ms"], 0.0
        series["stopped_by"] = "time_limit"
        operations = 3.5 * 4 * 131072**2 * 40 * 128 / 2
        data["timing"]["tflops_per_gpu"] = operations / 2 / (series["summary"]["median"] * 1e-3) / 1e12

    if spread:
        edit(folder, LONG_RING.replace("_fwd.", "_fwd_bwd."), blur)
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
    scaled_times(slow, 5.0)
    (campaign / RING_BOTH.replace("fwd_bwd.r0", "fwd.r1")).write_text(json.dumps(slow))
    assert campaign_check.check(campaign).problems == []
    edit(campaign, RING_BOTH, lambda data: data["ran"].update(run_id="run2"))
    assert campaign_check.check(campaign).problems == []
    both = json.loads((campaign / RING_BOTH).read_text())
    both["asked"]["repeat"], both["ran"]["run_id"], both["ran"]["order"] = 1, "run1", 99
    (campaign / RING_BOTH.replace(".r0.", ".r1.")).write_text(json.dumps(both))
    (problem,) = campaign_check.check(campaign).problems
    assert ".r1." in str(problem)


def test_a_library_in_two_versions_is_two_environments_and_a_missing_one_is_not(campaign: Path) -> None:
    def with_library(version: str | None) -> Any:
        def change(data: dict[str, Any]) -> None:
            for node in data["environment"]["nodes"]:
                node["libraries"] = {"torch": "2.11.0"} | ({"peer": version} if version else {})

        return change

    for path in campaign.glob("records/**/*.json"):
        edit(campaign, str(path.relative_to(campaign)), with_library("1.0"))
    edit(campaign, RING_BOTH, with_library(None))
    assert campaign_check.check(campaign).problems == []
    edit(campaign, RING_BOTH, with_library("1.1"))
    (problem,) = campaign_check.check(campaign).problems
    assert "the version of peer is" in str(problem)


def test_what_a_reader_should_know_is_a_note_and_no_problem(campaign: Path) -> None:
    (campaign / "records/single/b1-hq4-hkv4-d64-fp32-causal/1x2/auto/S512_fwd.r0.json").unlink()
    edit(campaign, RING_BOTH, put("environment", "source", to={"git_commit": "a" * 40, "git_dirty": True}))
    checked = campaign_check.check(campaign)
    assert checked.problems == []
    notes = "\n".join(map(str, checked.findings))
    assert "its bound (method single, same kernel) is not measured" in notes
    assert "aaaaaaaaaaaa with local changes" in notes


def test_cells_are_planned_by_the_config_and_not_by_the_jobs_of_an_earlier_one(campaign: Path) -> None:
    jobs = campaign / "jobs"
    jobs.mkdir()
    (jobs / "0.job.json").write_text(json.dumps({"items": [{"out": "results/made/records/usp/x.r0.json"}]}))
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
    edit(campaign, where, lambda data: scaled_times(data, 3.0))
    notes = [str(finding) for finding in campaign_check.check(campaign).findings]
    assert sum("is less than its bound" in note for note in notes) == 2


def test_the_bound_of_another_commit_is_none(campaign: Path) -> None:
    single = RING_BOTH.replace("ring/", "single/")
    edit(campaign, single, lambda data: scaled_times(data, 3.0))
    edit(campaign, single, _another_commit)
    checked = campaign_check.check(campaign)
    notes = [str(finding) for finding in checked.findings if "bound" in finding.sentence]
    assert checked.problems == []
    assert len(notes) == 2
    for note in notes:
        assert "is not measured by its commit (012345678901), only by ffffffffffff" in note


def test_a_copy_of_a_record_is_a_duplicate(campaign: Path) -> None:
    (campaign / RING_BOTH.replace(".r0.", ".r1.")).write_text((campaign / RING_BOTH).read_text())
    problems = [str(problem) for problem in campaign_check.check(campaign).problems]
    assert any("two files for one cell" in problem for problem in problems)
    assert any("a second record of cell" in problem for problem in problems)


@pytest.mark.parametrize(
    ("lacks", "told"),
    [
        ([("again",)], "before their timing and not after it"),
        ([("again", "uniform"), ("again", "timed")], "without a look at every row where all keys weigh"),
    ],
)
def test_a_record_that_was_checked_in_fewer_ways_is_told(
    lacks: list[tuple[str, ...]], told: str, campaign: Path
) -> None:
    for keys in lacks:
        edit(campaign, RING_BOTH, put("check", *keys, to=None))
    (note,) = campaign_check.check(campaign).findings
    assert not note.is_problem
    assert f"1 records were checked {told}" in str(note)


def test_one_commit_of_two_trees_is_a_name_that_is_not_true(campaign: Path) -> None:
    edit(campaign, RING_BOTH, put("environment", "source", to=lambda x: {**x, "tree": "a" * 40}))
    assert campaign_check.check(campaign).problems == []
    edit(campaign, LONG_RING, put("environment", "source", to=lambda x: {**x, "tree": "b" * 40}))
    (problem,) = campaign_check.check(campaign).problems
    assert "one of them measured something else" in str(problem)


def _source(commit: str, tree: str | None = None, dirty: Any = True) -> Any:
    named = {"version": "0.1.0", "git_commit": commit * 40, "git_dirty": dirty}
    return put("environment", "source", to=named | ({"tree": tree * 40} if tree else {}))


def _all(campaign: Path, change: Any) -> None:
    for path in campaign.glob("records/**/*.json"):
        edit(campaign, str(path.relative_to(campaign)), change)


def test_a_checkout_with_changes_is_one_state_while_its_files_are_the_same(campaign: Path) -> None:
    """Every record of a changed checkout counted as two states: its commit, and that with changes."""
    for tree in ("a", None):
        _all(campaign, _source("c", tree))
        assert campaign_check.check(campaign).findings == []


def test_two_states_of_one_changed_checkout_are_told_and_contradict_nothing(campaign: Path) -> None:
    """A method was added or edited between two runs: the records say that the commit had changes."""
    _all(campaign, _source("c", "a"))
    edit(campaign, RING_BOTH, _source("c", "b"))
    checked = campaign_check.check(campaign)
    assert checked.problems == []
    notes = "\n".join(map(str, checked.findings))
    for tree in "ab":
        assert f"cccccccccccc with local changes (tree {tree * 12})" in notes


def test_what_another_state_of_a_changed_checkout_measured_is_no_bound_and_no_forward(campaign: Path) -> None:
    _all(campaign, _source("c", "a"))
    edit(campaign, RING_BOTH, _another_run)
    edit(campaign, RING_BOTH, lambda data: scaled_times(data, 0.2))
    (problem,) = campaign_check.check(campaign).problems
    assert "its forward alone" in str(problem)
    edit(campaign, RING_BOTH, _source("c", "b"))
    checked = campaign_check.check(campaign)
    assert checked.problems == []
    (note,) = (str(one) for one in checked.findings if "bound" in one.sentence)
    state = "cccccccccccc with local changes (tree "
    assert f"by its commit ({state}bbbbbbbbbbbb)), only by {state}aaaaaaaaaaaa)" in note


def test_one_clean_commit_of_two_trees_says_what_to_do(campaign: Path) -> None:
    for dirty in (False, {"value": None, "reason": "the commit was given by name"}):
        _all(campaign, _source("c", "a", dirty))
        edit(campaign, RING_BOTH, _source("c", "b", dirty))
        (problem,) = campaign_check.check(campaign).problems
        assert "commit cccccccccccc is the tree bbbbbbbbbbbb here and aaaaaaaaaaaa in" in str(problem)
        assert "ringmark campaign CONFIG --again" in str(problem)


def test_a_method_that_counts_nothing_that_it_sends_is_told(campaign: Path) -> None:
    """A new method's own traffic was recorded as none at all, and stood in the tables as a fact."""

    def silent(data: dict[str, Any]) -> None:
        data["ran"].update(bytes_sent_intra=0, bytes_sent_inter=0)

    single = RING_BOTH.replace("ring/", "single/")
    for one in (single, single.replace("_bwd", "")):
        edit(campaign, one, silent)
    assert campaign_check.check(campaign).findings == [], "the bound has nothing to send"
    for one in (RING_BOTH, RING_BOTH.replace("_bwd", "")):
        edit(campaign, one, silent)
    (note,) = campaign_check.check(campaign).findings
    assert not note.is_problem
    assert "2 records of ring on several ranks say that nothing was sent, this is the first" in str(note)
