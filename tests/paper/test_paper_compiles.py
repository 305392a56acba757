"""Every rendered LaTeX table, and the figures for prose, compiled by a real engine.

On Debian: apt-get install --no-install-recommends texlive-latex-recommended texlive-science
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent.parent))

import make_records
from ringmark.cli import main

ENGINE = shutil.which("pdflatex") or shutil.which("lualatex") or shutil.which("tectonic")
COMMITTED = Path(__file__).parent.parent.parent / "paper_tables"

pytestmark = pytest.mark.skipif(ENGINE is None, reason="no LaTeX engine: apt-get install texlive-science")

HEAD = r"""\documentclass{article}
\usepackage[a2paper,landscape,margin=1cm]{geometry}
\usepackage[T1]{fontenc}
\usepackage{booktabs,siunitx}
\begin{document}
"""


def compile_tex(folder: Path, body: str) -> subprocess.CompletedProcess[str]:
    (folder / "paper.tex").write_text(HEAD + body + "\\end{document}\n", encoding="utf-8")
    command = [str(ENGINE), "-interaction=nonstopmode", "-halt-on-error", "paper.tex"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, errors="replace")


def page_of(paths: list[Path]) -> str:
    return "".join(rf"\noindent\input{{{path}}}\clearpage" + "\n" for path in paths)


@pytest.fixture(scope="module")
def rendered(tmp_path_factory):
    folder = tmp_path_factory.mktemp("paper")
    made = make_records.write_campaign(folder / "made", make_records.grid())
    assert main(["render", str(made), "--out", str(folder / "out")]) == 0
    return folder / "out" / "made"


def test_every_table_compiles(rendered, tmp_path):
    tables = sorted(path for path in rendered.glob("*.tex") if path.name != "numbers.tex")
    assert len(tables) > 8
    done = compile_tex(tmp_path, page_of(tables))
    assert done.returncode == 0, done.stdout[-3000:]
    assert (tmp_path / "paper.pdf").stat().st_size > 10_000


def test_the_committed_tables_compile(tmp_path):
    tables = sorted(path for path in COMMITTED.rglob("*.tex") if path.name != "numbers.tex")
    assert tables
    done = compile_tex(tmp_path, page_of(tables))
    assert done.returncode == 0, done.stdout[-3000:]


def test_figures_for_prose_print_and_an_unknown_one_stops_the_compiler(rendered, tmp_path):
    key = "burst/b1-hq4-hkv4-d64-fp32-causal/2x2/auto/S512_fwd"
    use = rf"\input{{{rendered / 'numbers.tex'}}}" + "\n"
    good = compile_tex(tmp_path, use + rf"It takes \ringmark{{{key}}}{{ms}} ms.")
    assert good.returncode == 0, good.stdout[-3000:]
    text = shutil.which("pdftotext")
    if text:
        subprocess.run([text, "paper.pdf"], cwd=tmp_path, check=True)
        printed = (tmp_path / "paper.txt").read_text()
        assert "It takes 1.9" in printed
    bad = compile_tex(tmp_path, use + rf"\ringmark{{{key}}}{{speed}}")
    assert bad.returncode != 0
    assert "no figure speed" in bad.stdout


def test_the_engine_sees_a_broken_table(tmp_path):
    (tmp_path / "bad.tex").write_text(r"\begin{tabular}{l} a & b \\ \end{tabular}")
    assert compile_tex(tmp_path, page_of([tmp_path / "bad.tex"])).returncode != 0
