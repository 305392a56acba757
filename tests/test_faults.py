"""A few planted faults against a real job; tests/faults/inject.py plants hundreds."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from ringmark import record, state
from ringmark.record import Failure, Record, Status


def _inject() -> Any:
    path = Path(__file__).parent / "faults" / "inject.py"
    spec = importlib.util.spec_from_file_location("inject", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["inject"] = module
    spec.loader.exec_module(module)
    return module


inject = _inject()


@pytest.mark.skipif(sys.platform != "linux", reason="faults are planted through /proc and Linux signals")
def test_each_kind_of_end_becomes_its_record_and_the_rest_is_measured(tmp_path: Path) -> None:
    kinds = ["wrong_answer", "missing_library", "exception", "limited_memory", "kill", "stop", "hang"]
    kinds += ["exit_well"]
    faults = inject.draw(len(kinds), ranks=2, seed=4, kinds=kinds)
    told: list[str] = []
    assert inject.run(faults, 2, tmp_path, told.append) == []
    assert inject.left_behind(str(tmp_path)) == []
    said = "\n".join(told)
    for word in ("wrong", "unavailable", "crashed", "oom", "timeout"):
        assert word in said, "the person who waits is told of each"
    (late,) = (fault.rank for fault in faults if fault.kind == "hang")
    assert f"; rank {late} is in _hang (plant/sitecustomize.py:" in said, "and who keeps the others waiting"
    records = [record.read(path) for path in (tmp_path / "records").rglob("*.json")]
    trees = {state.tree_of(one) for one in records}
    assert trees == {state.tree_here()}, "else --again would leave a crash of a method that was mended since"


def test_a_fault_that_ends_otherwise_is_found_out(tmp_path: Path) -> None:
    """The judge itself: a lost fault, a wrong word, a wrong rank and an innocent cell are all told."""
    faults = [inject.Fault(0, "kill", 0, 1, "timing", 0), inject.Fault(1, "stop", 2, 0, "check", 0)]
    (tmp_path / "fired0.json").write_text('{"item": 0, "stage": "timing"}')
    cell = inject.Cell("ring", 64)

    def ended(status: Status, reason: str, rank: int | None) -> Record:
        return Record(cell, inject.Asked(), status, "faults", failure=Failure(reason, rank))

    right = ended(Status.CRASHED, "rank 1 was killed by SIGKILL", 1)
    innocent = ended(Status.TIMEOUT, "no result within 5 s", None)
    wrong = inject.judge(faults, [right, innocent], tmp_path)
    assert len(wrong) == 2
    assert "never happened" in wrong[0]
    assert "item 1 has no fault and is timeout" in wrong[1]
    for other in (
        ended(Status.OOM, "rank 1 was killed by SIGKILL", 1),
        ended(Status.CRASHED, "it ended", 1),
        ended(Status.CRASHED, "rank 0 was killed by SIGKILL", 0),
    ):
        assert len(inject.judge(faults[:1], [other], tmp_path)) == 1


def test_draws_are_the_same_for_a_seed_and_cover_every_kind_and_moment() -> None:
    assert inject.draw(50, 4, 7) == inject.draw(50, 4, 7) != inject.draw(50, 4, 8)
    many = inject.draw(600, 4, 0)
    assert {fault.kind for fault in many} == set(inject.ENDS) - {"device_memory"}
    on_gpus = {fault.kind for fault in inject.draw(600, 4, 0, device="cuda")}
    assert on_gpus == set(inject.ENDS) - {"limited_memory"}
    assert {fault.stage for fault in many} == set(inject.STAGES)
    assert {fault.rank for fault in many} == {0, 1, 2, 3}
    assert {fault.kind for fault in many if fault.delay_ms} == set(inject.DELAYED)
