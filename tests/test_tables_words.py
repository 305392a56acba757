"""The tables of one group word for word, from figures that are easy to do by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

import make_records
from ringmark.cell import Cell, MeshShape
from ringmark.tables import campaign, collect, comparison, facts, markdown
from ringmark.tables.cellrow import CellRow
from ringmark.tables.group import Group, Line
from ringmark.tables.point import OTHER_BOUND, Point, Span

FWD = ("fwd", 512)
LONG = ("fwd", 1024)


@pytest.fixture
def row(tmp_path: Path) -> CellRow:
    """What stands behind a point: here it matters only that it passed, and in which run."""
    cell = Cell("ring", 512, make_records.SMALL, "fwd", MeshShape(2, 2))
    folder = make_records.write_campaign(tmp_path, [make_records.make(cell)])
    return collect.collect(campaign.find(str(folder))).rows[0]


@pytest.fixture
def made(row: CellRow) -> Group:
    """Burst clearly ahead at 512; at 1024 it ran out of memory, and the bound was not measured."""

    def passed(ms: float, rate: float, mib: float, fraction: float | None, *notes: str) -> Point:
        times, rates = Span(ms, 0.9 * ms, 1.25 * ms), Span(rate, 0.8 * rate, rate / 0.9)
        return Point("passed", (row,), times, rates, fraction, mib, 10 * mib, notes=notes)

    def line(method: str, label: str, points: dict[tuple[str, int], Point]) -> Line:
        return Line(method, method, label, "ringmark", points)

    full = Point("oom", (replace(row, status="oom"),), notes=("oom: no memory is left",))
    backward = replace(passed(30.0, 60.0, 0.0, None), memory_above_inputs_mib=None, memory_peak_mib=None)
    lines = (
        line(
            "burst",
            "BurstAttention",
            {FWD: passed(10.0, 180.0, 64.0, 0.9, "held down", OTHER_BOUND), LONG: full},
        ),
        line(
            "ring",
            "Ring",
            {
                FWD: passed(20.0, 90.0, 128.0, 0.45),
                LONG: passed(80.0, 45.0, 256.0, None),
                ("bwd", 512): backward,
            },
        ),
        line("usp", "USP", {FWD: passed(16.0, 112.5, 96.0, 0.5625)}),
        line("single", "Kernel alone", {FWD: passed(9.0, 200.0, 32.0, 1.0)}),
    )
    return Group("b1-hq4-hkv4-d64-fp32-causal", "2x2", "reference", lines, row)


def text_of(table: object) -> list[str]:
    return markdown.table_text(table).splitlines()  # type: ignore[arg-type]


def test_rates(made: Group) -> None:
    table = comparison.rates(made, "fwd")
    assert table.title == "forward: TFLOP/s per GPU [95% interval], fraction of the bound"
    assert table.name == "b1-hq4-hkv4-d64-fp32-causal-2x2-reference-fwd-tflops"
    assert text_of(table) == [
        "| method         |                                   512 |                          1024 |",
        "| -------------- | ------------------------------------: | ----------------------------: |",
        "| BurstAttention | **180.00** [144.00, 200.00] 0.900 ¹˒² |                         oom ³ |",
        "| Ring           |           90.00 [72.00, 100.00] 0.450 | 45.00 [36.00, 50.00] no bound |",
        "| USP            |          112.50 [90.00, 125.00] 0.562 |                       not run |",
        "| Kernel alone   |         200.00 [160.00, 222.22] bound |                       not run |",
        "",
        "¹ held down  ",
        "² the bound is from another run of this campaign  ",
        "³ oom: no memory is left  ",
    ]
    assert table.last_is_apart
    assert [[entry.is_number for entry in row] for row in table.rows[:3]] == [
        [False, True, False],
        [False, True, True],
        [False, True, False],
    ]
    opened = comparison.rates(replace(made, open=True, kernel="best"), "fwd")
    assert opened.title == "forward: TFLOP/s per GPU [95% interval], fraction of its own kernel"
    assert opened.name == "b1-hq4-hkv4-d64-fp32-causal-2x2-open-fwd-tflops"


def test_times(made: Group) -> None:
    table = comparison.times(made, "fwd")
    assert table.title == "forward: ms [95% interval]"
    assert text_of(table) == [
        "| method         |                          512 |                  1024 |",
        "| -------------- | ---------------------------: | --------------------: |",
        "| BurstAttention | **10.000** [9.000, 12.500] ¹ |                 oom ² |",
        "| Ring           |      20.000 [18.000, 25.000] | 80.00 [72.00, 100.00] |",
        "| USP            |      16.000 [14.400, 20.000] |               not run |",
        "| Kernel alone   |        9.000 [8.100, 11.250] |               not run |",
        "",
        "¹ held down  ",
        "² oom: no memory is left  ",
    ]
    derived = comparison.times(made, "bwd")
    assert derived.title == "backward, derived: ms [what both intervals allow]"
    assert text_of(derived) == [
        "| method |                  512 |",
        "| ------ | -------------------: |",
        "| Ring   | 30.00 [27.00, 37.50] |",
    ]
    rates = comparison.rates(made, "bwd")
    assert rates.title == "backward, derived: TFLOP/s per GPU [what both intervals allow]"
    assert text_of(rates)[-1] == "| Ring   | 60.00 [48.00, 66.67] |"


def test_memory(made: Group) -> None:
    table = comparison.memory(made, "fwd")
    assert table.title == "forward: peak memory above the inputs (in all), MiB on the highest rank"
    assert text_of(table) == [
        "| method         |            512 |       1024 |",
        "| -------------- | -------------: | ---------: |",
        "| BurstAttention |   64.0 (640.0) |      oom ¹ |",
        "| Ring           | 128.0 (1280.0) | 256 (2560) |",
        "| USP            |   96.0 (960.0) |    not run |",
        "| Kernel alone   |   32.0 (320.0) |    not run |",
        "",
        "¹ oom: no memory is left  ",
    ]
    assert table.last_is_apart


def test_ratios(made: Group) -> None:
    table = comparison.speedups(made, "fwd", ["te_p2p", "ring"])
    assert table is not None
    assert table.title == "forward: times as fast as Ring (whose ms stand in its row)"
    assert text_of(table) == [
        "| method         |                    512 |     1024 |",
        "| -------------- | ---------------------: | -------: |",
        "| BurstAttention | 2.000 [1.440, 2.778] ¹ |    oom ² |",
        "| Ring           |               20.00 ms | 80.00 ms |",
        "| USP            |   1.250 [0.900, 1.736] |  not run |",
        "",
        "¹ held down  ",
        "² oom: no memory is left  ",
    ]
    failed = comparison.speedups(made, "fwd", ["burst"])
    assert failed is not None
    assert text_of(failed) == [
        "| method         |                  512 |    1024 |",
        "| -------------- | -------------------: | ------: |",
        "| BurstAttention |           10.00 ms ¹ |   oom ² |",
        "| Ring           | 0.500 [0.360, 0.694] | no base |",
        "| USP            | 0.625 [0.450, 0.868] | not run |",
        "",
        "¹ held down  ",
        "² oom: no memory is left  ",
    ]
    assert comparison.speedups(made, "fwd", ["te_p2p"]) is None, "nothing to hold them against"
    alone = replace(made, lines=(made.lines[1], made.lines[3]))
    assert comparison.speedups(alone, "fwd", ["ring"]) is None, "the bound does not compete"


def test_the_bound_moves_nothing_whatever_joined_its_ranks(tmp_path: Path) -> None:
    cells = [Cell(name, 512, make_records.SMALL, "fwd", MeshShape(2, 2)) for name in ("single", "ring")]
    folder = make_records.write_campaign(tmp_path, [make_records.make(one) for one in cells])
    header, rows = facts.what_ran(collect.collect(campaign.find(str(folder))).rows)
    at = header.index("transport")
    assert {row[0]: row[at] for row in rows} == {"single": "nothing moves", "ring": "send_recv"}
