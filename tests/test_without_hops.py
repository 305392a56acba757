"""benchmarks/without_hops.py: its variants leave out what they say, and leave nothing changed behind."""

from __future__ import annotations

import sys
from pathlib import Path
from unittest import mock

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import without_hops
from without_hops import ALONE, AS_IT_IS, NO_HOPS, NO_WAITING

import exact
from copy_engines import on_the_cpu
from ringmark import kernels, methods
from ringmark.cell import Cell, MeshShape, Shape
from ringmark.comm import driver
from ringmark.comm.mesh import Mesh
from ringmark.record import Asked
from world import run_world

ASKED = Asked(min_iterations=3, max_iterations=3)
SHAPE = Shape(1, 4, 4, 16, "fp32", "causal")


def check(mesh: Mesh, folder: Path) -> dict[str, list[str]]:
    found = {}
    for transport in ("send_recv", "copy_engine"):
        options = {"transport": transport, "side": "q"}
        cell = Cell("burst", 64, SHAPE, mesh=MeshShape(1, 2), kernel="reference", options=options)
        with on_the_cpu(folder), mock.patch("ringmark.comm.symmetric.unavailable", return_value=None):
            times = without_hops.taken_apart(mesh, cell, ASKED, 2)
            assert all(len(rounds) == 2 and min(rounds) > 0 for rounds in times.values())
            found[transport] = list(times)
            method = methods.load("burst")(**options)
            problem = exact.make(64, heads=(4, 4))
            results = exact.run(method, mesh, kernels.load("reference"), problem)
            assert max(exact.errors(results, method.layout, mesh, problem).values()) < 1e-5
            if transport == "copy_engine":
                assert calls(method, mesh, problem, AS_IT_IS) == (True, True)
                assert calls(method, mesh, problem, NO_WAITING) == (True, False)
                assert calls(method, mesh, problem, NO_HOPS) == (False, False)
    return found


def calls(method: methods.base.Method, mesh: Mesh, problem: exact.Problem, variant: str) -> tuple[bool, bool]:
    """Whether rows are copied, and whether a stream waits for a flag."""
    with (
        mock.patch.object(driver, "copy", side_effect=driver.copy) as copied,
        mock.patch.object(driver, "wait", side_effect=driver.wait) as waited,
        without_hops.hops_of(variant, without_hops.Random()),
    ):
        exact.again(method, mesh, problem)
    return copied.called, waited.called


def test_a_ring_is_taken_apart(tmp_path: Path) -> None:
    for found in run_world(2, check, tmp_path):
        assert found == {
            "send_recv": [ALONE, AS_IT_IS, NO_HOPS],
            "copy_engine": [ALONE, AS_IT_IS, NO_WAITING, NO_HOPS],
        }


def test_what_makes_no_hop_is_not_taken_apart() -> None:
    def alone(mesh: Mesh) -> str:
        cell = Cell("ulysses", 64, SHAPE, mesh=MeshShape(1, 2), kernel="reference")
        with pytest.raises(SystemExit, match="made no hop of a ring on 1x2: there is nothing to leave out"):
            without_hops.taken_apart(mesh, cell, ASKED, 1)
        return "told"

    assert run_world(2, alone) == ["told"] * 2
