"""Cells, records and their schema: keys are paths and back, and the status law cannot be written around."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from make_records import make
from ringmark import record, schema
from ringmark.cell import DTYPES, PHASES, Cell, MeshShape, Shape, parse_row
from ringmark.errors import UserError
from ringmark.record import Failure, Record, Status

option_values = st.one_of(st.booleans(), st.integers(-9, 99), st.from_regex(r"[a-z_]{1,8}", fullmatch=True))
options = st.dictionaries(st.from_regex(r"[a-z][a-z0-9_]{0,6}", fullmatch=True), option_values, max_size=3)
shapes = st.builds(
    lambda batch, kv, group, dim, dtype, mask: Shape(batch, kv * group, kv, dim, dtype, mask),
    st.integers(1, 4),
    st.integers(1, 8),
    st.integers(1, 5),
    st.sampled_from([64, 128, 256]),
    st.sampled_from(DTYPES),
    st.sampled_from(["causal", "full"]),
)
cells = st.builds(
    Cell,
    st.sampled_from(["ring", "te_a2a_p2p", "usp"]),
    st.integers(1, 10**7),
    shapes,
    st.sampled_from(PHASES),
    st.builds(MeshShape, st.integers(1, 64), st.integers(1, 16)),
    st.sampled_from(["auto", "flash2"]),
    options,
)


def passed_record(repeat: int) -> Record:
    return make(Cell("ring", 1024, Shape(1, 4, 4, 64, "fp32"), "fwd_bwd", MeshShape(2, 2)), repeat=repeat)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"label": 5}, "label must be a text, not 5"),
        ({"settings": {"scale": float("nan")}}, "would hold what a record cannot: "),
        ({"settings": {"scale": {1, 2}}}, "would hold what a record cannot: "),
    ],
)
def test_what_could_not_be_read_is_not_written(changes: dict[str, object], says: str, tmp_path: Path) -> None:
    """A record that nobody can read would stop its campaign for good."""
    path, found = tmp_path / "r.json", passed_record(0)
    assert found.ran is not None
    bad = dataclasses.replace(found, ran=dataclasses.replace(found.ran, **changes))  # type: ignore[arg-type]
    with pytest.raises(UserError) as told:
        record.write(bad, path)
    assert says in str(told.value)
    assert not path.exists()
    record.write(found, path)
    assert record.read(path) == found


@given(cells)
def test_key_is_a_path_and_back(cell: Cell) -> None:
    assert Cell.from_key(cell.key) == cell
    assert all(part not in ("", ".", "..") for part in cell.key.split("/"))
    assert schema.load(Cell, json.loads(json.dumps(schema.dump(cell))), "cell") == cell
    assert parse_row(cell.row)[0] == cell.method


def test_different_cells_have_different_keys() -> None:
    base = Cell("ring", 1024)
    others = [
        dataclasses.replace(base, **change)
        for change in (
            {"method": "zigzag"},
            {"seqlen_global": 2048},
            {"shape": Shape(batch=2)},
            {"phase": "fwd"},
            {"mesh": MeshShape(1, 2)},
            {"kernel": "flash2"},
            {"options": {"wire": "native"}},
        )
    ]
    assert len({cell.key for cell in [base, *others]}) == len(others) + 1


@pytest.mark.parametrize(
    ("kind", "data", "says"),
    [
        (Cell, {"method": "ring"}, "lacks the key 'seqlen_global'"),
        (Cell, {"method": "ring", "seqlen_globl": 3}, "did you mean 'seqlen_global'?"),
        (Cell, {"method": "ring", "seqlen_global": "x"}, "must be a whole number"),
        (Cell, {"method": "ring", "seqlen_global": True}, "must be a whole number"),
        (Cell, {"method": "ring", "seqlen_global": 4, "phase": "fwd_bkw"}, "did you mean 'fwd_bwd'?"),
        (Shape, {"num_heads_q": 6, "num_heads_kv": 4}, "does not divide"),
        (MeshShape, {"nodes": 0, "gpus": 2}, "has no ranks"),
        (record.Asked, {"warmup": 0}, "at least 3"),
        (record.Asked, {"min_iterations": 9, "max_iterations": 3}, "not below it"),
    ],
)
def test_what_does_not_fit_is_told_in_one_sentence(kind: type, data: dict, says: str) -> None:
    with pytest.raises(UserError) as caught:
        schema.load(kind, data, "config")
    assert says in str(caught.value)
    assert str(caught.value).startswith("config")
    assert "\n" not in str(caught.value)


def test_a_time_exists_only_in_a_passed_record() -> None:
    passed = passed_record(0)
    assert schema.load(Record, json.loads(json.dumps(schema.dump(passed))), "r") == passed
    failure = Failure("why")
    for status in Status:
        if status is Status.PASSED:
            continue
        with pytest.raises(ValueError, match="cannot have a timing"):
            dataclasses.replace(passed, status=status, failure=failure)
    for missing in ("ran", "timing", "check", "memory"):
        with pytest.raises(ValueError, match="a passed record needs"):
            dataclasses.replace(passed, **{missing: None})
    with pytest.raises(ValueError, match="has no failure"):
        dataclasses.replace(passed, failure=failure)


def test_an_error_above_the_allowed_cannot_pass() -> None:
    passed = passed_record(0)
    assert passed.check is not None
    for bad in (1.0, float("nan"), float("inf")):
        worse = {
            name: dataclasses.replace(error, relative_error=bad)
            for name, error in passed.check.errors.items()
        }
        with pytest.raises(ValueError, match="its status is wrong"):
            dataclasses.replace(passed, check=dataclasses.replace(passed.check, errors=worse))


def test_a_failure_needs_its_reason() -> None:
    passed = passed_record(0)
    for failure in (None, Failure("")):
        with pytest.raises(ValueError, match="needs a failure with its reason"):
            Record(passed.cell, passed.asked, Status.OOM, "c", failure=failure)
    with pytest.raises(ValueError, match="needs the check that it failed"):
        Record(passed.cell, passed.asked, Status.WRONG, "c", check=passed.check, failure=Failure("off"))


def test_records_are_written_whole_or_not_at_all(tmp_path, monkeypatch) -> None:
    path = tmp_path / "deep" / "r.json"
    first = passed_record(1)
    record.write(first, path)
    assert record.read(path) == first

    def crash(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", crash)
    with pytest.raises(KeyboardInterrupt):
        record.write(passed_record(2), path)
    monkeypatch.undo()
    assert record.read(path) == first
    assert [p.name for p in path.parent.iterdir()] == ["r.json"]


def test_two_writers_of_one_process_id_do_not_share_a_file(tmp_path) -> None:
    """Containers on several nodes number their processes alike."""
    path = tmp_path / "campaign.json"
    with record.in_place_of(path) as first, record.in_place_of(path) as second:
        second.write_text("second")
        first.write_text("first")
    assert path.read_text() == "first"
    assert list(tmp_path.iterdir()) == [path]


def test_a_corrupt_record_is_named(tmp_path) -> None:
    path = tmp_path / "r.json"
    for text in ("", "{", "[]", '{"cell": 1}', '{"schema": "other"}'):
        path.write_text(text)
        with pytest.raises(UserError, match=r"r\.json"):
            record.read(path)
        assert path.read_text() == text


def test_schemas_describe_what_is_read() -> None:
    jsonschema = pytest.importorskip("jsonschema")
    described = schema.json_schema(Record, "record")
    data = json.loads(json.dumps(schema.dump(passed_record(3))))
    jsonschema.validate(data, described)
    data["cell"]["metod"] = "x"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, described)


def test_a_timing_without_a_series_is_no_timing() -> None:
    data = schema.dump(passed_record(0))
    data["timing"]["series"] = {}
    with pytest.raises(UserError, match=r"r.json.timing: series is empty"):
        record.from_json(data, "r.json")
