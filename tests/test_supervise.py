"""The supervisor against small worlds that fail on purpose: every cell ends in a record that says why."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import select
import signal
import subprocess
import sys
import threading
import time
import types
from pathlib import Path

import pytest
import torch

from ringmark import diagnose, launch, record, supervise
from ringmark import job as jobs
from ringmark.bench import agent, progress, stacks, worker
from ringmark.bench.progress import Progress, RankFailure
from ringmark.cell import Cell, MeshShape, Shape
from ringmark.cli import main
from ringmark.cluster import Cluster
from ringmark.comm.mesh import Mesh
from ringmark.errors import UserError
from ringmark.record import Asked, Failure, Record, Status
from ringmark.row import headline_row
from ringmark.schema import dump as dump_of

# A world of one process, without torch: it reports as ranks do, and does with each cell what its method says.
WORLD = """
import os, signal, subprocess, sys, time
from pathlib import Path
from ringmark import job as jobs, record
from ringmark.bench import progress, worker
from ringmark.record import Failure, Record, Status

job, run_id = jobs.load(Path(sys.argv[1])), sys.argv[3]
ranks = [progress.Reporter(job.folder, run_id, rank) for rank in range(2)]
for index in map(int, sys.argv[2].split(",")):
    item = job.items[index]
    for rank in ranks:
        rank.at("timing", index)
    act = item.cell.method
    if act in ("hang", "stop"):
        Path(job.folder, run_id, "hangs").touch()
    if act == "hang":
        subprocess.Popen(["sleep", "60"])  # what a rank has started ends with it
        time.sleep(60)
    if act == "stop":
        Path(job.folder, run_id, "rank0.stack").touch()  # it could be asked where it is
        os.kill(os.getpid(), signal.SIGSTOP)
    if act == "killed":
        progress.write_exit(job.folder, run_id, 0, -signal.SIGTERM)
        progress.write_exit(job.folder, run_id, 1, -signal.SIGKILL)
        sys.exit(1)
    if act == "raises":
        ranks[0].failed(Status.CRASHED, "Connection closed by peer", "", True)
        ranks[1].failed(Status.OOM, "out of memory", 'File "/x/methods/a.py", line 3, in attend', False)
        sys.exit(1)
    if act == "told":  # all ranks of a node are signalled with their agent, and some say that others went
        ranks[0].failed(Status.CRASHED, "Connection closed by peer", "", True)
        progress.write_told_to_end(job.folder, run_id, 0)
        sys.exit(143)
    if act == "silent":
        sys.exit(7)
    if act == "leaves":
        sys.exit(0)
    found = Record(item.cell, item.asked, Status.UNSUPPORTED, job.campaign, failure=Failure("measured"))
    record.write(found, Path(item.out))
    if act == "late":
        sys.exit(7)
    if act == "late_hang":
        Path(job.folder, run_id, "hangs").touch()
        time.sleep(60)
"""


class FakeSite:
    """Starts WORLD; an allocation that can be over."""

    def __init__(self, job: jobs.Job) -> None:
        self.job, self.hosts, self.ended = job, (), []  # type: tuple[jobs.Job, tuple[str, ...], list[str]]
        self.gone: str | None = None

    def command(self, job_file: Path, items: list[int], run_id: str) -> launch.Command:
        script = Path(self.job.folder).parent / "world.py"
        return launch.Command([sys.executable, str(script), str(job_file), ",".join(map(str, items)), run_id])

    def environ(self) -> dict[str, str]:
        return dict(os.environ)

    def over(self) -> str | None:
        return self.gone

    def end_steps(self, run_id: str) -> None:
        self.ended.append(run_id)
        Path(self.job.folder, run_id, "hangs").unlink(missing_ok=True)


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[FakeSite]:
    """The sites that are made. A supervisor's clock goes on only while a world says that it hangs, a second
    at each look: no machine is too slow for a limit."""
    made: list[FakeSite] = []
    seconds, begun = 0, time.monotonic()

    def monotonic() -> float:
        nonlocal seconds
        assert time.monotonic() - begun < 300, "a world neither ends nor says that it hangs"
        seconds += any(tmp_path.glob("world/*/hangs"))
        return float(seconds)

    clock = types.SimpleNamespace(monotonic=monotonic, sleep=time.sleep, strftime=time.strftime)
    monkeypatch.setattr(supervise, "time", clock)

    def make(job: jobs.Job) -> FakeSite:
        made.append(FakeSite(job))
        return made[-1]

    monkeypatch.setattr(supervise, "Site", make)
    return made


def job_of(folder: Path, *methods: str, cell_limit_s: float = 60.0) -> tuple[jobs.Job, Path]:
    """A job with one cell for each method (a method's place makes its length)."""
    items = []
    for index, method in enumerate(methods):
        cell = Cell(method, 64 + index, Shape(1, 1, 1, 8, "fp32"), mesh=MeshShape(1, 2))
        items.append(jobs.Item(cell, Asked(), str(folder / f"{index}.json")))
    job = jobs.Job("j", "c", MeshShape(1, 2), items, str(folder / "world"), cell_limit_s=cell_limit_s)
    path = folder / "j.job.json"
    jobs.save(job, path)
    (folder / "world.py").write_text(WORLD)
    return job, path


def test_every_way_to_fail_costs_its_own_cell(tmp_path: Path, site: list[FakeSite]) -> None:
    job, path = job_of(
        tmp_path, "fine", "killed", "raises", "fine", "silent", "hang", "leaves", "fine", cell_limit_s=4.0
    )
    said: list[str] = []
    found = supervise.run(job, path, said.append)
    words = [(one.status.value, one.failure.reason if one.failure else None) for one in found]
    assert words[:5] == [
        ("unsupported", "measured"),
        ("crashed", "rank 1 was killed by SIGKILL"),  # not rank 0, which the agent ended
        ("oom", "out of memory"),  # the cause, not the rank that noticed
        ("unsupported", "measured"),
        ("crashed", "the world ended with exit status 7 and no rank said why"),
    ]
    assert words[5] == ("timeout", "no result within 4 s (rank 0 in timing, rank 1 in timing)")
    assert words[6] == ("crashed", "rank 0 ended with exit status 0 before its work was done")
    assert words[7] == ("unsupported", "measured")
    trace = 'File "/x/methods/a.py", line 3, in attend'
    assert found[2].failure == Failure("out of memory", 1, "timing", trace)
    assert "    out of memory\n    rank 1 in stage timing, at methods/a.py:3, in attend" in said
    worlds = [one for one in Path(job.folder).iterdir() if one.is_dir()]
    assert len(worlds) == 6  # one for each failure, and one for what was left
    assert len(site[0].ended) == 6
    assert [line.split()[0] for line in said if line.startswith("[")] == [f"[{n}/8]" for n in range(1, 9)]
    assert not running(tmp_path)
    assert supervise.run(job, path, said.append) == found  # again: nothing is measured twice
    assert len([one for one in Path(job.folder).iterdir() if one.is_dir()]) == 6


def test_who_ends_after_its_record_costs_nobody(tmp_path: Path, site: list[FakeSite]) -> None:
    """The cell has its record, and the next one was not begun: a new world measures that."""
    job, path = job_of(tmp_path, "late", "fine", "late_hang", "fine", cell_limit_s=4.0)
    said: list[str] = []
    found = supervise.run(job, path, said.append)
    assert [one.failure.reason for one in found if one.failure] == ["measured"] * 4
    assert [line.split()[0] for line in said if line.startswith("[")] == [f"[{n}/4]" for n in range(1, 5)]
    assert len([one for one in Path(job.folder).iterdir() if one.is_dir()]) == 3


def test_who_stops_shortly_before_the_limit_is_named(
    tmp_path: Path, site: list[FakeSite], monkeypatch: pytest.MonkeyPatch
) -> None:
    """When the limit is over it has beaten lately; it then does not say where it is, and beats no more."""
    for name, seconds in (("SILENT_S", 1.5), ("SEEN_S", 2.0), ("GRACE_S", 0.2)):
        monkeypatch.setattr(supervise, name, seconds)
    job, path = job_of(tmp_path, "stop", cell_limit_s=4.0)
    (found,) = supervise.run(job, path, lambda line: None)
    assert found.status is Status.TIMEOUT
    assert found.failure is not None
    assert found.failure.reason.endswith("; rank 0 has stopped answering")
    assert found.failure.rank == 0


def test_an_allocation_that_ends_is_no_cells_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job, path = job_of(tmp_path, "fine", "killed", "fine")

    def make(job: jobs.Job) -> FakeSite:
        made = FakeSite(job)
        made.gone = "TIMEOUT"
        return made

    monkeypatch.setattr(supervise, "Site", make)
    with pytest.raises(UserError, match=r"has ended \(TIMEOUT\)"):
        supervise.run(job, path, lambda line: None)
    assert job.pending() == [1, 2]


def test_a_world_that_is_told_to_end_is_no_cells_failure(tmp_path: Path, site: list[FakeSite]) -> None:
    job, path = job_of(tmp_path, "fine", "told", "fine")
    with pytest.raises(UserError, match="told to end from outside"):
        supervise.run(job, path, lambda line: None)
    assert job.pending() == [1, 2]


def test_only_where_every_agent_was_told_it_came_from_outside(tmp_path: Path) -> None:
    progress.write_told_to_end(str(tmp_path.parent), tmp_path.name, 1)
    assert not progress.told_to_end(tmp_path, 2)  # node 0 ended by itself, and srun told node 1
    progress.write_told_to_end(str(tmp_path.parent), tmp_path.name, 0)
    assert progress.told_to_end(tmp_path, 2)


def test_a_world_that_does_not_start_is_told_with_its_last_words(
    tmp_path: Path, site: list[FakeSite]
) -> None:
    job, path = job_of(tmp_path, "fine")
    (tmp_path / "world.py").write_text("raise SystemExit('there is no torch here')")
    with pytest.raises(UserError, match=r"did not start: .*: there is no torch here"):
        supervise.run(job, path, lambda line: None)
    assert job.pending() == [0]
    said = "ringmark: /scratch cannot be made on a1\nsrun: error: a1: task 1: Exited with exit code 2\n"
    said += "slurmstepd: error: *** STEP 7.0 ON a0 CANCELLED AT 2024-07-14T00:00:00 ***\n"
    (tmp_path / "world.py").write_text(f"print({said!r}); raise SystemExit(1)")
    with pytest.raises(UserError, match=r": ringmark: /scratch cannot be made on a1$"):
        supervise.run(job, path, lambda line: None)
    (tmp_path / "world.py").write_text("print('srun: error: Unable to create step'); raise SystemExit(1)")
    with pytest.raises(UserError, match=r": srun: error: Unable to create step$"):
        supervise.run(job, path, lambda line: None)


def test_ranks_that_do_not_start_in_time_on_a_cluster_may_wait_for_their_image(
    tmp_path: Path, site: list[FakeSite]
) -> None:
    job, path = job_of(tmp_path, "fine")
    script = "import sys, time; from pathlib import Path; print('fetching', flush=True); "
    script += f"Path({job.folder!r}, sys.argv[3], 'hangs').touch(); time.sleep(600)"
    (tmp_path / "world.py").write_text(script)
    job = dataclasses.replace(job, start_limit_s=0.5, cluster=Cluster("here", scheduler="none"))
    with pytest.raises(
        UserError, match=r"\(no rank has started\); where .* raise start_limit_s in the config"
    ):
        supervise.run(job, path, lambda line: None)


def test_a_world_that_ends_well_without_its_records_is_not_started_for_ever(
    tmp_path: Path, site: list[FakeSite]
) -> None:
    job, path = job_of(tmp_path, "fine")
    done = "for rank in range(2): progress.Reporter(job.folder, run_id, rank).at(progress.DONE, 1)\n"
    (tmp_path / "world.py").write_text(WORLD[: WORLD.index("ranks =")] + done)
    with pytest.raises(UserError, match="without a record and without a reason"):
        supervise.run(job, path, lambda line: None)
    (tmp_path / "world.py").write_text("")
    with pytest.raises(UserError, match="did not start: the world ended with exit status 0 and no rank said"):
        supervise.run(job, path, lambda line: None)


def test_a_second_supervisor_is_turned_away(tmp_path: Path, site: list[FakeSite]) -> None:
    job, path = job_of(tmp_path, "fine")
    Path(job.folder).mkdir()
    told = "job j is being run by another process"
    with supervise.only_one(Path(job.folder), "job j"), pytest.raises(UserError, match=told):
        supervise.run(job, path)
    supervise.run(job, path, lambda line: None)


def test_a_campaign_is_measured_by_one_process_at_a_time(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two would disturb each other's clocks, whichever parts of it they measure."""
    config = tmp_path / "c.yaml"
    config.write_text(
        "{campaign: c, device: cpu, mesh: {nodes: 1, gpus: 1}, grids: [{methods: [single], seqlen_global: "
        "[64], shapes: [{batch: 1, num_heads_q: 1, num_heads_kv: 1, head_dim: 8, dtype: fp32}]}]}"
    )
    command = ["campaign", str(config), "--results", str(tmp_path / "r"), "--match", "fwd$"]
    (tmp_path / "r" / "c" / "jobs").mkdir(parents=True)
    with supervise.only_one(tmp_path / "r" / "c" / "jobs", "campaign c"):
        assert main(command) == 2
    assert "campaign c is being run by another process: wait for it, or end it" in capsys.readouterr().err
    assert not (tmp_path / "r" / "c" / "campaign.json").exists()


def test_a_rank_leaves_alone_what_another_run_has_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between planning and measuring, or while it measures: the first answer stays."""
    job, _ = job_of(tmp_path, "single", "ring")
    mesh, measured = Mesh(1, 1, 0, torch.device("cpu")), []

    def answer(item: jobs.Item, reason: str) -> Record:
        return Record(item.cell, item.asked, Status.UNSUPPORTED, "c", failure=Failure(reason))

    def measure_cell(item: jobs.Item, *_: object) -> Record:
        measured.append(item.cell.method)
        for each in job.items:
            record.write(answer(each, "another run"), Path(each.out))
        return answer(item, "this run")

    monkeypatch.setattr(worker, "measure_cell", measure_cell)
    reporter = progress.Reporter(job.folder, "run", 0)
    for order, item in enumerate(job.items):
        worker.measure(item, "c", mesh, reporter, "run", order, {})
    assert measured == ["single"]
    assert {record.read(Path(item.out)).failure for item in job.items} == {Failure("another run")}


@pytest.mark.parametrize(
    ("end", "says"),
    [
        (SystemExit(0), "the method ended its process (SystemExit: 0): let it raise an error"),
        (SystemExit(), "the method ended its process (SystemExit): let it raise an error"),
        (KeyboardInterrupt(), "the method ended its process (KeyboardInterrupt): let it raise an error"),
        (RuntimeError("no luck"), "RuntimeError: no luck"),
    ],
)
def test_a_rank_says_why_it_ends_wherever_a_method_has_gone(
    end: BaseException, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job names its folder from where the campaign was started; a method may have left that."""
    monkeypatch.chdir(tmp_path)
    job, _ = job_of(Path("results"), "mine")
    (tmp_path / "elsewhere").mkdir()

    def join(job: jobs.Job) -> Mesh:
        os.chdir("elsewhere")
        raise end

    class Ended(BaseException):
        pass

    def ended(code: int) -> None:
        raise Ended

    monkeypatch.setattr(worker, "join", join)
    monkeypatch.setattr(worker, "die_with_parent", lambda parent: None)
    monkeypatch.setattr(stacks, "register", lambda folder, rank: None)
    monkeypatch.setattr(os, "_exit", ended)
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setattr(sys, "argv", ["worker", "results/j.job.json", "0", "run", "0"])
    with pytest.raises(Ended):
        worker.main()
    (told,) = progress.failures(tmp_path / job.folder / "run", 2).values()
    assert told.reason.startswith(says)
    assert (told.status, told.secondary) == (Status.CRASHED, False)
    assert "in join" in told.detail
    assert not list((tmp_path / "elsewhere").iterdir())


def test_all_paths_of_a_job_can_be_taken_along(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    job, _ = job_of(Path(), "fine")
    job = jobs.anchored(dataclasses.replace(job, preflight="p.json"))
    assert (job.folder, job.preflight) == (str(tmp_path / "world"), str(tmp_path / "p.json"))
    assert [item.out for item in job.items] == [str(tmp_path / "0.json")]
    assert jobs.anchored(job) == job


def test_a_runtime_that_is_not_here_is_named(
    tmp_path: Path, site: list[FakeSite], monkeypatch: pytest.MonkeyPatch
) -> None:
    job, path = job_of(tmp_path, "fine")
    monkeypatch.setattr(FakeSite, "command", lambda *_: launch.Command(["nowhere-to-be-found", "x"]))
    with pytest.raises(UserError, match="nowhere-to-be-found does not start"):
        supervise.run(job, path, lambda line: None)


def test_a_place_that_cannot_be_written_is_told_first(tmp_path: Path, site: list[FakeSite]) -> None:
    job, path = job_of(tmp_path, "fine")
    Path(job.folder).write_text("a file where a folder should be")
    with pytest.raises(UserError, match="choose a place that can be written"):
        supervise.run(job, path)
    assert site == []


def test_two_containers_may_look_for_a_writable_place_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their processes have the same number; the second comes while the first looks."""
    real = Path.touch

    def touch(path: Path) -> None:
        monkeypatch.setattr(Path, "touch", real)
        real(path)
        supervise.check_writable(tmp_path)

    monkeypatch.setattr(Path, "touch", touch)
    supervise.check_writable(tmp_path)
    assert not list(tmp_path.iterdir())


def test_a_record_of_another_question_is_asked_again(tmp_path: Path, site: list[FakeSite]) -> None:
    job, path = job_of(tmp_path, "fine")
    other = Record(job.items[0].cell, Asked(seed=1), Status.OOM, "c", failure=Failure("old"))
    record.write(other, Path(job.items[0].out))
    (found,) = supervise.run(job, path, lambda line: None)
    assert found.asked == job.items[0].asked


def running(folder: Path) -> list[int]:
    """Processes whose command line names the folder."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if str(folder).encode() in path.read_bytes():
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


# Diagnosis, by itself.

AT = {rank: Progress(0, "timing", 0.0, "h", 1) for rank in range(3)}


def failed(status: Status, reason: str, at: float, secondary: bool = False) -> RankFailure:
    return RankFailure(0, "timing", status, reason, "", at, secondary)


def test_the_first_own_reason_wins_and_out_of_memory_before_all() -> None:
    told = {0: failed(Status.CRASHED, "late", 3.0), 1: failed(Status.CRASHED, "early", 1.0)}
    assert diagnose.died(told, {}, AT, 1, "")[1].reason == "early"
    told[2] = failed(Status.OOM, "no memory", 9.0)
    status, failure = diagnose.died(told, {0: 3, 1: 3}, AT, 1, "")
    assert (status, failure.rank) == (Status.OOM, 2)


def test_a_death_beats_those_who_noticed_it() -> None:
    told = {0: failed(Status.CRASHED, "Connection closed by peer", 1.0, secondary=True)}
    status, failure = diagnose.died(told, {0: 3, 1: -signal.SIGTERM, 2: -signal.SIGSEGV}, AT, 1, "log")
    assert (status, failure.reason, failure.rank) == (Status.CRASHED, "rank 2 was killed by SIGSEGV", 2)
    assert diagnose.died(told, {0: 3}, AT, 1, "")[1].reason == "Connection closed by peer"


def test_who_went_first_without_a_word_is_named() -> None:
    told = {0: failed(Status.CRASHED, "Connection closed by peer", 1.0, secondary=True)}
    ends = {0: 3, 1: 0, 2: -signal.SIGTERM}
    early = "rank 1 ended with exit status 0 before its work was done"
    for codes in (ends, {**ends, 2: -signal.SIGABRT}):  # NCCL may abort a rank that lost another
        status, failure = diagnose.died(told, codes, AT, 1, "log")
        assert (status, failure.reason, failure.rank) == (Status.CRASHED, early, 1)
    assert diagnose.died({}, {}, AT, 0, "")[1].reason == early.replace("1", "0")
    told[2] = failed(Status.CRASHED, "Broken pipe", 2.0, secondary=True)
    for codes in ({0: 3}, {0: 3, 1: -signal.SIGTERM, 2: 3}):  # its shutdown took until the agent ended it
        _, failure = diagnose.died(told, codes, AT, 1, "")
        assert failure.rank == 1
        assert failure.reason == "rank 1 went away without a word; rank 0 noticed: Connection closed by peer"
    done = {**AT, 1: dataclasses.replace(AT[1], stage=progress.DONE)}
    assert diagnose.died(told, {0: 3, 1: 0}, done, 1, "")[1].rank == 0


def test_a_rank_that_torch_does_not_name_ended_well_where_it_names_all(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from torch.distributed.elastic.multiprocessing.api import SubprocessContext

    args = argparse.Namespace(nnodes=2, nproc_per_node=2)
    monkeypatch.setenv("SLURM_NODEID", "1")
    named = "_capture_process_failures"
    monkeypatch.setattr(SubprocessContext, named, None, raising=False)
    assert agent.exit_codes(args, {3: 7}) == {2: 0, 3: 7}
    monkeypatch.delattr(SubprocessContext, named)
    assert agent.exit_codes(args, {3: 7}) == {3: 7}


def test_a_world_that_never_began_has_no_rank_to_name() -> None:
    status, failure = diagnose.died({}, {}, {}, 2, "log")
    assert (status, failure.rank, failure.stage) == (Status.CRASHED, None, "start")
    assert "exit status 2" in failure.reason


def test_a_hang_names_who_stopped() -> None:
    status, failure = diagnose.hung(AT, [1], 30.0, "log")
    assert (status, failure.rank, failure.stage) == (Status.TIMEOUT, 1, "timing")
    assert failure.reason.endswith("rank 1 has stopped answering")
    assert diagnose.hung({}, [], 30.0, "")[1].reason == "no result within 30 s (no rank has started)"


def test_a_failure_names_the_authors_line_and_not_the_librarys() -> None:
    trace = (
        "Traceback (most recent call last):\n"
        '  File "/src/ringmark/methods/mine.py", line 31, in attend\n    out[9]\n'
        '  File "/venv/lib/python3.11/site-packages/torch/_tensor.py", line 7, in wrapped\n    return f()\n'
        "IndexError: list index out of range\n"
    )
    failure = Failure("IndexError: list index out of range", 2, "timing", trace)
    where = "rank 2 in stage timing, at methods/mine.py:31, in attend"
    assert diagnose.in_lines(failure) == [failure.reason, where]
    assert diagnose.in_lines(Failure("no result", None, "timing", "a log")) == ["no result"]
    crashed = Record(Cell("mine", 64), Asked(), Status.CRASHED, "c", failure=failure)
    bound = Record(Cell("single", 64), Asked(), Status.OOM, "c", failure=Failure("no memory"))
    assert headline_row(crashed, bound).splitlines()[-3:] == [
        f"{'mine':<24} {64:>8} {'1x1':>5} {'auto':>10} {'fwd_bwd':>8} {'crashed':>11}   {failure.reason}",
        f"    {where}",
        "    the bound is oom: no memory",
    ]


# Where the ranks of a hung world are.


def dump(*frames: str, thread: str = "Current thread") -> str:
    """A dump as faulthandler writes it; a frame is FILE:LINE:FUNCTION, the innermost first."""
    lines = [f"{thread} 0x00007f01 (most recent call first):"]
    for file, line, function in (frame.split(":") for frame in frames):
        lines.append(f'  File "{file}", line {line} in {function}')
    return "\n".join(lines) + "\n"


BEAT = dump("/x/ringmark/bench/progress.py:93:_beat", thread="Thread")
ATTEND = "/x/ringmark/methods/mine.py:42:attend"
COLLECTIVE = "/x/torch/distributed/distributed_c10d.py:2800:all_reduce"
HOP = "/x/ringmark/comm/line.py:30:wait"
GPU = "/x/torch/cuda/__init__.py:1000:synchronize"
ENGINE = "/x/torch/autograd/graph.py:800:_engine_run_backward"


def test_a_hang_is_of_the_rank_for_which_the_others_wait() -> None:
    found = {0: dump(COLLECTIVE, ATTEND), 1: BEAT + dump(ATTEND), 2: dump(HOP, ATTEND)}
    failure = stacks.explained(Failure("no result within 5 s", None, None, "log"), found, AT, 3)
    assert (
        failure.reason
        == "no result within 5 s; rank 1 is in attend (methods/mine.py:42), the others wait for it"
    )
    assert (failure.rank, failure.stage) == (1, "timing")
    assert failure.detail is not None
    assert failure.detail.startswith(
        "log\nrank 0 is in\n  all_reduce (distributed/distributed_c10d.py:2800)\n"
    )
    assert failure.detail.endswith("rank 1 is in\n  attend (methods/mine.py:42)")


@pytest.mark.parametrize(
    "found",
    [
        {0: dump(COLLECTIVE), 1: dump(HOP), 2: dump(GPU)},
        {0: dump(ATTEND), 1: dump(ATTEND), 2: dump(GPU)},
        {0: dump(ATTEND), 1: dump(COLLECTIVE)},  # what the third does nobody knows
    ],
)
def test_nobody_is_named_where_it_is_not_one(found: dict[int, str]) -> None:
    failure = stacks.explained(Failure("no result within 5 s"), found, AT, 3)
    assert (failure.reason, failure.rank) == ("no result within 5 s", None)
    assert failure.detail is not None
    assert "rank 1 is in" in failure.detail


def test_who_has_stopped_answering_stays_the_one_to_blame() -> None:
    blamed = Failure("rank 2 has stopped answering", 2, "check", "log")
    failure = stacks.explained(blamed, {0: dump(ATTEND), 1: dump(COLLECTIVE)}, AT, 3)
    assert (failure.reason, failure.rank, failure.stage) == (blamed.reason, 2, "check")
    assert stacks.explained(blamed, {}, AT, 3) == blamed
    assert stacks.explained(blamed, {0: "not a dump"}, AT, 3) == blamed


def test_a_backward_is_where_autograd_runs_it() -> None:
    behind = dump(ATTEND.replace("attend", "gradients"), thread="Thread")
    (point, *_) = stacks.at_work(BEAT + behind + "\n" + dump(ENGINE, ATTEND))
    assert str(point) == "gradients (methods/mine.py:42)"
    (point, *_) = stacks.at_work(BEAT + dump(ENGINE, ATTEND))
    assert point.function == "_engine_run_backward"


def test_the_stacks_of_many_ranks_leave_room_for_the_one_that_matters() -> None:
    found = {rank: dump(*[COLLECTIVE] * 30) for rank in range(64)} | {7: dump(*[ATTEND] * 30)}
    failure = stacks.explained(Failure("hung"), found, {rank: AT[0] for rank in range(64)}, 64)
    assert failure.rank == 7
    assert failure.detail is not None
    assert len(failure.detail) <= 4000
    assert "rank 7 is in\n  attend" in failure.detail


def test_an_agent_has_its_own_ranks_dump_their_stacks(tmp_path: Path) -> None:
    rank = "import sys, time; from pathlib import Path; from ringmark.bench import progress, stacks\n"
    rank += "folder = Path(sys.argv[1]); stacks.register(folder, 0)\n"
    rank += "progress.Reporter(str(folder.parent), folder.name, 0)\n"
    rank += "def idle():\n    print(flush=True)\n    time.sleep(60)\nidle()"
    progress.supervise(tmp_path)
    started = subprocess.Popen([sys.executable, "-c", rank, str(tmp_path)], stdout=subprocess.PIPE)
    other = Progress(0, "check", 0.0, "another-host", os.getppid())  # its number is here too, and not ours
    (tmp_path / "rank1.json").write_text(json.dumps(dump_of(other)))
    try:
        threading.Thread(target=stacks.pass_on, args=(tmp_path, 2), daemon=True).start()
        assert started.stdout is not None
        assert started.stdout.readline(), "it is idle from now on"
        time.sleep(0.5)
        assert (tmp_path / "rank0.stack").read_text() == "", "nobody has asked yet"
        found = stacks.gathered(tmp_path, 2, [], 20.0)
        assert stacks.at_work(found[0])[0].function == "idle"
        assert started.poll() is None, "it only says where it is"
    finally:
        started.kill()
        started.communicate()
    stacks.keep(found, tmp_path / "log.txt")
    assert "rank 0, when it was ended:" in (tmp_path / "log.txt").read_text()


def test_ranks_that_say_nothing_do_not_keep_a_world_alive(tmp_path: Path) -> None:
    (tmp_path / "rank0.stack").touch()
    begun = time.monotonic()
    assert stacks.gathered(tmp_path, 2, [], 1.0) == {}
    assert 0.5 < time.monotonic() - begun < 10
    begun = time.monotonic()
    assert stacks.gathered(tmp_path, 2, [0], 30.0) == {}, "a rank that has stopped is not waited for"
    assert stacks.gathered(tmp_path / "gone", 2, [], 30.0) == {}
    assert time.monotonic() - begun < 10


# What ranks and supervisor tell each other by files.


def test_silence_is_measured_by_the_file_systems_clock(tmp_path: Path) -> None:
    for rank, age in ((0, 0), (1, 60)):
        beat = tmp_path / f"rank{rank}.beat"
        beat.touch()
        then = time.time() - age
        os.utime(beat, (then, then))
    assert progress.silent(tmp_path, 3, 5.0) == [1]  # rank 2 has not begun, and is not called silent


def test_the_supervisor_beats_on_when_clocks_step_back(tmp_path: Path) -> None:
    progress.supervise(tmp_path)
    ahead = time.time() + 3600
    os.utime(tmp_path / "supervisor", (ahead, ahead))
    progress.supervise(tmp_path)
    assert (tmp_path / "supervisor").stat().st_mtime < ahead


def test_an_agent_starts_where_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    job_of(tmp_path, "fine")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")  # a container's own working directory
    begun: list[Path] = []
    monkeypatch.setattr(agent, "launch_config", lambda args, job: begun.append(Path.cwd()) or sys.exit(5))
    words = ["--folder", str(tmp_path), "--nproc-per-node", "2", "--run-id", "r", "j.job.json", "0"]
    parser = argparse.ArgumentParser()
    agent.add_arguments(parser)
    with pytest.raises(SystemExit):
        agent.run(parser.parse_args(words))
    assert begun == [tmp_path]


def test_a_scratch_that_cannot_be_used_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    agent.make_scratch(str(tmp_path / "of/mine"))
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match=r"file/x cannot be made on .* \(Not a directory\): name a folder"):
        agent.make_scratch(str(tmp_path / "file/x"))
    monkeypatch.setattr(os, "access", lambda path, mode: False)  # root may write everywhere
    with pytest.raises(UserError, match=r"mine cannot be written on .*: name a folder of your own"):
        agent.make_scratch(str(tmp_path / "of/mine"))


def test_an_agent_gives_up_when_the_supervisors_beat_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    monkeypatch.setattr(progress, "time", types.SimpleNamespace(monotonic=lambda: now))
    progress.supervise(tmp_path)
    lease = progress.Lease(str(tmp_path.parent), tmp_path.name, seconds=0.3)
    assert not lease.expired()
    now = 0.2
    past = time.time() - 3600  # an old date is a change too: clocks of two hosts may differ
    os.utime(tmp_path / "supervisor", (past, past))
    assert not lease.expired()
    now = 0.4
    assert not lease.expired()
    now = 0.6
    assert lease.expired()


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's parent-death signal is Linux's")
def test_an_agent_ends_with_its_parent(tmp_path: Path) -> None:
    child = "from ringmark.bench.agent import die_with_parent; import os, time; die_with_parent(os.getppid())"
    child += "; print(os.getpid(), flush=True); time.sleep(60)"
    parent = "import subprocess, sys; subprocess.run([sys.executable, '-c', sys.argv[1]])"
    argv = [sys.executable, "-c", parent, child]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as started:
        assert started.stdout is not None
        watched = os.pidfd_open(int(started.stdout.readline()))
        started.kill()
        assert select.select([watched], [], [], 30.0)[0], "it has ended"
    os.close(watched)
