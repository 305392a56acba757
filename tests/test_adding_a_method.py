"""The example of docs/adding-a-method.md is a method: one file, found by itself, exact on every mesh."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import exact
from ringmark import kernels, methods
from ringmark.comm.mesh import Mesh
from world import run_world

PAGE = Path(__file__).parents[1] / "docs" / "adding-a-method.md"


@pytest.fixture
def query_ring(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The page's code, saved beside the other methods."""
    (code,) = re.findall(r"runs this block -->\n```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    (tmp_path / "query_ring.py").write_text(code)
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(tmp_path)])
    yield
    sys.modules.pop("ringmark.methods.query_ring", None)


def check(mesh: Mesh, problems: list[exact.Problem]) -> float:
    worst = 0.0
    for problem in problems:
        method = methods.load("query_ring")()
        assert method.unsupported(problem.cell("query_ring", mesh)) is None
        found = exact.run(method, mesh, kernels.load("reference"), problem)
        worst = max(worst, *exact.errors(found, method.layout, mesh, problem).values())
    return worst


@pytest.mark.usefixtures("query_ring")
@pytest.mark.parametrize(("nodes", "gpus"), [(1, 1), (2, 2), (3, 1)])
def test_the_pages_example_is_found_and_exact(nodes: int, gpus: int) -> None:
    assert "query_ring" in methods.names()
    given = [exact.make(24, heads=(4, 4)), exact.make(24, batch=2, heads=(4, 2), causal=False)]
    assert max(run_world(nodes * gpus, check, given, nodes=nodes)) <= 1e-5


def test_the_page_names_every_native_method() -> None:
    page = (PAGE.parent / "methods.md").read_text()
    for name in methods.names():
        assert f"| `{name}` |" in page, f"docs/methods.md has no row for {name}"
