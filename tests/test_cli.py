"""The command line: helps at once, and answers every mistake with one sentence and exit status 2."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ringmark import cli

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
        ([*RUN, "--warmup", "1"], "at least 3"),
        ([*RUN, "--out", "/proc/ringmark/r.json"], "cannot write"),
        ([*RUN, "--device", "cuda"], "no GPU is visible"),
        (["cells", "no/such.yaml"], "cannot read config"),
        (["job", "no/such.json"], "no readable job"),
        (["plan"], "name a config file"),
    ],
)
def test_mistakes_get_one_sentence(argv: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    try:
        code: object = cli.main(argv)
    except SystemExit as stopped:
        code = stopped.code
    err = capsys.readouterr().err
    assert code == 2
    assert says in err
    assert len(err.strip().splitlines()) == 1
    assert err.startswith("ringmark: ")


def test_cells_lists_all_and_what_they_cost(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["cells", "config/local.yaml"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert "min" in lines[-1]
    assert len(lines) - 2 == int(lines[-1].split()[0])


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
