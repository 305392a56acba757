"""A passed record is never overwritten: another question is refused up front, or the record moved aside."""

from __future__ import annotations

import dataclasses
import json
import re
import types
from pathlib import Path
from typing import Any

import pytest
import yaml

from make_records import make
from ringmark import aside, cli, dag, job, record, state, supervise
from ringmark import config as configs
from ringmark.cluster import Cluster
from ringmark.errors import UserError

CONFIG: dict[str, Any] = {
    "campaign": "c",
    "device": "cpu",
    "mesh": {"nodes": 1, "gpus": 2},
    "preflight": False,
    "grids": [
        {
            "methods": ["ring"],
            "seqlen_global": [64],
            "shapes": [{"num_heads_q": 2, "num_heads_kv": 2, "head_dim": 16, "dtype": "fp32"}],
            "phases": ["fwd"],
        }
    ],
}


@pytest.fixture
def measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A campaign under results/ with its two records; its config is c.yaml, changed.yaml asks otherwise."""
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text(yaml.safe_dump(CONFIG))
    Path("changed.yaml").write_text(yaml.safe_dump({**CONFIG, "measure": {"warmup": 4}}))
    assert cli.main(["plan", "c.yaml"]) == 0
    for item in planned("c.yaml").items:
        found = make(item.cell, campaign="c")
        record.write(dataclasses.replace(found, asked=item.asked), Path(item.out))
    return tmp_path


def planned(config: str) -> job.Job:
    (made,) = configs.jobs(configs.read(Path(config)), Path("results"))
    return made


def files() -> dict[str, bytes]:
    """All that a campaign has; a lock holds nothing."""
    there = (path for path in Path("results").rglob("*") if path.is_file() and path.name != "lock")
    return {str(path): path.read_bytes() for path in there}


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize("argv", [["plan"], ["campaign"], ["campaign", "--match", "ring"]])
def test_another_question_is_refused_before_anything_is_written(
    argv: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    before = files()
    assert cli.main([argv[0], "changed.yaml", *argv[1:]]) == 2
    said = capsys.readouterr().err
    assert "2 passed records were asked for otherwise in campaign c (warmup 3, now 4)" in said
    assert "--again" in said
    assert files() == before


@pytest.mark.usefixtures("measured")
def test_the_workflow_refuses_it_before_it_plans() -> None:
    dag.Campaign.from_snakemake(CONFIG, ["c.yaml"]).check()
    with pytest.raises(SystemExit, match="2 passed records were asked for otherwise in campaign c"):
        dag.Campaign.from_snakemake({**CONFIG, "seed": 1}, ["c.yaml"]).check()


@pytest.mark.usefixtures("measured")
def test_a_job_planned_by_other_hands_is_refused_too(capsys: pytest.CaptureFixture[str]) -> None:
    made, before = planned("changed.yaml"), [*Path("results").rglob("records/**/*.json")]
    job.save(made, Path("j.json"))
    with pytest.raises(UserError, match="none is overwritten"):
        supervise.run(made, Path("j.json"))
    assert cli.main(["job", "j.json"]) == 2
    assert all(record.read(path).asked.warmup == 3 for path in before)


@pytest.mark.usefixtures("measured")
def test_again_moves_the_records_aside_with_their_traces(capsys: pytest.CaptureFixture[str]) -> None:
    out = Path(planned("c.yaml").items[0].out)
    out.with_suffix(".trace.json.gz").write_bytes(b"trace")
    before = {path.name: path.read_bytes() for path in Path("results").rglob("records/**/*.*")}
    assert cli.main(["plan", "changed.yaml", "--again"]) == 0
    aside = Path(capsys.readouterr().out.split("are in ")[1].split()[0])
    assert {path.name: path.read_bytes() for path in aside.rglob("*.*")} == before
    assert planned("changed.yaml").pending() == [0, 1]
    assert json.loads(Path("results/c/campaign.json").read_text())["measure"]["warmup"] == 4


@pytest.mark.usefixtures("measured")
def test_what_lies_aside_is_not_replaced_within_its_second(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(aside, "time", types.SimpleNamespace(strftime=lambda form: "20260101T000000"))
    out = Path(planned("c.yaml").items[0].out)
    for content in (b"first", b"second", b"third"):
        out.write_bytes(content)
        aside.move(Path("results/c"), planned("c.yaml").items[:1])
    kept = sorted(Path("results/c/aside").rglob(out.name))
    assert sorted(path.read_bytes() for path in kept) == [b"first", b"second", b"third"]


@pytest.mark.usefixtures("measured")
def test_what_fails_in_the_same_question_leaves_the_record(capsys: pytest.CaptureFixture[str]) -> None:
    before = files()
    assert cli.main(["plan", "c.yaml", "--again"]) == 0
    assert planned("c.yaml").pending() == []
    assert files() == before


@pytest.fixture
def edited(measured: Path) -> Path:
    """The first of the two records is of other files of ringmark, the second of these."""
    first, second = (Path(item.out) for item in planned("c.yaml").items)
    for path, tree in ((first, "a" * 40), (second, state.tree_here())):
        found = record.read(path)
        found.environment["source"]["tree"] = tree
        record.write(found, path)
    return measured


@pytest.mark.usefixtures("edited")
def test_records_of_another_state_are_kept_and_told(capsys: pytest.CaptureFixture[str]) -> None:
    """A method was edited, and its old times stood there as if they were of the new code."""
    before = files()
    says = "1 record was measured by another state of ringmark (tree aaaaaaaaaaaa; here it is "
    job.save(planned("c.yaml"), Path("j.json"))
    for argv in (["plan", "c.yaml"], ["campaign", "c.yaml"], ["job", "j.json"]):
        assert cli.main(argv) == 0
        assert capsys.readouterr().out.count(says) == 1, argv
    assert {name: text for name, text in files().items() if name in before} == before
    dag.Campaign.from_snakemake(CONFIG, ["c.yaml"]).check()
    assert says in capsys.readouterr().err


@pytest.mark.usefixtures("edited")
def test_again_moves_what_another_state_measured(capsys: pytest.CaptureFixture[str]) -> None:
    first, second = (Path(item.out) for item in planned("c.yaml").items)
    before = first.read_bytes()
    named = re.escape(planned("c.yaml").items[1].cell.key)
    assert cli.main(["campaign", "c.yaml", "--again", "--match", f"^{named}$"]) == 0
    assert first.exists(), "what is not measured again stays"
    capsys.readouterr()
    assert cli.main(["plan", "c.yaml", "--again"]) == 0
    said = capsys.readouterr().out
    assert "another state" not in said
    (moved,) = Path(said.split("are in ")[1].split()[0]).rglob("*.json")
    assert moved.read_bytes() == before
    assert planned("c.yaml").pending() == [0]
    assert second.exists()


@pytest.mark.usefixtures("edited")
def test_an_image_has_a_state_of_its_own() -> None:
    """What runs in an image is not the files beside the planner: nothing can be said of them."""
    inside = Cluster(name="x", fabric="tcp", gpus_per_node=2, cpus_per_node=2, runtime="docker")
    assert aside.told([planned("c.yaml")]) is not None
    assert aside.told([dataclasses.replace(planned("c.yaml"), cluster=inside)]) is None


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("mesh", {"nodes": 1, "gpus": 4}, "mesh 1x2, and this config asks for cpu, mesh 1x4"),
        ("device", "auto", "a campaign on cpu, mesh 1x2, and this config asks for auto"),
    ],
)
def test_a_campaign_on_another_mesh_or_device_is_another_one(
    key: str, value: object, says: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A config that took over a committed campaign's name wrote its own cells beside those records."""
    plan = ["plan", "--results", str(tmp_path), "--from-json"]
    assert cli.main([*plan, json.dumps(CONFIG)]) == 0
    assert cli.main([*plan, json.dumps({**CONFIG, key: value})]) == 0, "nothing is measured yet"
    assert cli.main([*plan, json.dumps(CONFIG)]) == 0
    record.write(
        make(configs.cells(configs.from_data(CONFIG, ""))[0], campaign="c"),
        tmp_path / "c" / "records" / "one.r0.json",
    )
    written = (tmp_path / "c" / "campaign.json").read_text()
    capsys.readouterr()
    assert cli.main([*plan, json.dumps({**CONFIG, key: value})]) == 2
    assert says in capsys.readouterr().err
    assert (tmp_path / "c" / "campaign.json").read_text() == written
    assert cli.main([*plan, json.dumps(CONFIG)]) == 0
