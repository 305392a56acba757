"""Render: a word where there is no number, bold only where intervals are clear, stale files found."""

from __future__ import annotations

import csv
import io
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import make_records
from ringmark import record, schema, yamlfile
from ringmark.cell import PHASES, Cell, MeshShape
from ringmark.cli import main
from ringmark.errors import UserError
from ringmark.flops import attention_flops, tflops_per_gpu
from ringmark.published.ingest import ingest_bytes
from ringmark.tables import (
    blocks,
    campaign,
    collect,
    comparison,
    csvtable,
    forms,
    group,
    latex,
    markdown,
    page,
    render,
    runs,
    templates,
)
from ringmark.tables.headline import headline
from ringmark.tables.numbers import decimals, fixed
from ringmark.tables.page import kind
from ringmark.tables.point import (
    APART,
    APART_FROM_COLUMN,
    CHECKED_ONCE,
    OTHER_BOUND,
    OTHER_RUNS,
    OUTRUN,
    Point,
    Span,
    backward,
    point,
)
from ringmark.tables.table import Entry, Table

ROOT = Path(__file__).parent.parent
TEMPLATES = ROOT / "paper_tables" / "templates"
MESH = MeshShape(2, 2)
PASSED = record.Status.PASSED


def cell(method: str, seqlen: int = 512, phase: str = "fwd", kernel: str = "auto") -> Cell:
    return Cell(method, seqlen, make_records.SMALL, phase, MESH, kernel)  # type: ignore[arg-type]


def groups_of(folder: Path, records: list[record.Record]) -> list[group.Group]:
    made = make_records.write_campaign(folder, records)
    return group.groups(collect.collect(campaign.find(str(made))).rows)


@pytest.fixture
def made(tmp_path):
    return make_records.write_campaign(tmp_path / "results" / "made", make_records.grid())


@pytest.fixture
def rendered(made, tmp_path):
    assert main(["render", str(made), "--out", str(tmp_path / "out")]) == 0
    return tmp_path / "out"


def cells_of(line: str) -> list[str]:
    return [text.strip() for text in line.strip().strip("|").split("|")]


def test_every_place_of_every_table_says_something(rendered):
    pages = [*rendered.glob("*.md"), *rendered.glob("made/*.md")]
    lines = [line for page in pages for line in page.read_text("utf-8").splitlines() if line.startswith("|")]
    assert len(lines) > 50
    for line in lines:
        for text in cells_of(line):
            assert text not in ("", "0", "-1", "nan", "None", "inf")
    words = {status.value for status in record.Status if status is not record.Status.PASSED}
    page = (rendered / "made.md").read_text("utf-8")
    assert all(re.search(rf"\| +{word} [¹²³⁴⁵⁶⁷]", page) for word in words)


def test_the_page_holds_the_numbers_of_the_records(rendered):
    page = (rendered / "made.md").read_text("utf-8")
    found = next(r for r in make_records.grid() if r.cell.row.startswith("usp+") and r.cell.phase == "fwd")
    summary = found.timing.headline.summary
    assert f"{summary.median:.3f} [{summary.ci_low:.3f}, {summary.ci_high:.3f}]" in page
    assert "F = 4 b S² h d" in page
    assert "isolated (a barrier before every iteration)" in page


def test_the_page_says_how_much_of_its_plan_is_missing(made, tmp_path):
    grid = {"methods": ["ring"], "seqlen_global": [512, 4096], "shapes": [schema.dump(make_records.SMALL)]}
    plan = {"campaign": "made", "mesh": {"nodes": 2, "gpus": 2}, "grids": [grid]}
    for text, told in ((json.dumps(plan), "; of 8 records that were planned 4 are missing."), ("[]", ".")):
        (made / "campaign.json").write_text(text)
        assert main(["render", str(made), "--out", str(tmp_path / "out")]) == 0
        summary = (tmp_path / "out" / "made.md").read_text().splitlines()[4]
        assert re.sub(r".* (unavailable|passed|wrong|oom|timeout|crashed|unsupported)", "", summary) == told


def test_rendering_again_changes_nothing_and_check_names_what_is_stale(made, tmp_path, capsys):
    out = tmp_path / "out"
    command = ["render", str(made), "--out", str(out)]
    assert main([*command, "--check"]) == 1
    assert not out.exists()
    assert main(command) == 0
    first = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    assert main([*command, "--check"]) == 0
    assert main(command) == 0
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == first
    target = sorted(first)[3]
    target.write_text("edited by hand\n")
    (made / "cells.csv").write_text("edited by hand\n")
    capsys.readouterr()
    assert main([*command, "--check"]) == 1
    said = capsys.readouterr().out
    assert str(target) in said
    assert "cells.csv" in said
    assert target.read_text("utf-8") == "edited by hand\n"


def test_a_table_that_no_record_makes_is_left_over(made, tmp_path, capsys):
    out = tmp_path / "out"
    command = ["render", str(made), "--out", str(out)]
    assert main(command) == 0
    (out / "made" / "plots").mkdir()
    (out / "made" / "plots" / "rate.svg").write_text("a plot is no table")
    assert main([*command, "--check"]) == 0
    old = out / "made" / "old.tex"
    old.write_text("of a group that is gone")
    capsys.readouterr()
    for status, words in ((1, [*command, "--check"]), (0, command)):
        assert main(words) == status
        assert f"left over: {old}: no record makes it, delete it" in capsys.readouterr().out
        assert old.exists()


def test_a_block_shows_the_first_campaign_that_has_records_whichever_is_rendered(tmp_path, monkeypatch):
    """And where nothing changes in a file of blocks it is not written: an edit made meanwhile stays."""
    shown, other = page.choices()["blocks"]["headline"]["campaigns"]
    for name, median_ms in ((shown, 10.0), (other, 20.0)):
        found = make_records.make(cell("ring", phase="fwd_bwd"), median_ms=median_ms, campaign=name)
        make_records.write_campaign(tmp_path / "results" / name, [found])
    readme = tmp_path / "README.md"
    readme.write_text("<!-- ringmark:begin headline -->\n<!-- ringmark:end headline -->\n")
    shutil.copytree(TEMPLATES, tmp_path / "paper_tables" / "templates")
    monkeypatch.chdir(tmp_path)
    for command in (["--all"], [other], [shown], [other]):
        assert main(["render", *command]) == 0
        assert "takes 10.06 ms" in readme.read_text("utf-8")
    renderer = render.Renderer(tmp_path, tmp_path / "paper_tables", TEMPLATES)
    renderer.campaign(campaign.find(shown))
    renderer.blocks(whole=False)
    assert readme not in renderer.files
    shutil.rmtree(tmp_path / "results" / shown)
    assert main(["render", other]) == 0
    assert "takes 20.1" in readme.read_text("utf-8")


def test_rendering_all_finds_pages_of_campaigns_that_are_gone_and_blocks_that_lost_their_place(
    made, tmp_path, capsys, monkeypatch
):
    names = page.choices()["blocks"]
    readme = "".join(f"<!-- ringmark:begin {name} -->\n<!-- ringmark:end {name} -->\n" for name in names)
    (tmp_path / "README.md").write_text(readme)
    (tmp_path / "paper_tables").mkdir()
    shutil.copytree(TEMPLATES, tmp_path / "paper_tables" / "templates")
    monkeypatch.chdir(tmp_path)
    assert main(["render", "--all"]) == 0
    assert main(["render", "--all", "--check"]) == 0
    gone = tmp_path / "paper_tables" / "gone"
    gone.mkdir()
    (gone / "rates.tex").write_text("of a campaign without records")
    gone.with_suffix(".md").write_text("its page")
    (tmp_path / "README.md").write_text("".join(readme.splitlines(keepends=True)[2:]))
    capsys.readouterr()
    assert main(["render", "--all", "--check"]) == 1
    said = capsys.readouterr().out
    for left in ("paper_tables/gone.md", "paper_tables/gone/rates.tex"):
        assert f"left over: {left}: no record makes it, delete it" in said
    assert f"missing: the block {next(iter(names))}: " in said
    assert said.count("missing: ") == 1


def test_bold_only_where_the_best_is_clear_of_every_other_and_ahead_by_the_spread_of_launches():
    def made(span: Span, run: str, lead: float = 1.01) -> Any:
        return type("P", (), {"span": span, "runs": {run}, "clear_lead": lead})()

    def best(
        first: Span, second: Span, bound: Span, more: bool = True, runs: str = "aaa", lead: float = 1.01
    ) -> int | None:
        lines = [group.Line(n, n, n, "ringmark", {}) for n in ("burst", "ring", "single")]
        points = [made(first, runs[0], lead), made(second, runs[1]), made(bound, runs[2])]
        return comparison.best_line(lines, points, lambda p: p.span, more)

    bound = Span(900, 890, 910)
    assert best(Span(100, 99, 101), Span(90, 89, 91), bound) == 0
    third = group.Line("usp", "usp", "usp", "ringmark", {})
    spans = [Span(100, 99, 101), Span(90, 89, 91), Span(99.5, 98, 100)]
    points = [made(span, "a") for span in spans]
    for more in (True, False):
        assert comparison.best_line([third] * 3, points, lambda p: p.span, more) == (None if more else 1)
    assert best(Span(100, 95, 105), Span(97, 94, 99), bound) is None
    assert best(Span(90, 89, 91), Span(100, 99, 101), bound) == 1
    close, closer = Span(102, 101.9, 102.1), Span(100.9, 100.8, 101)
    for more in (True, False):
        assert best(Span(100, 99.9, 100.1), close, bound, more) == (1 if more else 0)
        assert best(Span(100, 99.9, 100.1), closer, bound, more) is None, "another launch may turn it round"
    assert best(Span(100, 99, 101), Span(90, 89, 91), bound, runs="aba") is None, "another run may too"
    assert best(Span(100, 99, 101), Span(90, 89, 91), bound, runs="aab") == 0
    for first, second in ((100, 51), (51, 100)):  # the one of few short launches leads, or is behind
        spans = [Span(value, value - 0.1, value + 0.1) for value in (first, second)]
        for more in (True, False):
            assert best(*spans, bound, more, lead=2.0) is None
            assert best(*spans, bound, more, lead=1.9) == (0 if (first > second) == more else 1)


def test_a_short_cell_of_few_launches_has_to_be_far_ahead(tmp_path):
    """Set up anew, a cell of half a millisecond takes up to 1.8 times as long; its interval does not know."""
    leads = {}
    for name, ms, repeats in (("long", 11.0, 1), ("short", 9.0, 1), ("twice", 9.0, 2), ("thrice", 9.0, 3)):
        records = [
            make_records.make(cell("burst", phase="fwd_bwd"), median_ms=ms, repeat=repeat)
            for repeat in range(repeats)
        ]
        (found,) = groups_of(tmp_path / name, records)
        (line,) = found.lines
        (measured,) = line.points.values()
        leads[name] = (measured.time_ms.value < 10, measured.clear_lead)
    assert leads == {
        "long": (False, 1.01),
        "short": (True, 2.0),
        "twice": (True, 2.0),
        "thrice": (True, 1.01),
    }


def test_what_was_measured_in_another_run_says_so(tmp_path):
    """A column, a ratio and the headline do not hide that two of their times are of two runs."""
    runs = {"burst": "b", "ring": "a", "usp": "a", "te_p2p": "a", "single": "a"}
    records = [make_records.make(cell(m, phase="fwd_bwd"), run_id=run) for m, run in runs.items()]
    (found,) = groups_of(tmp_path / "a", records)
    for table in (comparison.rates(found, "fwd_bwd"), comparison.times(found, "fwd_bwd")):
        marked = {
            row[0].text
            for row in table.rows
            if APART_FROM_COLUMN in [table.notes[m - 1] for m in row[1].marks]
        }
        assert marked == {"BurstAttention"}
    ratios = comparison.speedups(found, "fwd_bwd", ["ring"])
    marked = {
        row[0].text
        for row in ratios.rows
        if "Ring was measured in another run" in [ratios.notes[m - 1] for m in row[1].marks]
    }
    assert marked == {"BurstAttention"}
    assert " ms, in another run)." in headline("made", [found]).sentence
    (one,) = groups_of(tmp_path / "b", [make_records.make(cell(m, phase="fwd_bwd")) for m in runs])
    assert "another run" not in str((comparison.rates(one, "fwd_bwd"), headline("made", [one])))


def test_repeats_fold_to_the_median_and_the_widest_interval_and_one_wrong_makes_wrong(tmp_path):
    times = [10.0, 12.0, 30.0]
    records = [make_records.make(cell("ring"), repeat=i, median_ms=t) for i, t in enumerate(times)]
    (line,) = groups_of(tmp_path / "a", records)[0].lines
    p = line.points[("fwd", 512)]
    assert p.time_ms.value == pytest.approx(12.0, rel=0.02)
    assert p.time_ms.low < 10.2
    assert p.time_ms.high > 29.8
    records.append(make_records.make(cell("ring"), repeat=3, status=record.Status.OOM))
    (line,) = groups_of(tmp_path / "b", records)[0].lines
    p = line.points[("fwd", 512)]
    assert p.passed
    assert "3 of 4 repeats passed" in p.notes[0]
    records.append(make_records.make(cell("ring"), repeat=4, status=record.Status.WRONG))
    (line,) = groups_of(tmp_path / "c", records)[0].lines
    assert line.points[("fwd", 512)].status == "wrong"
    assert line.points[("fwd", 512)].time_ms is None


def test_the_rate_of_repeats_is_that_of_their_time_and_repeats_apart_have_a_note(tmp_path):
    records = [make_records.make(cell("ring"), repeat=i, median_ms=t) for i, t in enumerate((10.0, 20.0))]
    (line,) = groups_of(tmp_path / "a", records)[0].lines
    p = line.points[("fwd", 512)]
    work = attention_flops(batch=1, seqlen_global=512, num_heads_q=4, head_dim=64, causal=True, phase="fwd")
    ends = [tflops_per_gpu(work, ms, 4) for ms in (p.time_ms.value, p.time_ms.high, p.time_ms.low)]
    assert [p.rate.value, p.rate.low, p.rate.high] == pytest.approx(ends)
    assert APART in p.notes
    records[1] = make_records.make(cell("ring"), repeat=1, median_ms=10.0)
    (line,) = groups_of(tmp_path / "b", records)[0].lines
    assert APART not in line.points[("fwd", 512)].notes


def test_a_cell_that_another_program_measured_says_so(tmp_path):
    def of(commit: str, found: record.Record) -> record.Record:
        source = {**found.environment["source"], "git_commit": commit * 40}
        return replace(found, environment={**found.environment, "source": source})

    made = {(m, s): make_records.make(cell(m, s)) for m in ("burst", "ring", "single") for s in (512, 1024)}
    (one,) = groups_of(tmp_path / "one", [of("a", found) for found in made.values()])
    assert "Measured by" not in kind(one)
    later = [of("b" if place == ("ring", 1024) else "a", found) for place, found in made.items()]
    (two,) = groups_of(tmp_path / "two", later)
    assert kind(two).endswith(" at commit aaaaaaaaaaaa where no note names another.")
    table = comparison.rates(two, "fwd")
    (note,) = [number for number, text in enumerate(table.notes, 1) if "at commit bbbbbbbbbbbb" in text]
    marked = {row[0].text: [note in entry.marks for entry in row[1:]] for row in table.rows}
    assert marked["Ring"] == [False, True]
    assert sum(sum(marks) for marks in marked.values()) == 1


def test_tables_say_how_many_repeats_a_cell_has(tmp_path):
    """One sentence where all have as many; else a note where there is more than one."""
    once = [make_records.make(cell(method)) for method in ("burst", "ring")]
    again = [make_records.make(cell(method), repeat=1) for method in ("burst", "ring")]
    (all_once,) = groups_of(tmp_path / "a", once)
    (all_twice,) = groups_of(tmp_path / "b", once + again)
    (some,) = groups_of(tmp_path / "c", [*once, again[0]])
    assert kind(all_once).endswith(" Every cell was tried once.")
    assert kind(all_twice).endswith(" Every cell was tried 2 times.")
    assert kind(some).endswith(" A cell without a note of its repeats was tried once.")
    for found in (all_once, all_twice):
        assert not any("repeats" in note for note in comparison.rates(found, "fwd").notes)
    for table in (comparison.rates(some, "fwd"), comparison.times(some, "fwd")):
        marked = {row[0].text: [table.notes[m - 1] for m in row[1].marks] for row in table.rows}
        assert {label: [note[:9] for note in notes] for label, notes in marked.items()} == {
            "BurstAttention": ["2 repeats"],
            "Ring": [],
        }
    assert "the fraction is the median of theirs" in comparison.rates(some, "fwd").notes[0]
    assert comparison.times(some, "fwd").notes == ("2 repeats",)


def test_backward_is_the_difference_and_its_rate_follows_the_formula(tmp_path):
    records = [
        make_records.make(cell("ring", phase="fwd"), median_ms=10.0),
        make_records.make(cell("ring", phase="fwd_bwd"), median_ms=35.0),
    ]
    (line,) = groups_of(tmp_path / "a", records)[0].lines
    fwd, both, bwd = (line.points[(phase, 512)] for phase in ("fwd", "fwd_bwd", "bwd"))
    assert bwd.time_ms.value == pytest.approx(both.time_ms.value - fwd.time_ms.value)
    assert bwd.time_ms.low == pytest.approx(both.time_ms.low - fwd.time_ms.high)
    work = attention_flops(batch=1, seqlen_global=512, num_heads_q=4, head_dim=64, causal=True, phase="bwd")
    assert bwd.rate.value == pytest.approx(tflops_per_gpu(work, bwd.time_ms.value, 4))


def test_a_backward_that_nothing_can_have_taken_is_a_word(tmp_path):
    """Above the peak of its device (989.4 TFLOP/s in bf16), or less than no time: never a number."""

    def derived(name: str, fwd_ms: float, both_ms: float, **both: str) -> Point:
        asked = [
            Cell("ring", 65536, make_records.PAPER, phase, MESH, "flash4") for phase in ("fwd", "fwd_bwd")
        ]
        records = [
            make_records.make(asked[0], median_ms=fwd_ms),
            make_records.make(asked[1], median_ms=both_ms, **both),
        ]
        (line,) = groups_of(tmp_path / name, records)[0].lines
        return line.points[("bwd", 65536)]

    likely, above = derived("likely", 20.0, 80.0), derived("above", 20.0, 40.0)
    assert likely.passed
    assert likely.notes == ()
    assert (above.status, above.time_ms, above.rate) == ("impossible", None, None)
    assert "above the peak of 989.4" in above.notes[0]
    less = derived("less", 90.0, 80.0)
    assert (less.status, less.time_ms) == ("impossible", None)
    assert "less time than the forward alone" in less.notes[0]
    assert derived("noise", 80.0, 80.0).status == "within noise"
    fwd, both = replace(likely, time_ms=Span(20.0, 19.9, 20.1)), replace(likely, time_ms=Span(48, 47.8, 48.2))
    near = backward(fwd, both)  # 982 TFLOP/s
    assert (near.status, near.rate) == ("within noise", None), "its interval would reach above the peak"
    assert derived("apart", 20.0, 80.0, run_id="run1").notes == (OTHER_RUNS,)


def test_a_backward_of_which_one_half_failed_has_the_word_of_that_half(tmp_path):
    """Not the time of the other half, and not as if it had never been run."""
    halves = {phase: cell("ring", phase=phase) for phase in ("fwd", "fwd_bwd")}
    for failed in halves:
        records = [
            make_records.make(asked, status=record.Status.OOM if phase == failed else PASSED)
            for phase, asked in halves.items()
        ]
        (line,) = groups_of(tmp_path / failed, records)[0].lines
        found = line.points[("bwd", 512)]
        assert (found.status, found.time_ms, found.rate) == ("oom", None, None)
        assert found.notes == line.points[(failed, 512)].notes != ()
    (line,) = groups_of(tmp_path / "alone", [make_records.make(halves["fwd_bwd"])])[0].lines
    assert ("bwd", 512) not in line.points


def test_closed_means_one_kernel_and_open_takes_each_methods_best(tmp_path):
    records = []
    for kernel, ms in (("flash2", 10.0), ("flash4", 6.0)):
        records.append(make_records.make(cell("ring", kernel=kernel), median_ms=ms))
        records.append(make_records.make(cell("burst", kernel=kernel), median_ms=16.0 - ms))
    found = groups_of(tmp_path / "a", records)
    assert [(g.kernel, g.closed, g.open) for g in found] == [
        ("flash2", True, False),
        ("flash4", True, False),
        ("best", False, True),
    ]
    best = {line.method: line.points[("fwd", 512)] for line in found[2].lines}
    assert best["ring"].rows[0].kernel_ran == "flash4"
    assert best["burst"].rows[0].kernel_ran == "flash2"
    assert best["ring"].told[0] == "kernel flash4"
    mixed = [
        make_records.make(cell("ring"), kernel="flash2"),
        make_records.make(cell("burst"), kernel="flash4"),
    ]
    assert not groups_of(tmp_path / "b", mixed)[0].closed


def test_an_open_table_takes_options_only_where_they_are_clearly_faster(tmp_path):
    """Of many rows that are level the fastest is the luckiest: the method as it comes stands for it."""

    def chosen(name: str, **ms: float) -> str:
        rows = {"plain": Cell("usp", 512, make_records.SMALL, "fwd", MESH, "flash2")}
        rows["other"] = replace(rows["plain"], kernel="flash4")
        rows["option"] = replace(rows["plain"], options={"ulysses": 2})
        made = [make_records.make(rows[which], median_ms=value) for which, value in ms.items()]
        (line,) = groups_of(tmp_path / name, made)[-1].lines
        return line.points[("fwd", 512)].told[0]

    assert chosen("level", plain=20.0, other=22.0, option=19.9) == "kernel flash2"
    assert chosen("clear", plain=20.0, other=22.0, option=19.7) == "kernel flash2, ulysses=2"
    assert chosen("kernels", plain=20.0, other=19.9, option=19.8) == "kernel flash4"
    assert chosen("alone", other=19.9, option=19.8) == "kernel flash4"
    # One launch of a short cell knows little of the next.
    assert chosen("short", plain=9.0, other=12.0, option=4.8) == "kernel flash2"
    assert chosen("twice", plain=9.0, other=12.0, option=4.2) == "kernel flash2, ulysses=2"


def test_an_open_table_does_not_compare_our_methods_by_their_kernels(tmp_path):
    """Run with an older kernel alone, a method would look slow beside ours that ran with the best."""
    records = [
        make_records.make(cell("burst", kernel="flash4"), median_ms=6.0),
        make_records.make(cell("burst", kernel="flash2"), median_ms=10.0),
        make_records.make(cell("usp", kernel="flash2"), median_ms=11.0),
        make_records.make(cell("usp", 1024, kernel="flash2"), median_ms=44.0),
        make_records.make(cell("zigzag", kernel="flash4"), status=record.Status.UNSUPPORTED, reason="no"),
        make_records.make(cell("zigzag", kernel="flash2"), median_ms=12.0),
        make_records.make(cell("single", kernel="flash2"), median_ms=9.0),
    ]
    opened = groups_of(tmp_path, records)[-1]
    places = {line.method: [seqlen for _, seqlen in line.points] for line in opened.lines}
    assert places == {"burst": [512], "usp": [1024], "zigzag": [512], "single": [512]}


def test_a_wrong_answer_does_not_vanish_behind_another_kernel(tmp_path):
    """Of a method that is wrong with one kernel the open table, its ratios and the headline say so."""
    records = [
        make_records.make(cell("ring", phase="fwd_bwd", kernel="flash4"), status=record.Status.WRONG),
        make_records.make(cell("ring", phase="fwd_bwd", kernel="flash2"), median_ms=20.0),
        make_records.make(cell("burst", phase="fwd_bwd", kernel="flash4"), median_ms=10.0),
        make_records.make(cell("burst", phase="fwd_bwd", kernel="flash2"), status=record.Status.OOM),
        make_records.make(cell("usp", phase="fwd_bwd", kernel="flash2"), status=record.Status.WRONG),
    ]
    opened = groups_of(tmp_path, records)[-1]
    points = {line.method: line.points[("fwd_bwd", 512)] for line in opened.lines}
    assert {name: p.status for name, p in points.items()} == {
        "ring": "wrong",
        "burst": "passed",
        "usp": "wrong",  # not tried with the best kernel of ours, and told all the same
    }
    assert points["ring"].time_ms is None
    assert points["ring"].notes[0].startswith("kernel flash4: wrong: ")
    assert points["burst"].told[:2] == ("kernel flash4", "kernel flash2: oom")
    ratios = comparison.speedups(opened, "fwd_bwd", ["ring"])
    assert [row[1].text for row in ratios.rows] == ["no base", "wrong", "wrong"]
    assert headline("made", [opened]).sentence.endswith(
        "; ringmark's own Ring with flash4 has no time there: wrong."
    )


def test_the_headline_and_the_ratios_name_the_kernels_of_both_sides(tmp_path):
    peer = make_records.make(cell("te_p2p", phase="fwd_bwd", kernel="cudnn"), median_ms=20.0)
    records = [
        replace(peer, ran=replace(peer.ran, implementation="transformer-engine", label="TE p2p")),
        make_records.make(cell("ulysses", phase="fwd_bwd", kernel="flash4"), median_ms=10.0),
    ]
    opened = groups_of(tmp_path / "one", records)[-1]
    told = headline("made", [opened]).sentence
    assert "ringmark's own ulysses with flash4 takes" in told
    assert "times as fast as TE p2p with cudnn (" in told
    assert "another commit" not in told
    assert told.endswith(" The kernels flash4 and cudnn alone were not measured at one length.")
    bounds = [
        make_records.make(cell("single", seqlen, "fwd_bwd", kernel), median_ms=ms)
        for seqlen, kernel, ms in ((512, "flash4", 8.0), (1024, "flash4", 40.0), (1024, "cudnn", 60.0))
    ]
    found = groups_of(tmp_path / "bounds", [*records, *bounds])
    told = headline("made", found).sentence
    assert told.endswith(" Of the kernels alone, flash4 is 1.50 times as fast as cudnn at 1024 tokens.")
    assert "ringmark's own implementations: ulysses. " in headline("made", found).kind
    source = {**peer.environment["source"], "git_commit": "b" * 40}
    records[0] = replace(records[0], environment={**peer.environment, "source": source})
    other = headline("made", [groups_of(tmp_path / "other", records)[-1]]).sentence
    assert " ms, by another commit of ringmark)." in other
    ratios = comparison.speedups(opened, "fwd_bwd", ["te_p2p"])
    for table in (ratios, comparison.memory(opened, "fwd_bwd")):
        marked = [[table.notes[mark - 1] for mark in row[1].marks] for row in table.rows]
        assert marked == [["kernel flash4"], ["kernel cudnn"]]


def test_the_headline_is_against_the_fastest_of_the_other_side(tmp_path):
    """Not against a base chosen beforehand, and a peer that is ahead of ours is named first."""

    def told(name: str, **ms: float | None) -> str:
        made = []
        for method, value in ms.items():
            status = record.Status.PASSED if value else record.Status.UNAVAILABLE  # it never began to run
            one = make_records.make(cell(method, phase="fwd_bwd"), median_ms=value or 1.0, status=status)
            peer = method.startswith(("te_", "torch"))
            who = "elsewhere" if peer else "ringmark"
            made.append(replace(one, ran=replace(one.ran, implementation=who) if value else None))
        return headline("made", groups_of(tmp_path / name, made)).sentence

    ahead = told("ahead", burst=10.0, ring=11.0, te_p2p=20.0, te_a2a=15.0, torch_cp=None)
    assert "ringmark's own BurstAttention" in ahead
    assert ", 1.50 times as fast as te_a2a " in ahead
    assert ", 1.25 times as fast as ringmark's own Ring " in told("behind", ring=10.0, burst=12.0, te_p2p=8.0)
    assert told("alone", ring=10.0, burst=8.0).endswith(
        ", 1.25 times as fast as ringmark's own Ring with reference (10.06 ms)."
    )
    assert told("none", burst=10.0, torch_cp=None).endswith("; torch_cp has no time there: unavailable.")


def test_rows_are_called_what_their_method_calls_itself_and_stand_in_one_order(tmp_path):
    """Ours, then each peer's, the bound last; what never began to run has its name alone."""
    passed = [
        make_records.make(cell("single")),
        make_records.make(replace(cell("burst"), options={"side": "kv"})),
        make_records.make(cell("te_p2p")),
    ]
    failed = [
        make_records.make(cell(method), status=record.Status.UNAVAILABLE) for method in ("zigzag", "te_a2a")
    ]
    failed = [replace(one, ran=None) for one in failed]
    (found,) = groups_of(tmp_path / "one", [*passed, *failed])
    assert [(line.label, line.is_ours) for line in found.lines] == [
        ("BurstAttention (side=kv)", True),
        ("zigzag", True),
        ("te_p2p", False),
        ("te_a2a", False),
        ("One GPU alone", False),
    ]
    wide = replace(make_records.SMALL, num_heads_q=8, num_heads_kv=8)
    large = replace(cell("ring"), mesh=MeshShape(1, 8))
    cells = [large, replace(cell("ring"), shape=wide), cell("ring")]
    order = groups_of(tmp_path / "two", [make_records.make(one) for one in cells])
    assert [(group.mesh, group.sample.num_heads_q) for group in order] == [("2x2", 4), ("2x2", 8), ("1x8", 4)]


def test_a_headline_is_of_a_length_at_which_something_passed_and_of_both_passes(tmp_path):
    def told(name: str, *passed: int) -> str | None:
        made = [
            make_records.make(cell(method, n, "fwd_bwd"), status=PASSED if n in passed else record.Status.OOM)
            for method in ("burst", "ring")
            for n in (512, 1024)
        ]
        return headline("made", groups_of(tmp_path / name, made)).sentence

    assert told("both", 512, 1024).startswith("At 1024 tokens ringmark's own BurstAttention with ")
    assert told("short", 512).startswith("At 512 tokens ")
    assert told("none") == "No method passed here."
    forward = groups_of(tmp_path / "forward", [make_records.make(cell("burst"))])
    assert headline("made", forward) is None


def test_a_peer_with_another_version_of_the_kernel_has_a_note(tmp_path):
    """Compared by number: our patch is no other version, and the head of the table names it."""

    def made(method: str, version: str, who: str = "ringmark") -> record.Record:
        found = make_records.make(cell(method, kernel="flash2"))
        return replace(found, ran=replace(found.ran, kernel_version=version, implementation=who))

    records = [
        made("single", "flash-attn 2.8.3"),
        made("burst", "flash-attn 2.8.3 + opt_bwd"),
        made("te_p2p", "flash-attn 2.8.3", "transformer-engine"),
        made("yunchang_usp", "flash-attn 2.5.0", "yunchang"),
    ]
    (found,) = groups_of(tmp_path, records)
    notes = {line.method: line.points[("fwd", 512)].notes for line in found.lines}
    assert notes.pop("yunchang_usp") == ("its flash2 is flash-attn 2.5.0, that of ringmark's rows 2.8.3",)
    assert set(notes.values()) == {()}


def test_flags_and_small_samples_become_notes(tmp_path):
    found = make_records.make(cell("ring"), iterations=4)
    rows = collect.collect(campaign.find(str(make_records.write_campaign(tmp_path / "a", [found])))).rows
    rows[0].flags = '["clock_disagreement"]'
    assert point(rows).notes[0] == "clock_disagreement"
    assert any("interval covers" in note for note in point(rows).notes)
    rows[0].flags = '["throttled:sw_power_cap:rank0", "throttled:sw_power_cap:rank3"]'
    notes = [note for note in point(rows).notes if "sw_power_cap" in note]
    assert notes == ["some GPU's clocks were held down (sw_power_cap)"], "one note, whatever the ranks"


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("stopped_by", "time_limit", "stopped by the time limit"),
        ("checks", 1, CHECKED_ONCE),
        ("bound_from", "campaign", OTHER_BOUND),
        ("bound_from", "run, kernel auto", "the bound was asked for as kernel auto"),
        ("fraction_of_bound", 1.02, OUTRUN),
        ("ci_level", 0.94, "the interval covers 0.94, not 0.95"),
    ],
)
def test_what_a_reader_must_know_of_one_row_is_a_note(tmp_path, name, value, says):
    folder = make_records.write_campaign(tmp_path, [make_records.make(cell("ring"))])
    rows = collect.collect(campaign.find(str(folder))).rows
    assert point(rows).notes == ()
    setattr(rows[0], name, value)
    (note,) = point(rows).notes
    assert says in note


def test_the_memory_of_repeats_is_the_most_that_one_of_them_took(tmp_path):
    found = [make_records.make(cell("ring"), repeat=number) for number in range(2)]
    rows = collect.collect(campaign.find(str(make_records.write_campaign(tmp_path, found)))).rows
    for row, mib in zip(rows, (100.0, 150.0)):
        row.memory_above_inputs_mib, row.memory_peak_mib = mib, 10 * mib
    for order in (rows, rows[::-1]):
        assert (point(order).memory_above_inputs_mib, point(order).memory_peak_mib) == (150.0, 1500.0)
    rows[0].memory_above_inputs_mib = rows[1].memory_above_inputs_mib = None
    assert point(rows).memory_above_inputs_mib is None


def test_a_row_faster_than_its_bound_says_so(tmp_path):
    """Small calls of a kernel may outrun a large one: the table must not look as if nobody had noticed."""
    records = [
        make_records.make(cell(method, seqlen, "fwd_bwd"), median_ms=ms)
        for seqlen, times in ((512, (10.0, 9.0)), (1024, (10.0, 9.99)))
        for method, ms in zip(("single", "burst"), times)
    ]
    (found,) = groups_of(tmp_path, records)
    notes = {
        seqlen: p.notes for line in found.lines if not line.is_bound for (_, seqlen), p in line.points.items()
    }
    assert OUTRUN in notes[512]
    assert OUTRUN not in notes[1024]
    told = [headline("made", [found]).sentence]
    (only,) = groups_of(tmp_path / "b", records[:2])
    told.append(headline("made", [only]).sentence)
    assert [" of the kernel alone in larger calls" in sentence for sentence in told] == [False, True]


def test_a_method_that_was_not_run_in_a_phase_has_no_row_there(tmp_path):
    records = [
        make_records.make(cell(method, seqlen)) for method in ("single", "ring") for seqlen in (512, 1024)
    ]
    records.append(make_records.make(cell("burst", 512, "fwd_bwd")))
    records.append(make_records.make(cell("burst", 1024), status=record.Status.OOM))
    (found,) = groups_of(tmp_path, records)
    forward = comparison.rates(found, "fwd")
    assert [row[0].text for row in forward.rows] == ["BurstAttention", "Ring", "One GPU alone"]
    assert [entry.text for entry in forward.rows[0][1:]] == ["not run", "oom"]
    for table in (comparison.times(found, "fwd_bwd"), comparison.memory(found, "fwd_bwd")):
        assert [row[0].text for row in table.rows] == ["BurstAttention"]
        assert not table.last_is_apart


def test_speedups_print_their_absolute_base(rendered):
    page = (rendered / "made.md").read_text("utf-8")
    part = page.split("times as fast as Ring")[1].split("###")[0]
    base = next(line for line in part.splitlines() if line.startswith("| Ring"))
    assert all(text.endswith(" ms") for text in cells_of(base)[1:])


@pytest.mark.parametrize("values", [[53.1, 612.34], [0.0041, 0.02], [1.0], [12345.6]])
def test_a_column_has_one_number_of_decimals_and_enough_digits(values):
    places = decimals(values)
    for value in values:
        assert float(fixed(value, places)) == pytest.approx(value, rel=5e-4)


def test_a_blank_entry_cannot_be_made():
    with pytest.raises(ValueError, match="never blank"):
        Entry("  ")


def test_hostile_text_stays_inside_its_cell():
    bad = Table("t", "title", ("method", "512"), ((Entry("a|b\n<x>"), Entry("1.5", is_number=True)),))
    lines = markdown.table_text(bad).splitlines()
    assert len(lines) == 3
    assert "a\\|b &lt;x>" in lines[2]
    assert latex.escape("a_b & 50% {x} \\y") == r"a\_b \& 50\% \{x\} \textbackslash{}y"
    rows = list(csv.reader(io.StringIO(csvtable.table_text(bad))))
    assert rows[1] == ["a|b\n<x>", "1.5"]


def test_templates_hold_no_arithmetic_and_names_must_be_known():
    code = re.compile(r"{{.*?}}|{%.*?%}", re.DOTALL)
    arithmetic = re.compile(r"[*/%+]|-|\|\s*(sum|round|abs|int|float)\b|range\(")
    assert arithmetic.search("a - b")
    assert arithmetic.search("x | round")
    checked = 0
    for path in TEMPLATES.rglob("*.j2"):
        for found in code.findall(path.read_text("utf-8")):
            inside = re.sub(r"\"[^\"]*\"", '""', found[2:-2].strip("-% "))
            assert not arithmetic.search(inside), f"{path.name}: {found}"
            checked += 1
    assert checked > 30
    environment = templates.load(TEMPLATES)
    with pytest.raises(UserError, match="has no attribute"):
        templates.fill(environment, "campaign.md.j2", page=object())


def test_templates_are_sandboxed(tmp_path):
    (tmp_path / "bad.j2").write_text("{{ ''.__class__.__mro__ }}")
    with pytest.raises(UserError, match="unsafe"):
        templates.fill(templates.load(tmp_path), "bad.j2")


@pytest.mark.parametrize("mistake", ["{{ 1 / 0 }}", "{{ page.title(3) }}", "{{ page.x + 1 }}", "{% if %}"])
def test_a_mistake_in_a_template_is_told_in_a_sentence(mistake, tmp_path):
    (tmp_path / "bad.j2").write_text(mistake)
    with pytest.raises(UserError, match=r"template bad.j2: .*; correct the template"):
        templates.fill(templates.load(tmp_path), "bad.j2", page={"title": "a", "x": "b"})


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("tables", "a: [1", "is no valid YAML"),
        ("tables", "speedup_bases: [te_pp]\nblocks: {}", "no method 'te_pp'; did you mean 'te_p2p'"),
        ("tables", "speedup_bases: [ring]\nblcks: {}", "did you mean 'blocks'"),
        ("tables", "speedup_bases: [ring]\nblocks: {a: {kind: b}}", "lacks the key 'campaigns'"),
        ("forms", "forms: {a: {title: b, colums: []}}", "did you mean 'columns'"),
    ],
)
def test_a_mistake_in_the_tables_choices_is_told_in_a_sentence(name, text, says, monkeypatch):
    monkeypatch.setattr(yamlfile, "packaged", lambda asked: yamlfile.parse(text, asked))
    forms.forms.cache_clear()
    with pytest.raises(UserError, match=says) as caught:
        page.choices() if name == "tables" else forms.forms()
    assert f"data/{name}.yaml" in str(caught.value)


def test_forms_made_from_records_are_read_back_as_the_same_numbers(tmp_path):
    mesh, options = MeshShape(4, 8), {"placement": "head_first", "ulysses": 8}
    cells = [
        Cell(method, seqlen, make_records.PAPER, phase, mesh, "flash2", options if method == "usp" else {})
        for method in ("burst", "usp")
        for seqlen in (131072, 1048576)
        for phase in PHASES
    ]
    oom = ("usp", 1048576)
    records = [
        make_records.make(
            c,
            status=record.Status.OOM if (c.method, c.seqlen_global) == oom else PASSED,
            profile=True,
            median_ms=1234.5 if c.phase == "fwd" else 4321.0,
        )
        for c in cells
    ]
    folder = make_records.write_campaign(tmp_path / "c", records)
    assert main(["render", str(folder), "--out", str(tmp_path / "out")]) == 0
    text = (tmp_path / "out" / "c" / "forms.md").read_text("utf-8")
    claims = ingest_bytes(text.encode(), "forms.md").claims
    for found in records:
        here = {c.printed for c in claims if c.seqlen_global == found.cell.seqlen_global}
        if found.timing:
            assert f"{found.timing.headline.summary.median:.2f}" in here
    assert {"burst_block", "markdown_table", "log_table", "report"} <= {c.format for c in claims}
    # The published log's own shares were wrong a hundredfold; ours are percent of all kernel time.
    assert {c.printed for c in claims if c.column == "FlashAttention Kernel"} == {"58.33"}
    degrees = [c for c in claims if "ring_type" in c.options]
    assert {(c.options["ulysses_degree"], c.options["ring_degree"]) for c in degrees} == {("8", "4")}
    assert any(c.status == "oom" for c in claims)


def test_a_ring_of_one_has_no_type(tmp_path):
    """Teams of all ranks hold the sequence contiguously, which is no basic ring."""
    found = make_records.make(cell("usp"), settings={"ulysses_degree": 4})
    found = replace(found, ran=replace(found.ran, layout="contiguous"))
    (only,) = groups_of(tmp_path, [found])
    (run,) = runs.runs(only, only.lines[0], "degrees")
    assert (run["ring_type"], run["ulysses_degree"], run["ring_degree"]) == ("none", "4", "1")


def test_blocks_are_filled_and_unknown_ones_named(tmp_path):
    page = tmp_path / "README.md"
    text = "a\n<!-- ringmark:begin headline -->\nold\n<!-- ringmark:end headline -->\nb\n"
    new = blocks.filled(text, lambda name: "new", page)
    assert new == text.replace("old", "new")
    assert blocks.filled(new, lambda name: "new", page) == new
    with pytest.raises(UserError, match="begin and 0 end"):
        blocks.filled("<!-- ringmark:begin headline -->\n", lambda name: "", page)
    with pytest.raises(UserError, match="0 blocks begin and 1 end"):
        blocks.filled("old\n<!-- ringmark:end headline -->\n", lambda name: "", page)
    with pytest.raises(UserError, match="1 blocks begin and 1 end, 0 of them whole"):
        blocks.filled("<!-- ringmark:begin a -->\n<!-- ringmark:end b -->\n", lambda name: "", page)
    with pytest.raises(UserError, match="did you mean 'headline'"):
        blocks.source("headlines", page)


def test_committed_tables_of_the_claims_are_fresh(capsys):
    claims = ROOT / "results" / "published" / "claims.csv"
    from ringmark.tables.render import Renderer, stale

    renderer = Renderer(ROOT, ROOT / "paper_tables", TEMPLATES)
    renderer.published(claims)
    assert len(renderer.files) > 20
    assert [str(path) for path in stale(renderer.files)] == []


def test_figures_for_prose_exist_for_every_cell_and_hold_words_where_there_is_no_number(rendered):
    text = (rendered / "made" / "numbers.tex").read_text("utf-8")
    for found in make_records.grid():
        assert f"ringmark@{found.cell.key}@tflops}}" in text
    assert re.search(r"zigzag/[^}]*@ms\}\{timeout\}", text)
    assert re.search(r"zigzag/[^}]*@notes\}\{timeout: \w", text)
    assert re.search(r"burst/[^}]*@notes\}\{none\}", text)
