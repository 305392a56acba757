"""The command line: helps at once, and answers every mistake with one sentence and exit status 2."""

from __future__ import annotations

import gzip
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from make_records import make
from ringmark import cli, record
from ringmark.cell import Cell, MeshShape

RUN = ["run", "--method", "ring", "--seqlen", "64", "--heads", "2", "--head-dim", "16", "--device", "cpu"]


@pytest.mark.parametrize("verb", cli.verbs())
def test_every_verb_has_help(verb: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main([verb.replace("_", "-"), "--help"])
    assert caught.value.code == 0
    assert len(capsys.readouterr().out.splitlines()) > 3


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["rnu"], "did you mean 'run'?"),
        ([*RUN, "--phase", "fwdd"], "invalid choice"),
        ([*RUN[:2], "rnig", *RUN[3:]], "did you mean 'ring'?"),
        ([*RUN, "--mesh", "2by2"], "no mesh"),
        ([*RUN, "--mesh", "0x2"], "no ranks"),
        ([*RUN, "--kv-heads", "3"], "does not divide"),
        ([*RUN, "--option", "wire"], "NAME=VALUE"),
        (
            [*RUN, "--option", "wire=auto", "--option", "wire=native"],
            "--option wire=native: wire is given twice",
        ),
        ([*RUN[:2], "ring+wire=auto", *RUN[3:], "--option", "wire=native"], "wire is given twice: leave one"),
        ([*RUN, "--warmup", "1"], "at least 3"),
        ([*RUN, "--out", "/proc/ringmark/r.json"], "cannot write"),
        ([*RUN, "--out", "config"], "--out config is a folder"),
        ([*RUN, "--device", "cuda"], "no GPU is visible"),
        (["plan", "config/local.yaml", "--results", "/proc/ringmark"], "cannot write"),
        (["campaign", "config/local.yaml", "--results", "/proc/ringmark"], "cannot write"),
        (["verdict", "h200x4", "--out", "/proc/ringmark"], "cannot write"),
        (["audit", "--out", "/proc/ringmark/audit.md"], "cannot write"),
        (["ingest", "tests/published/samples/sp_size.log", "--out", "/proc/ringmark"], "cannot write"),
        (["render", "h200x4-profile", "--out", "/proc/ringmark"], "cannot write"),
        (["report", "h200x4-profile", "--out", "/proc/ringmark/r.html"], "cannot write"),
        (["plot", "h200x4-profile", "--out", "/proc/ringmark"], "cannot write"),
        (["cells", "no/such.yaml"], "cannot read config"),
        (["job", "no/such.json"], "no readable job"),
        (["plan"], "name a config file"),
        ([*RUN, "--iters", "0"], "--iters: 0: give a whole number of at least 1"),
        ([*RUN, "--kv-heads", "0"], "--kv-heads: 0: give a whole number of at least 1"),
        ([*RUN, "--limit", "-1"], "--limit: -1: give a number above 0"),
        ([*RUN, "--warmup-s", "-3"], "--warmup-s: -3: give seconds, 0 or more"),
        ([*RUN, "--warmup-s", "nan"], "--warmup-s: nan: give seconds"),
        ([*RUN, "--kernel", "flash9"], "there is no kernel 'flash9'"),
        ([*RUN, "--seqlen", "99999999999999999999999"], "no tensor has more than 2**63 - 1 bytes"),
        (["cells", "config/local.yaml", "--tflops", "0"], "--tflops: 0: give a number above 0"),
        (["cells", "config/local.yaml", "--tflops", "-5"], "--tflops: -5: give a number above 0"),
        (["campaign", "config/local.yaml", "--repeat", "5"], "there is no repeat 5"),
        (["plan", "--from-json", '{"a'], "--from-json is no valid JSON"),
    ],
)
def test_mistakes_get_one_sentence(
    argv: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    try:
        code: object = cli.main(argv)
    except SystemExit as stopped:
        code = stopped.code
    err = capsys.readouterr().err
    assert code == 2
    *_, last = err.strip().splitlines()
    assert last.startswith("ringmark: ")
    assert says in last
    assert "Traceback" not in err
    assert argv[0] == "ingest" or last == err.strip()  # ingest says what it has read, too


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (RUN, "; nothing is kept: a record is written when its cell is done"),
        (["campaign", "config/local.yaml"], "; what was finished is kept, the same command continues"),
        (["job", "x.job.json"], "; what was finished is kept, the same command continues"),
        (["cells", "config/local.yaml"], ""),
    ],
)
def test_an_interrupt_says_what_is_kept(
    argv: list[str], says: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(args: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"ringmark.commands.{argv[0]}.run", interrupted)
    assert cli.main(argv) == 130
    assert capsys.readouterr().err == f"ringmark: interrupted{says}\n"


def test_cells_lists_all_and_what_they_cost(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cells", "config/local.yaml"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "min" in lines[-1]
    assert len(lines) - 2 == int(lines[-1].split()[0])


@pytest.mark.parametrize(
    ("config", "nodes"),
    [("config/h200x4-two-nodes.yaml", 1), ("config/local.yaml", 1), ("config/paper.yaml", 4)],
)
def test_cells_counts_the_nodes_that_a_campaign_really_takes(
    config: str, nodes: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["cells", config]) == 0
    found = re.search(r"about (\S+) min, (\S+) node-minutes", capsys.readouterr().out)
    assert found is not None
    assert float(found[2]) == pytest.approx(nodes * float(found[1]), abs=0.25)


def test_help_and_tables_do_not_load_torch() -> None:
    script = (
        "import sys; from ringmark import cli; cli.build_parser(); "
        "cli.main(['cells', 'config/local.yaml']); sys.exit('torch' in sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", script], stdout=subprocess.DEVNULL, check=False)
    assert ran.returncode == 0


def test_docs_name_no_machine() -> None:
    """The package speaks of ringmark alone: no path of a machine in what users read."""
    for path in [*Path(".").glob("*.md"), *Path("docs").glob("*.md"), *Path("config").glob("*")]:
        text = path.read_text(encoding="utf-8")
        assert "/work/" not in text, path
        assert "/root/" not in text, path


@pytest.mark.parametrize(
    ("argv", "says"),
    [
        (["--method", "zigzag", "--seqlen", "1001", "--heads", "2"], "take 1000 or 1004"),
        (["--method", "ulysses", "--seqlen", "64", "--heads", "3"], "3 heads cannot be dealt to 2 ranks"),
    ],
)
def test_a_cell_that_cannot_be_is_a_mistake_and_keeps_its_record(
    argv: list[str], says: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "r.json"
    argv += ["--head-dim", "16", "--mesh", "1x2", "--device", "cpu", "--no-bound", "--out", str(out)]
    assert cli.main(["run", *argv]) == 2
    assert capfd.readouterr().err.strip().splitlines()[-1].startswith("ringmark: ")
    assert says in json.loads(out.read_text())["failure"]["reason"]


def test_run_prints_one_row_beside_its_bound_and_writes_both(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "r.json"
    shape = ["--seqlen", "128", "--heads", "2", "--head-dim", "16", "--mesh", "1x2", "--device", "cpu"]
    assert cli.main(["run", "--method", "ring", *shape, "--iters", "6", "--out", str(out)]) == 0
    told = capfd.readouterr().out.splitlines()
    (row,) = (line.split() for line in told if line.startswith("ring "))  # its flags stand below it
    found = record.read(out)
    assert found.timing is not None
    bound = record.read(out.with_suffix(".bound.json"))
    assert bound.timing is not None
    assert row[:5] == ["ring", "128", "1x2", "reference", "fwd_bwd"]
    medians = [one.timing.headline.summary.median for one in (found, bound) if one.timing]
    assert float(row[5]) == pytest.approx(medians[0], abs=1e-3)
    assert float(row[-3]) == pytest.approx(medians[1] / medians[0], abs=1e-3)


def test_a_campaign_for_gpus_that_are_not_here_is_refused_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)
    argv = ["campaign", "config/h200x4.yaml", "--match", "S65536_fwd$", "--results", str(tmp_path)]
    assert cli.main(argv) == 2
    assert "no GPU is visible" in capsys.readouterr().err
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert cli.main(argv) == 2
    assert "mesh 1x4 needs 4 GPUs, 2 are visible" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_a_job_for_gpus_that_are_not_here_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert cli.main(["plan", "config/h200x4.yaml", "--results", str(tmp_path)]) == 0
    first = min(tmp_path.rglob("*.job.json"))
    assert cli.main(["job", str(first)]) == 2
    assert "the ranks did not start: no GPU is visible" in capsys.readouterr().err


def test_a_list_of_records_that_cannot_be_written_is_told_before_the_job(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["plan", "config/local.yaml", "--results", str(tmp_path)]) == 0
    first = min(tmp_path.rglob("*.job.json"))
    assert cli.main(["job", str(first), "--done", "/proc/ringmark/done.json"]) == 2
    assert capsys.readouterr().err.startswith("ringmark: cannot write")
    assert not list(tmp_path.rglob("log.txt"))


BROKEN = {
    "torn": ("class Method(", "torn.py does not load: SyntaxError"),
    "lonely": ("import no_such_library", "lonely.py does not load: ModuleNotFoundError: No module named"),
    "asserts": (
        "import torch\nassert torch.cuda.device_count() > 99",
        "asserts.py does not load: AssertionError (",
    ),
    "empty": ("", "empty.py does not load: AttributeError"),
    "leaves": (
        "raise SystemExit('bye')",
        "leaves.py does not load: SystemExit: bye",
    ),
    "silent": (
        "from ringmark.methods import burst\nclass Method(burst.Method):\n    pass\n",
        "silent.py has a class Method without a label of its own: give it one",
    ),
    "borrowed": (
        "from ringmark.methods.burst import Method\n",
        "borrowed.py has the class Method of ringmark.methods.burst: derive one of its own from that",
    ),
    "spiral": (
        "from .ring import Method as Ring\nclass Method(Ring):\n    label, layout = 'S', 'stripped'\n",
        "spiral.py has the layout 'stripped': there is no layout 'stripped': did you mean 'striped'?",
    ),
    "half": (
        "from ringmark.methods import base\nclass Method(base.Method):\n    label = 'half'\n",
        "half.py has a class Method without layout",
    ),
}


@pytest.mark.parametrize("name", sorted(BROKEN))
def test_a_broken_file_costs_its_own_row(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from ringmark import catalog, methods

    text, says = BROKEN[name]
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(tmp_path)])
    assert cli.main(["methods"]) == 0
    out = capsys.readouterr().out
    assert f"broken: {says}" in next(line for line in out.splitlines() if line.startswith(f"  {name} "))
    assert "BurstAttention" in out
    assert "kernels" in out
    monkeypatch.setattr(catalog, "native_names", methods.names)
    assert cli.main([*RUN[:2], name, *RUN[3:]]) == 2
    assert says in capsys.readouterr().err


@pytest.fixture
def own_methods(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder of the methods, in a copy that a test may add files to."""
    from ringmark import catalog, methods

    package = tmp_path / "package"
    for folder in ("methods", "peers", "kernels"):
        shutil.copytree(Path(catalog.__file__).parent / folder, package / folder)
    monkeypatch.setattr(catalog, "_PACKAGE", package)
    monkeypatch.setattr(methods, "__path__", [str(package / "methods")])
    yield package / "methods"
    sys.modules.pop("ringmark.methods.mine", None)


@pytest.mark.parametrize(
    ("file", "says"),
    [
        (
            "all-gather.py",
            "methods/all-gather.py has a name that no cell can write: rename it to all_gather.py",
        ),
        (
            "AllGather.py",
            "methods/AllGather.py has a name that no cell can write: rename it to all_gather.py",
        ),
        ("native.py", "methods/native.py has a name that means all of them in a config: rename it"),
        ("te_p2p.py", "methods/te_p2p.py has the name of a peer: rename it, like my_te_p2p.py"),
        (
            "parts/__init__.py",
            "methods/parts is a folder, and a method is one file: make it parts.py, or _parts",
        ),
    ],
)
def test_a_file_that_is_no_method_for_its_name_alone_is_told(
    file: str, says: str, own_methods: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from ringmark import catalog, methods

    (own_methods / file).parent.mkdir(exist_ok=True)
    shutil.copy(own_methods / "ring.py", own_methods / file)
    name = Path(file).parts[0].removesuffix(".py")
    assert methods.names() == catalog.native_names()
    assert name not in methods.names()
    assert cli.main(["methods"]) == 0
    assert f"broken: {says}" in capsys.readouterr().out
    for argv in (["cells", "config/local.yaml"], [*RUN[:2], name, *RUN[3:]]):
        assert cli.main(argv) == 2
        (line,) = (line for line in capsys.readouterr().err.splitlines() if line)
        assert says in line


def test_a_part_of_a_method_is_hidden_by_its_first_letter(own_methods: Path) -> None:
    from ringmark import catalog, methods

    before = methods.names()
    shutil.copy(own_methods / "ring.py", own_methods / "_parts.py")
    (own_methods / "_more").mkdir()
    (own_methods / "_more" / "__init__.py").touch()
    assert methods.names() == catalog.native_names() == before
    assert not methods.misnamed()


@pytest.mark.parametrize("label", [5, None, "", "two\nlines"])
def test_a_label_is_a_text_of_one_line(
    label: object, own_methods: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (own_methods / "mine.py").write_text(
        f"from ringmark.methods import ring\nclass Method(ring.Method):\n    label = {label!r}\n"
    )
    assert cli.main(["methods"]) == 0
    says = f"broken: mine.py has the label {label!r}: give it a text of one line"
    assert says in capsys.readouterr().out


@pytest.mark.parametrize(
    ("label", "other"), [("burst  attention", "methods/burst.py"), ("yunchang USP", "peers/yunchang_usp.py")]
)
def test_two_methods_cannot_stand_in_tables_under_one_label(
    label: str, other: str, own_methods: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from ringmark import catalog

    assert all(catalog.same_label(file, catalog.labels()) is None for file in catalog.labels())
    named = {f"methods/{name}.py" for name in catalog.native_names()}
    assert named | {f"peers/{name}.py" for name in catalog.peer_names()} == set(catalog.labels())
    (own_methods / "mine.py").write_text(
        "from ringmark.methods import ring\nLABEL = " + repr(label) + "\n"
        "class Method(ring.Method):\n    label, layout = LABEL, 'zigzag'\n"
    )
    says = f"methods/mine.py has the label {label!r}, and so has {other}: give one of them another"
    assert cli.main(["methods"]) == 0
    assert f"  mine           broken: {says}" in capsys.readouterr().out
    for methods in ("[mine]", "[native]"):
        config = tmp_path / "c.yaml"
        config.write_text(
            "{campaign: c, device: cpu, mesh: {nodes: 1, gpus: 2}, "
            f"grids: [{{methods: {methods}, seqlen_global: [64], shapes: [{{}}]}}]}}"
        )
        assert cli.main(["cells", str(config)]) == 2
        (told,) = capsys.readouterr().err.splitlines()
        assert "give one of them another" in told


MISTAKEN = {
    "def unsupported(self, cell): return cell.seqlen": "'seqlen' (methods/mine.py:4, in unsupported)",
    "def unsupported(self, cell): return True": "unsupported(cell) gives True: return a sentence",
    "def unavailable(self): return True": "unavailable() gives True: return a sentence",
    "def moves(self, mesh): pass": "broken: TypeError: moves(mesh) gives None: return what a rank sends",
    "def unavailable(self): exit(1)": "SystemExit: 1 (methods/mine.py:4, in unavailable)",
    "def moves(self, mesh): return 1 / 0": "broken: ZeroDivisionError: division by zero (methods/mine.py:4",
}


def test_a_method_says_what_it_moves_and_why_it_cannot_run(
    own_methods: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (own_methods / "mine.py").write_text(
        "from ringmark.methods import base\nclass Method(base.Method):\n    label, layout = 'M', 'zigzag'\n"
        "    def unavailable(self): return 'no chips here'\n"
    )
    assert cli.main(["methods"]) == 0
    out = capsys.readouterr().out
    lines = out[out.index("  mine ") :].splitlines()[:3]
    assert [line.strip() for line in lines[1:]] == [
        "layout zigzag; its moves(mesh) does not say yet what moves",
        "cannot run here: no chips here",
    ]


def test_options_are_listed_as_they_are_given(capsys: pytest.CaptureFixture[str]) -> None:
    from ringmark import methods
    from ringmark.cell import parse_row

    assert cli.main(["methods"]) == 0
    out = capsys.readouterr().out
    lines = [line.split("options ")[1] for line in out.splitlines() if line.strip().startswith("options ")]
    listed = [parse_row("+".join(["it", *line.split(", ")]))[1] for line in lines]
    assert listed == [methods.load(name).default_options for name in methods.names()]


@pytest.mark.parametrize("line", MISTAKEN)
def test_a_mistake_in_what_a_method_says_of_itself_is_told_with_its_line(
    line: str, own_methods: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    says = MISTAKEN[line]
    (own_methods / "mine.py").write_text(
        "from ringmark.methods import ring\nclass Method(ring.Method):\n    label = 'Mine'\n    " + line
    )
    assert cli.main(["methods"]) == 0
    out = capsys.readouterr().out
    assert "BurstAttention" in out
    assert (says in out) == ("unsupported" not in line)
    if "moves" not in line:
        assert cli.main([*RUN[:2], "mine", *RUN[3:]]) == 2
        (told,) = capsys.readouterr().err.splitlines()
        assert told.startswith("ringmark: mine cannot say whether it takes this cell: ")
        assert says in told


def test_what_cannot_be_is_told_before_the_bound_is_measured(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ringmark.supervise.run", lambda *_, **__: pytest.fail("ranks were started"))
    monkeypatch.setattr("ringmark.peers._peer.installed", lambda module: False)
    for words, says in (
        (["--option", "ctas=0.5"], "ctas is 0.5: give a whole number"),
        (["--method", "ring", "--seqlen", "65"], "does not divide by 2"),
        (["--method", "te_p2p", "--dtype", "bf16"], "the module transformer_engine is not installed"),
    ):
        out = tmp_path / f"{len(words)}.json"
        assert cli.main([*RUN, *words, "--out", str(out)]) == 2
        assert says in capfd.readouterr().err
        assert record.read(out).failure is not None


def test_the_reason_of_a_failure_is_told_once(capfd: pytest.CaptureFixture[str]) -> None:
    endless = ["--iters", "100000"]  # a cell that ends between two looks at it would have its result
    assert cli.main([*RUN, "--mesh", "1x2", "--no-bound", "--limit", "0.001", *endless]) == 1
    out, err = capfd.readouterr()
    assert out.count("no result within 0.001 s") == 1
    assert "no result" not in err


def test_a_method_without_its_two_halves_is_told_which() -> None:
    from ringmark.methods import base

    with pytest.raises(NotImplementedError, match=r"has no attend\(\): write the forward"):
        base.Method().attend(*[None] * 3, 1.0)  # type: ignore[arg-type]
    with pytest.raises(NotImplementedError, match=r"has no gradients\(\): write the backward"):
        base.Method().gradients(*[None] * 6, 1.0)  # type: ignore[arg-type]


def test_a_profile_says_where_the_time_goes_and_keeps_its_trace(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert cli.main([*RUN, "--mesh", "1x2", "--iters", "6", "--profile", "--no-bound"]) == 0
    out = capfd.readouterr().out
    assert "attention kernels" in out
    assert "exposed communication" in out
    trace = next(word for word in out.split() if word.endswith(".trace.json.gz"))
    assert json.loads(gzip.decompress(Path(trace).read_bytes()))["traceEvents"]


def test_cells_costs_its_rate_everywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = tmp_path / "site.yaml"
    site.write_text("name: s\nscheduler: none\n")
    argv = ["cells", "config/h200x4.yaml", "--cluster", str(site)]
    assert cli.main([*argv, "--tflops", "600"]) == 0
    first = capsys.readouterr().out.splitlines()[-2:]
    assert all("at 600 TFLOP/s" in line for line in first)
    assert re.search(r": \d+ cells to measure \(\d+ have their record\) in", first[-1])


@pytest.mark.parametrize("status", ["crashed", "passed"])
def test_a_campaign_in_which_nothing_passed_has_failed(
    status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cell = Cell("ring", 64, mesh=MeshShape(1, 2))
    found = make(cell, status=record.Status(status))
    monkeypatch.setattr("ringmark.supervise.run", lambda *_: [found])
    argv = ["campaign", "config/local.yaml", "--results", str(tmp_path)]
    assert cli.main(argv) == (0 if status == "passed" else 1)


def test_a_terminal_that_lacks_a_character_gets_another_in_its_place() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "ringmark.cli", "audit"],
        env={**os.environ, "PYTHONIOENCODING": "latin-1"},
        capture_output=True,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    assert "arithmetic" in ran.stdout.decode("latin-1")
    assert b"Traceback" not in ran.stderr
