"""Plots: the same points give the same bytes, what did not pass is a cross, and nothing is drawn as zero."""

from __future__ import annotations

import pytest

import make_records

pytest.importorskip("matplotlib")

from ringmark import record
from ringmark.cell import Cell, MeshShape
from ringmark.cli import main
from ringmark.tables import campaign, collect, group, plot
from ringmark.tables.style import looks


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return make_records.write_campaign(tmp_path_factory.mktemp("c") / "made", make_records.grid())


@pytest.fixture(scope="module")
def found(folder):
    return group.groups(collect.collect(campaign.find(str(folder))).rows)


def test_every_kind_of_plot_is_made_and_the_bytes_are_the_same_again(found):
    first, again = dict(plot.pictures(found)), dict(plot.pictures(found))
    stems = {name.rsplit("-", 1)[-1] for name in first}
    assert {"rate", "memory", "goes"} <= stems
    name = next(name for name in first if name.endswith("fwd-bwd-rate"))
    for kind in plot.FORMATS:
        data = plot.save(first[name], kind)
        assert data == plot.save(again[name], kind)
        assert data[:5] in (b"<?xml", b"%PDF-", b"\x89PNG\r")


def test_svg_text_stays_text_and_names_every_method_and_status(found):
    pictures = dict(plot.pictures(found))
    svg = plot.save(pictures[next(n for n in pictures if n.endswith("-fwd-rate"))], "svg").decode()
    for word in ("BurstAttention", "One GPU alone", "oom", "timeout", "unsupported", "TFLOP/s per GPU"):
        assert word in svg
    assert "2026" not in svg


def test_points_drawn_are_the_points_of_the_tables(found):
    (only,) = found
    figure = plot.rate_figure(only, "fwd")
    drawn = [tuple(y) for line in figure.axes[0].get_lines() if len(y := line.get_ydata()) == 3]
    line = next(line for line in only.lines if line.method == "ring")
    assert tuple(line.points[("fwd", s)].rate.value for s in (512, 1024, 2048)) in drawn
    assert all(value > 0 for ys in drawn for value in ys)


def test_the_lines_of_an_open_plot_name_their_kernels(tmp_path):
    kernels = (("te_p2p", "flash2"), ("burst", "flash4"), ("single", "flash4"))
    cells = [Cell(m, 512, make_records.SMALL, "fwd", MeshShape(1, 2), kernel) for m, kernel in kernels]
    made = make_records.write_campaign(tmp_path / "made", [make_records.make(cell) for cell in cells])
    *_, opened = group.groups(collect.collect(campaign.find(str(made))).rows)
    (legend,) = plot.rate_figure(opened, "fwd").legends
    told = {text.get_text() for text in legend.get_texts()}
    assert told == {"te_p2p: flash2", "BurstAttention: flash4", "One GPU alone: flash4"}


def test_a_problem_on_two_meshes_has_a_scaling_plot(tmp_path):
    records = [
        make_records.make(Cell(method, 512, make_records.SMALL, "fwd", MeshShape(1, size)))
        for method in ("ring", "single")
        for size in (2, 4)
    ]
    made = make_records.write_campaign(tmp_path / "c", records)
    names = [n for n, _ in plot.pictures(group.groups(collect.collect(campaign.find(str(made))).rows))]
    assert any(name.endswith("scaling") for name in names)


def test_looks_differ_without_colour():
    styles = looks([f"m{i}" for i in range(11)])
    assert len({(look.marker, str(look.dashes)) for look in styles.values()}) == 11


def test_the_command_writes_what_was_asked_for(folder, tmp_path, capsys):
    assert main(["plot", str(folder), "--out", str(tmp_path), "--format", "svg"]) == 0
    files = list((tmp_path / "made" / "plots").iterdir())
    assert files
    assert {path.suffix for path in files} == {".svg"}


@pytest.mark.filterwarnings("error")
def test_a_campaign_in_which_nothing_passed_has_no_plots(tmp_path, capsys):
    crashed = [
        make_records.make(
            Cell(method, 512, make_records.SMALL, "fwd", MeshShape(1, size)), status=record.Status.CRASHED
        )
        for method in ("ring", "single")
        for size in (2, 4)
    ]
    made = make_records.write_campaign(tmp_path / "c", crashed)
    assert main(["plot", str(made), "--out", str(tmp_path / "out")]) == 1
    assert "nothing to draw" in capsys.readouterr().out
    assert not (tmp_path / "out").exists()
