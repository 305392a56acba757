"""The workflow as its user calls it: what a dry run tells, which profile decides; orphans."""

from __future__ import annotations

import dataclasses
import fcntl
import os
import re
import shlex
import shutil
import stat
import subprocess
import sys
import threading
import types
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from make_records import make
from ringmark import checkup, cluster, cost, dag, flops, orphans, record, submit
from ringmark import config as configs
from ringmark.bench import timer
from ringmark.cell import Cell, MeshShape, Shape
from ringmark.config import Config, Grid
from ringmark.record import Asked, Measure

ROOT = Path(__file__).parents[1]
pytest.importorskip("snakemake")
GRID = {"methods": ["ring"], "seqlen_global": [256], "shapes": [{"num_heads_q": 2, "num_heads_kv": 2}]}
CONFIG: dict[str, Any] = {"campaign": "t", "mesh": {"nodes": 4, "gpus": 8}, "grids": [GRID]}
SITE = {"name": "site", "nodes": 4, "gpus_per_node": 8, "partition": "gpu"}


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    shutil.copy(ROOT / "Snakefile", tmp_path)
    shutil.copytree(ROOT / "workflow", tmp_path / "workflow")
    shutil.copytree(ROOT / "config", tmp_path / "config")
    for link in ("slurm", "profiles"):
        (tmp_path / link).symlink_to(os.readlink(ROOT / link))
    (tmp_path / "paper_tables").mkdir()
    write(tmp_path)
    return tmp_path


def write(folder: Path, site: dict[str, Any] | None = None, **changes: Any) -> None:
    config = {**CONFIG, **({"cluster": "site.yaml"} if site else {}), **changes}
    (folder / "c.yaml").write_text(yaml.safe_dump(config))
    (folder / "site.yaml").write_text(yaml.safe_dump(site))


def snakemake(folder: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return bare_snakemake(folder, "--configfile", "c.yaml", *words, **environ)


def bare_snakemake(folder: Path, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "snakemake", *words],
        cwd=folder,
        env={**os.environ, **environ},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def rules(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The rules that a dry run names, once for each job."""
    return re.findall(r"^(?:local)?rule (\w+):", done.stdout + done.stderr, re.MULTILINE)


def test_a_dry_run_tells_cells_node_minutes_and_both_commands(checkout: Path) -> None:
    write(checkout, SITE)
    done = snakemake(checkout, "--profile", "slurm", "-n")
    assert done.returncode == 0, done.stderr
    assert sorted(rules(done)) == ["all", "collect", "measure", "page", "plan", "render"]
    told = [line for line in done.stderr.splitlines() if line.startswith("ringmark: ")]
    assert re.search(
        r"t: 4 cells to measure in 1 jobs of 4 nodes: about \d+\.\d min, \d+\.\d node-minutes", told[0]
    )
    for words in (
        "-p gpu",
        "--nodes=4",
        "--ntasks=4",
        "--ntasks-per-node=1",
        "--gpus-per-node=8",
        "--exclusive",
    ):
        assert words in told[1], words
    assert "--rendezvous NODE0:" in told[2]
    assert "srun --overlap --nodes 4 --ntasks 4" in told[2]


def test_without_a_cluster_the_local_campaign_is_planned(checkout: Path) -> None:
    done = snakemake(checkout, "--profile", "workflow/profiles/local", "-n")
    assert done.returncode == 0, done.stderr
    assert "measure" in rules(done)  # a root Snakefile that only includes another would plan nothing
    assert "and workflow specific profile profiles/default" in done.stderr
    assert "ringmark: " not in done.stderr


def test_a_name_alone_lies_over_the_default_config(checkout: Path) -> None:
    done = bare_snakemake(checkout, "--profile", "workflow/profiles/local", "--config", "campaign=q2", "-n")
    assert done.returncode == 0, done.stderr
    assert "results/q2/cells.csv" in done.stdout + done.stderr


def test_what_the_verbs_refuse_the_workflow_refuses_in_the_same_sentence(checkout: Path) -> None:
    with open(checkout / "c.yaml", "a") as file:
        file.write("seed: 1\nseed: 2\n")
    done = snakemake(checkout, "-n")
    assert done.returncode != 0
    assert re.search(
        r"ringmark: .*c\.yaml is no valid YAML: line \d+ gives the key 'seed' again", done.stderr
    )
    assert "Traceback" not in done.stderr
    write(checkout, grids=[{**GRID, "kernels": ["flash9"]}])
    done = snakemake(checkout, "-n")
    assert done.returncode != 0
    assert "there is no kernel 'flash9'" in done.stdout + done.stderr


def test_the_workflow_replaces_no_record(checkout: Path) -> None:
    (job,) = configs.jobs(configs.from_data(CONFIG, "c"), checkout / "results")
    item = job.items[0]
    found = dataclasses.replace(make(item.cell, campaign="t"), asked=item.asked)
    record.write(found, Path(item.out))
    assert snakemake(checkout, "-n").returncode == 0
    write(checkout, measure={"warmup": 4})
    done = snakemake(checkout, "--cores", "1")
    assert done.returncode != 0
    assert "1 passed record was asked for otherwise in campaign t (warmup 3, now 4)" in done.stderr
    assert "Traceback" not in done.stderr
    assert record.read(Path(item.out)) == found


def test_slurm_without_a_cluster_file_is_refused_in_one_sentence(checkout: Path) -> None:
    done = snakemake(checkout, "--profile", "slurm")
    assert done.returncode != 0
    assert "no cluster is named: set 'cluster: " in done.stdout + done.stderr
    assert "Traceback" not in done.stderr


def test_a_job_for_slurm_does_not_run_on_the_login_node(checkout: Path) -> None:
    write(checkout, SITE)
    environ = {name: "" for name in os.environ if name.startswith("SLURM")}
    done = snakemake(checkout, "--profile", "workflow/profiles/local", **environ)
    assert done.returncode != 0
    assert "this is no Slurm allocation" in done.stdout + done.stderr
    assert not list(checkout.glob("results/t/records/**/*.json"))


def test_the_image_is_built_only_where_the_cluster_needs_one(checkout: Path) -> None:
    shutil.copytree(
        ROOT / "src", checkout / "src", ignore=shutil.ignore_patterns("__pycache__", "*.egg-info")
    )
    shutil.copytree(ROOT / "envs", checkout / "envs", symlinks=True)
    for name in ("Dockerfile", ".dockerignore", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, checkout)
    write(checkout, SITE)
    assert "image" not in rules(snakemake(checkout, "-n"))
    write(checkout, {**SITE, "runtime": "apptainer", "image": "/x/ringmark.sif"})
    assert "image" not in rules(snakemake(checkout, "-n"))
    write(checkout, {**SITE, "runtime": "apptainer"})
    assert "image" in rules(snakemake(checkout, "-n"))


def test_the_profile_that_always_applies_is_neutral() -> None:
    default = yaml.safe_load((ROOT / "workflow/profiles/default/config.yaml").read_text())
    slurm = yaml.safe_load((ROOT / "slurm/config.yaml").read_text())
    assert not set(default) & {
        "executor",
        "jobs",
        "cores",
        "default-resources",
        "retries",
        "rerun-incomplete",
    }
    assert "rerun-incomplete" not in slurm
    assert slurm["executor"] == "slurm"
    assert os.readlink(ROOT / "slurm") == "workflow/profiles/slurm"


# Orphans.

LISTING = "\n".join(
    [
        "11|RUNNING|/w|rule_measure_wildcards_000-r0-aa",
        "12|PENDING|/w|rule_measure_wildcards_001-r0-bb",
        "13|RUNNING|/elsewhere|rule_measure_wildcards_000-r0-aa",
        "14|RUNNING|/w|rule_measure_wildcards_999-r0-zz",
        "15|RUNNING|/w|(null)",
        "16|RUNNING|/w|a | b",
    ]
)


def test_a_checkout_may_lie_in_a_folder_with_a_space() -> None:
    """Rules hand the command to a shell as it stands."""
    asked = "import sys; sys.executable = '/my work/py'; from ringmark import dag; print(dag.RINGMARK)"
    told = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, check=True).stdout
    assert shlex.split(told) == ["/my work/py", "-m", "ringmark.cli"]


def test_orphans_are_this_folders_jobs_of_this_campaign() -> None:
    found = orphans.among(LISTING, ["000-r0-aa", "001-r0-bb"], Path("/w"))
    assert [(one.slurm_job, one.state, one.job_id) for one in found] == [
        ("11", "RUNNING", "000-r0-aa"),
        ("12", "PENDING", "001-r0-bb"),
    ]


def test_orphans_are_waited_for_and_a_silent_controller_stops_everything(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(orphans, "POLL_S", 0.01)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    program(
        tmp_path / "squeue",
        f"echo x >> {tmp_path}/asked; [ $(wc -l < {tmp_path}/asked) -gt 3 ] || echo '{LISTING[:46]}'",
    )
    said: list[str] = []
    (found,) = orphans.settle(["000-r0-aa"], Path("/w"), said.append)
    assert found.slurm_job == "11"
    assert len(said) == 1
    assert "scancel 11" in said[0]
    program(tmp_path / "squeue", "echo 'cannot contact the controller' >&2; exit 1")
    with pytest.raises(orphans.UserError, match="nothing is submitted"):
        orphans.settle(["000-r0-aa"], Path("/w"), said.append)


def test_who_measures_on_this_host_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After a driver that was killed its job lives on: a rerun failed at it, or measured beside it."""
    monkeypatch.setattr(orphans, "POLL_S", 0.01)
    for name in ("000-r0-aa", "001-r0-bb"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "lock").touch()
    said: list[str] = []
    with open(tmp_path / "001-r0-bb/lock", "a+") as held:
        fcntl.flock(held, fcntl.LOCK_EX)

        def end_it(line: str) -> None:
            said.append(line)
            threading.Timer(0.05, held.close).start()

        orphans.settle_here(tmp_path, end_it)
        assert held.closed
    assert len(said) == 1
    assert "perhaps of an earlier run, still measures 001-r0-bb. Waiting" in said[0]
    orphans.settle_here(tmp_path, said.append)
    assert len(said) == 1


def test_jobs_of_this_host_are_looked_for_only_before_some_are_started(
    checkout: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(checkout)
    write(checkout, mesh={"gpus": 2})
    campaign = dag.Campaign.from_snakemake(yaml.safe_load(Path("c.yaml").read_text()), ["c.yaml"])
    asked: list[Path] = []
    monkeypatch.setattr(orphans, "settle_here", lambda folder, say: asked.append(folder))

    def started(main: bool = True, **how: bool) -> int:
        monkeypatch.setattr(dag, "_ready", set())
        settings = types.SimpleNamespace(
            **{"local_exec": True, "dryrun_exec": False, "touch_exec": False, **how}
        )
        plugin = types.SimpleNamespace(common_settings=settings)
        before = len(asked)
        dag.before_starting(campaign, types.SimpleNamespace(executor_plugin=plugin, is_main_process=main))
        return len(asked) - before

    assert (started(), started(main=False), started(dryrun_exec=True), started(touch_exec=True)) == (
        1,
        0,
        0,
        0,
    )
    assert asked == [Path("results/t/jobs")]
    Path(".snakemake/locks").mkdir(parents=True)
    Path(".snakemake/locks/0.input.lock").touch()  # Snakemake refuses by itself: nobody waits for that
    assert started() == 0


def program(path: Path, body: str) -> None:
    """A stand-in for a command."""
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)


# Limits, and what doctor says of a cluster file.


def test_a_jobs_time_limit_leaves_room_for_one_hang_and_keeps_to_the_sites(tmp_path: Path) -> None:
    config = configs.from_data({**CONFIG, "cell_limit_s": 600, "start_limit_s": 300}, "c")
    (job, *_) = configs.jobs(config, tmp_path)
    long = dataclasses.replace(job, cluster=cluster.Cluster("s", nodes=4))
    assert submit.minutes(long, config) * 60 >= 900 + submit.seconds(job, config)
    short = dataclasses.replace(job, cluster=cluster.Cluster("s", nodes=4, time_limit_min=10))
    assert submit.minutes(short, config) == 10


def test_a_jobs_time_limit_holds_every_iteration_that_a_cell_may_take(tmp_path: Path) -> None:
    config = configs.read(ROOT / "config/paper.yaml")
    rate, asked = cost.assumed_tflops(config) * 1e12, config.measure
    room = config.start_limit_s + config.cell_limit_s
    for job in configs.jobs(config, tmp_path):
        each = [flops.cell_flops(item.cell) / item.cell.world_size / rate for item in job.items]
        timed = sum(min(asked.max_iterations * one, asked.time_limit_s) for one in each)
        assert submit.minutes(job, config) * 60 > len(asked.protocols) * timed + room


def test_the_longest_of_a_cell_adds_up() -> None:
    """An iteration of 2 s where everything is half as fast; warm-up, rounds, checks."""
    cell = Cell("ring", 1024)
    rate = flops.cell_flops(cell) / 1e12

    def longest(**asked: Any) -> float:
        return cost.longest_seconds(cell, Measure(**asked), rate, 2.0) - cost.UNTIMED * 2.0 - 2 * cost.CELL_S

    few = {"min_iterations": 2, "max_iterations": 5}
    assert longest(**few, time_limit_s=60.0) == pytest.approx(3 * 2 + 5 * 2)
    assert longest(**few, time_limit_s=60.0, warmup_s=5.0) == pytest.approx(5 + 2 + 5 * 2)
    assert longest(min_iterations=2, max_iterations=100, time_limit_s=60.0) == pytest.approx(
        3 * 2 + 60 * 1.25
    )
    assert longest(min_iterations=2, max_iterations=100, time_limit_s=4.0) == pytest.approx(3 * 2 + 4 + 2)
    assert longest(min_iterations=50, max_iterations=100, time_limit_s=4.0) == pytest.approx(3 * 2 + 50 * 2)
    both = longest(**few, time_limit_s=60.0, protocols=["isolated", "pipelined"])
    assert both == pytest.approx(2 * (3 * 2 + 5 * 2))


@given(
    one=st.floats(1e-4, 100),
    least=st.integers(1, 20),
    more=st.integers(0, 100),
    limit=st.floats(0.1, 100),
)
def test_no_cell_takes_longer_than_its_longest(one: float, least: int, more: int, limit: float) -> None:
    """Beside the rounds of the timer itself: they go on until the maximum, or past the time limit."""
    measure = Measure(min_iterations=least, max_iterations=least + more, time_limit_s=limit)
    cell = Cell("ring", 1024)
    rate = flops.cell_flops(cell) / 1e12 / one
    asked, done = Asked(**vars(measure)), 0
    while not done or (done < asked.max_iterations and done * one < limit):
        done += timer._next_round(done, asked)
    both = dataclasses.replace(measure, protocols=["isolated", "pipelined"])
    of_one = cost.longest_seconds(cell, both, rate, 1.0) - cost.longest_seconds(cell, measure, rate, 1.0)
    assert done * one <= of_one - measure.warmup * one + 1e-6


def test_doctor_says_what_moves_bytes_between_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    from ringmark.comm import symmetric
    from ringmark.commands import doctor

    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda index: "a GPU")
    for reason, state in (("this torch is too old", "note"), (None, "ok")):
        monkeypatch.setattr(symmetric, "unavailable", lambda reason=reason: reason)
        (found,) = [one for one in doctor.torch_findings() if one[1] == "copy engines between GPUs"]
        assert found[0] == state
        assert (reason or "") in found[2]


def test_doctor_holds_a_cluster_file_against_sinfo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in checkup.SLURM_TOOLS:
        program(tmp_path / name, "exit 0")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    site = cluster.Cluster("s", nodes=4, cpus_per_node=64, partition="gpu", time_limit_min=240, fabric="ib")

    def findings(listing: str, **changes: Any) -> list[str]:
        program(tmp_path / "sinfo", f"cat <<'END'\n{listing}\nEND")
        found = checkup.check(dataclasses.replace(site, **changes))
        return [what for state, what, _ in found if state == "missing"]

    good = "gpu|6|gpu:h100:8(S:0-1),nvme:2|96|2-00:00:00|idle\ngpu|2|gpu:h100:8|96|2-00:00:00|down*"
    assert findings(good) == []
    assert findings(good, nodes=7) == ["7 nodes in partition gpu"]
    assert findings(good, cpus_per_node=128) == ["128 cores a node (there are 96)"]
    assert findings(good, time_limit_min=3000) == ["jobs of 3000 min (partition gpu ends at 2880)"]
    assert findings(good.replace("gpu:h100:8", "(null)")) == [
        "8 GPUs a node in partition gpu (Slurm knows 0)"
    ]
    assert findings(good, runtime="pyxis", image="/x.sqsh")[0] == "pyxis: srun has no --container-image"
    program(tmp_path / "srun", "echo --container-image=IMAGE")  # before 0.15
    assert findings(good, runtime="pyxis", image="/x.sqsh")[0] == "pyxis: srun has no --container-env"
    assert findings(good, runtime="docker") == ["no image is named that the nodes can pull"]
    assert findings(good, runtime="docker", image="registry/ringmark:1") == []
    assert findings(good, runtime="apptainer", image="/x.sif") == ["image /x.sif"]
    assert findings("", partition="gpo") == ["partition gpo"]


def test_doctor_without_a_partition_looks_at_the_default_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in checkup.SLURM_TOOLS:
        program(tmp_path / name, "exit 0")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    site = cluster.Cluster("s", nodes=4, cpus_per_node=64, time_limit_min=240)

    def findings(*rows: str) -> list[tuple[str, str]]:
        listing = "\n".join(rows)
        only_with_stars = 'case "$*" in *%P*) ;; *) exit 1 ;; esac'  # sinfo's %R has none
        program(tmp_path / "sinfo", f"{only_with_stars}\ncat <<'END'\n{listing}\nEND")
        return [(state, what) for state, what, _ in checkup.scheduler(site)]

    cpu, gpu = "cpu|64|(null)|96|1-00:00:00|idle", "gpu*|2|gpu:h100:8|96|2-00:00:00|idle"
    assert findings(cpu, gpu) == [("missing", "4 nodes in partition gpu")]
    assert findings(cpu, gpu.replace("|2|", "|4|")) == [("ok", "partition gpu: 4 nodes can be used")]
    assert findings(cpu, gpu.replace("gpu*", "gpu")) == [("missing", "a default partition")]


def test_every_key_of_a_config_is_explained() -> None:
    text = (ROOT / "config/README.md").read_text()
    for kind in (Config, Grid, Measure, MeshShape, Shape):
        for one in dataclasses.fields(kind):
            assert re.search(rf"^\| `{one.name}` \| \S", text, re.MULTILINE), (kind.__name__, one.name)


def test_the_costs_in_the_docs_are_those_that_are_computed() -> None:
    config = configs.read(ROOT / "config/paper.yaml")
    minutes: dict[int, dict[str, float]] = {}
    for cell in configs.cells(config):
        seconds = cost.cell_seconds(cell, config.measure, cost.assumed_tflops(config))
        minutes.setdefault(cell.seqlen_global, {})[cell.phase] = seconds * config.mesh.nodes / 60
    text = (ROOT / "docs/cluster.md").read_text()
    assert cost.START_S * config.mesh.nodes / 60 == 1  # "1 node-minute for each start"
    for seqlen, found in minutes.items():
        assert f"| {seqlen} | {found['fwd']:.2f} | {found['fwd_bwd']:.2f} |" in text


def test_a_torch_that_is_named_replaces_the_one_that_is_there(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "envs/local.lock"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    program(tmp_path / ".venv/bin/python", 'echo "$*" >> asked')
    (tmp_path / ".venv/.made").touch()

    def asked(*words: str) -> str:
        (tmp_path / "asked").write_text("")
        subprocess.run(["make", "-s", "env", *words], cwd=tmp_path, check=True, capture_output=True)
        return (tmp_path / "asked").read_text()

    assert asked() == ""
    assert "torch==2.6.0\n" in asked("TORCH=torch==2.6.0")
    assert asked() == ""


def test_make_reproduce_says_how_to_go_on_after_a_driver_that_was_killed(tmp_path: Path) -> None:
    for name in ("Makefile", "pyproject.toml", "envs/local.lock"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    (tmp_path / ".venv/bin").mkdir(parents=True)
    (tmp_path / ".venv/.made").touch()
    program(tmp_path / ".venv/bin/snakemake", "exit 1")

    def told() -> str:
        done = subprocess.run(["make", "-s", "reproduce"], cwd=tmp_path, capture_output=True, text=True)
        assert done.returncode != 0
        return done.stderr

    assert "--unlock" not in told()
    (tmp_path / ".snakemake/locks").mkdir(parents=True)
    assert "--unlock" not in told()
    (tmp_path / ".snakemake/locks/0.input.lock").touch()
    assert "if it was killed, run .venv/bin/snakemake --unlock, then make reproduce again" in told()


def test_lint_has_only_the_remarks_that_are_explained(checkout: Path) -> None:
    """workflow/README.md quotes each remark; a new one is mended or explained there."""
    done = snakemake(checkout, "--lint")
    remarks = set(re.findall(r"^    \* (.+?)\.?:$", done.stdout + done.stderr, re.MULTILINE))
    explained = (ROOT / "workflow/README.md").read_text(encoding="utf-8")
    assert remarks
    assert not {remark for remark in remarks if remark not in explained}
