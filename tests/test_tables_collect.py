"""Collect: every record becomes one row, under the status law, with the same bytes each time."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from dataclasses import replace

import pytest

import make_records
from ringmark import record
from ringmark.cell import Cell, MeshShape
from ringmark.cli import main
from ringmark.errors import UserError
from ringmark.tables import campaign, collect

MESH = MeshShape(2, 2)


def cell(method: str = "ring", seqlen: int = 512, phase: str = "fwd", kernel: str = "auto") -> Cell:
    return Cell(method, seqlen, make_records.SMALL, phase, MESH, kernel)  # type: ignore[arg-type]


@pytest.fixture
def made(tmp_path):
    return make_records.write_campaign(tmp_path / "results" / "made", make_records.grid())


def rows_of(folder):
    with open(folder / "cells.csv", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_one_row_per_record_with_its_coordinates_and_figures(made):
    assert main(["collect", str(made)]) == 0
    rows = {(row["key"], row["repeat"]): row for row in rows_of(made)}
    records = make_records.grid()
    assert len(rows) == len(records)
    for found in records:
        row = rows[(found.cell.key, str(found.asked.repeat))]
        assert row["status"] == found.status.value
        assert int(row["seqlen_global"]) == found.cell.seqlen_global
        assert json.loads(row["options"]) == found.cell.options
        if found.timing:
            summary = found.timing.headline.summary
            assert float(row["median_ms"]) == summary.median
            assert float(row["ci_low_ms"]) == summary.ci_low
            # the rate's interval is the time's, turned round
            product = float(row["tflops_ci_low"]) * summary.ci_high
            assert product == pytest.approx(found.timing.tflops_per_gpu * summary.median)
        else:
            assert row["median_ms"] == row["tflops_per_gpu"] == ""
            assert row["reason"] == found.failure.reason


def test_the_worst_error_is_that_of_both_checks(tmp_path):
    found = make_records.make(Cell("ring", 512, make_records.SMALL, "fwd", MeshShape(1, 2)))
    out = found.check.errors["out"]
    later = replace(found.check.again, errors={"out": replace(out, relative_error=0.9 * out.allowed)})
    found = replace(found, check=replace(found.check, again=later))
    (row,) = collect.collect(campaign.find(str(make_records.write_campaign(tmp_path, [found])))).rows
    assert row.error_of_allowed == pytest.approx(0.9)


def test_bytes_that_nobody_counted_are_unknown(tmp_path):
    """A peer sends by itself; its record says 0, which no table may repeat."""
    peer = make_records.make(cell("te_p2p"))
    ran = replace(peer.ran, implementation="transformer-engine", bytes_sent_intra=0, bytes_sent_inter=0)
    records = [make_records.make(cell("ring")), replace(peer, ran=ran)]
    folder = make_records.write_campaign(tmp_path / "c", records)
    assert main(["collect", str(folder)]) == 0
    rows = {row["method"]: (row["bytes_sent_intra"], row["bytes_sent_inter"]) for row in rows_of(folder)}
    assert rows == {"ring": (str(1 << 20), str(1 << 18)), "te_p2p": ("", "")}


def test_the_bound_is_the_single_record_of_the_same_kernel_and_run(tmp_path):
    records = [
        make_records.make(cell("single", kernel="a"), kernel="k1", median_ms=4.0, run_id="r1"),
        make_records.make(cell("single", kernel="b"), kernel="k2", median_ms=1.0, run_id="r1"),
        make_records.make(cell("single", kernel="a"), kernel="k1", median_ms=2.0, run_id="r2", repeat=1),
        make_records.make(cell("ring", kernel="a"), kernel="k1", median_ms=8.0, run_id="r1"),
        make_records.make(cell("burst", kernel="a"), kernel="k1", median_ms=8.0, run_id="r3"),
        make_records.make(cell("usp", kernel="c"), kernel="k3", median_ms=8.0, run_id="r1"),
    ]
    folder = make_records.write_campaign(tmp_path / "c", records)
    rows = {row.method: row for row in collect.collect(campaign.find(str(folder))).rows}
    assert rows["ring"].bound_from == "run"
    assert rows["ring"].fraction_of_bound == pytest.approx(0.5, rel=0.05)
    assert rows["burst"].bound_from == "campaign"
    assert rows["burst"].fraction_of_bound == pytest.approx(3 / 8, rel=0.05)
    assert rows["usp"].bound_ms is None


def test_a_bound_of_another_commit_is_none(tmp_path):
    """Of another run it must at least be of the same program."""
    records = []
    for method, ms, commit in (("single", 4.0, "a" * 40), ("ring", 8.0, "a" * 40), ("burst", 8.0, "b" * 40)):
        made = make_records.make(cell(method), median_ms=ms, run_id=method)
        made.environment["source"] = {"version": "0.1.0", "git_commit": commit, "git_dirty": False}
        records.append(made)
    folder = make_records.write_campaign(tmp_path / "c", records)
    rows = {row.method: row for row in collect.collect(campaign.find(str(folder))).rows}
    assert rows["ring"].bound_from == "campaign"
    assert (rows["burst"].bound_ms, rows["burst"].fraction_of_bound, rows["burst"].bound_from) == (None,) * 3
    assert rows["burst"].program == "0.1.0 at commit bbbbbbbbbbbb"


def test_two_states_of_one_changed_checkout_are_two_programs(tmp_path):
    records = []
    for method, ms, tree in (("single", 4.0, "a"), ("ring", 8.0, "a"), ("burst", 8.0, "b")):
        made = make_records.make(cell(method), median_ms=ms, run_id=method)
        source = {"version": "0.1.0", "git_commit": "c" * 40, "git_dirty": True, "tree": tree * 40}
        made.environment["source"] = source
        records.append(made)
    folder = make_records.write_campaign(tmp_path / "c", records)
    rows = {row.method: row for row in collect.collect(campaign.find(str(folder))).rows}
    assert (rows["ring"].bound_from, rows["burst"].bound_from) == ("campaign", None)
    assert rows["burst"].program == f"0.1.0 at commit {'c' * 12} with local changes (tree {'b' * 12})"


def test_the_bound_is_the_fastest_of_its_rows_each_the_median_of_its_repeats(tmp_path):
    def single(ms: float, repeat: int = 0, run_id: str = "r1", **options: int) -> record.Record:
        one = Cell("single", 512, make_records.SMALL, "fwd", MeshShape(1, 2), "auto", options)
        return make_records.make(one, median_ms=ms, repeat=repeat, run_id=run_id)

    ring = Cell("ring", 512, make_records.SMALL, "fwd", MeshShape(1, 2), "auto")
    records = [
        *(single(ms, repeat) for repeat, ms in enumerate((4.0, 5.0, 100.0))),
        *(single(ms, repeat, head_groups=2) for repeat, ms in enumerate((6.0, 4.0, 1.0))),
        single(0.5, run_id="r2", head_groups=4),
        make_records.make(ring, median_ms=8.0, run_id="r1"),
    ]
    folder = make_records.write_campaign(tmp_path / "c", records)
    rows = {row.row: row for row in collect.collect(campaign.find(str(folder))).rows}
    assert rows["ring"].fraction_of_bound == pytest.approx(0.5, rel=0.05)
    assert rows["ring"].bound_from == "run"


def test_a_bound_that_was_asked_for_in_two_words_is_the_faster_of_the_two(tmp_path):
    """auto took the kernel that others named: no two repeats of one bound, whose middle nobody measured."""
    records = [
        make_records.make(cell(method, kernel=asked), kernel="k", median_ms=ms, run_id="r1")
        for method, times in (("single", (2.0, 4.0)), ("ring", (8.0, 8.0)))
        for asked, ms in zip(("auto", "k"), times)
    ]
    folder = make_records.write_campaign(tmp_path / "c", records)
    rows = collect.collect(campaign.find(str(folder))).rows
    times = {(row.method, row.kernel_asked): row.median_ms for row in rows}
    assert {row.bound_ms for row in rows} == {times["single", "auto"]}
    assert {(row.method, row.kernel_asked): row.bound_from for row in rows} == {
        ("single", "auto"): "run",
        ("single", "k"): "run, kernel auto",
        ("ring", "auto"): "run",
        ("ring", "k"): "run, kernel auto",
    }


def test_a_corrupt_record_is_named_and_nothing_is_lost(made, capsys):
    main(["collect", str(made)])
    before = (made / "cells.csv").read_bytes()
    broken = next((made / "records").rglob("*.json"))
    whole = broken.read_text()
    for text, word in ((whole[: len(whole) // 2], "no readable record"), ("{}", "lacks the key")):
        broken.write_text(text)
        capsys.readouterr()
        assert main(["collect", str(made)]) == 2
        said = capsys.readouterr().err
        assert str(broken) in said
        assert word in said
        assert len(said.strip().splitlines()) == 1
        assert (made / "cells.csv").read_bytes() == before
    broken.write_text(whole)
    assert main(["collect", str(made)]) == 0
    assert (made / "cells.csv").read_bytes() == before


def test_a_time_beside_a_failure_is_refused(made, capsys):
    path = next(p for p in (made / "records").rglob("*.json") if '"status": "passed"' in p.read_text())
    data = json.loads(path.read_text())
    data["status"], data["failure"] = "oom", {"reason": "out of memory"}
    path.write_text(json.dumps(data))
    assert main(["collect", str(made)]) == 2
    assert "cannot have a timing" in capsys.readouterr().err


def test_a_record_in_another_records_place_is_refused(made):
    path = made / make_records.grid()[0].path
    path.rename(path.with_name("S4096_fwd.r0.json"))
    with pytest.raises(UserError, match="is the record of"):
        collect.collect(campaign.find(str(made)))


def test_many_records_in_processes_give_the_rows_that_one_process_gives(made, monkeypatch):
    alone = collect.csv_text(collect.collect(campaign.find(str(made))).rows)
    monkeypatch.setattr(collect, "_MANY", 1)
    monkeypatch.setattr(collect.os, "cpu_count", lambda: 2)
    assert collect.csv_text(collect.collect(campaign.find(str(made))).rows) == alone


def test_parquet_holds_the_same_table(made):
    parquet = pytest.importorskip("pyarrow.parquet")
    main(["collect", str(made)])
    table = parquet.read_table(made / "cells.parquet")
    texts = rows_of(made)
    assert table.num_rows == len(texts)
    assert table.column_names == list(texts[0])
    assert table.column("median_ms").to_pylist()[0] == float(texts[0]["median_ms"])
    assert str(table.schema.field("seqlen_global").type) == "int64"


def test_a_wrong_campaign_is_answered_with_the_nearest(made, monkeypatch, capsys):
    monkeypatch.chdir(made.parent.parent)
    assert main(["collect", "mode"]) == 2
    assert "did you mean 'made'" in capsys.readouterr().err
    assert main(["collect", "made"]) == 0


def test_environments_differ_by_what_lasts_not_by_clocks(tmp_path):
    first = make_records.make(cell("ring"))
    second = make_records.make(cell("burst"))
    for found, clock in ((first, 1000), (second, 1900)):
        found.environment["before"] = {"ranks": [{"gpu": {"clock_sm_mhz": clock}}]}
    folder = make_records.write_campaign(tmp_path / "c", [first, second])
    assert len(collect.collect(campaign.find(str(folder))).environments) == 1


BLOCKER = """
import sys
class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] == "torch":
            raise ImportError("torch is not for tables")
sys.meta_path.insert(0, Refuse())
from ringmark.cli import main
for words in (["collect"], ["render", "--out", sys.argv[2]], ["plot", "--out", sys.argv[2]], ["report"]):
    assert main([words[0], sys.argv[1], *words[1:]]) == 0, words
assert "torch" not in sys.modules
"""


def test_tables_never_import_torch(made, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", BLOCKER, str(made), str(tmp_path / "out")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_statuses_all_arrive(made):
    rows = collect.collect(campaign.find(str(made))).rows
    assert {row.status for row in rows} == {status.value for status in record.Status}
