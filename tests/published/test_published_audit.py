"""The audit finds what was put into a log, stays silent on sound ones, and its committed page is current."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from pathlib import Path

import pytest
import tool_logs

from ringmark.cli import main
from ringmark.published import claim
from ringmark.published.audit import audit, known_rules, render
from ringmark.published.finding import Certainty, Finding
from ringmark.published.ingest import ingest_bytes

COMMITTED = Path(__file__).parents[2] / "results" / "published"
SOUND = {"double_ring.log": "## DoubleRing\n" + tool_logs.log_table(), "burst.log": tool_logs.burst()}


def findings(**texts: str) -> list[Finding]:
    claims = [c for name, text in texts.items() for c in ingest_bytes(text.encode(), name).claims]
    return audit(claims)


def of(found: list[Finding], rule: str, certainty: Certainty | None = None) -> list[Finding]:
    return [f for f in found if f.rule == rule and certainty in (None, f.certainty)]


@pytest.mark.parametrize("text", [*tool_logs.ALL.values()], ids=list(tool_logs.ALL))
def test_sound_logs_give_notes_alone(text: str) -> None:
    text = text.replace("RingComm", "Ring Comm")  # a share without a profile beside it cannot be checked
    loud = [f for f in findings(log=text) if f.certainty is not Certainty.NOTE]
    assert loud == []


def test_a_rate_that_no_shape_explains() -> None:
    runs = tool_logs.RUNS
    text = tool_logs.log_table().replace(f"{runs[0].rate('fwd_bwd'):.2f}", "43.28")
    text = text.replace(f"{runs[1].rate('fwd_bwd'):.2f}", "71.98")
    found = of(findings(log=text), "rate_against_time", Certainty.CONTRADICTION)
    assert len(found) == 1
    assert found[0].where == ("log:4", "log:5", "log:6")


def test_one_rate_off_among_rows_that_agree() -> None:
    good = f"{tool_logs.RUNS[1].rate('fwd_bwd'):.2f}"
    found = of(
        findings(log=tool_logs.log_table().replace(good, "99.99")), "rate_against_time", Certainty.SUSPECT
    )
    assert [f.where for f in found] == [("log:5",)]
    assert f"99.99 printed, {float(good):.4g} from its time" in found[0].arithmetic


def test_a_head_size_that_the_rates_deny_is_fitted() -> None:
    text = tool_logs.usp_page(dim=128).replace("head_size=128", "head_size=16")
    found = of(findings(page=text), "rate_against_time", Certainty.CONTRADICTION)
    assert len(found) == 1
    assert "16 heads of 128, causal, rate per rank of 8" in found[0].arithmetic


def test_a_sum_over_devices_is_above_one_devices_peak() -> None:
    text = "(设备为 8 * 4090D)(bs=2, nheads=16, head_size=128)\n" + "\n".join(
        tool_logs.usp_page().splitlines()[1:]
    ).replace("| 45.3 |", "| 500.0 |")
    found = of(findings(page=text + "\n"), "peak")
    assert len(found) == 1
    assert "500.0 TFLOPS" in found[0].arithmetic
    assert "62.5 each" in found[0].arithmetic


def test_oom_beside_times() -> None:
    found = of(findings(log=tool_logs.sp_table(last_rate="OOM")), "status_beside_number")
    assert [(f.certainty, f.where) for f in found] == [(Certainty.CONTRADICTION, ("log:6",))]


@pytest.mark.parametrize(
    ("times", "rule", "words"),
    [
        (((20.0, 70.0), (15.0, 290.0)), "scaling", "takes less time"),
        (((20.0, 70.0), (80.0, 400.0)), "scaling", "grows faster than the work"),
        (((30.0, 290.0), (100.0, 330.0)), "backward", "gets shorter"),
        (((30.0, 290.0), (100.0, 350.0)), "backward", "more than 4.5 times forward"),
        (((30.0, 29.0), (100.0, 350.0)), "backward", "no longer than forward"),
    ],
)
def test_times_that_cannot_follow_their_length(times: tuple, rule: str, words: str) -> None:
    lengths = zip((131072, 262144), times, (1.0, 2.0))
    runs = tuple(tool_logs.Run(s, forward, both, memory) for s, (forward, both), memory in lengths)
    found = findings(log=tool_logs.log_table(runs))
    assert any(words in f.what for f in of(found, rule)), [f.what for f in found]


def test_growth_that_slows_down() -> None:
    times = ((131072, 20.0), (262144, 78.0), (524288, 156.0))
    runs = tuple(tool_logs.Run(s, t, 3.5 * t, s / 100) for s, t in times)
    found = [f for f in of(findings(log=tool_logs.log_table(runs)), "scaling") if "slows down" in f.what]
    assert [f.certainty for f in found] == [Certainty.SUSPECT, Certainty.SUSPECT]  # forward, and both


def test_one_label_with_two_values_and_one_value_under_two_labels() -> None:
    slower = tuple(
        replace(run, fwd_bwd_ms=1.3 * run.fwd_bwd_ms, fwd_ms=1.3 * run.fwd_ms) for run in tool_logs.RUNS
    )
    found = of(
        findings(
            a="## DoubleRing\n" + tool_logs.log_table(),
            b="## Double_Ring\n" + tool_logs.log_table(slower),
            c="## USP (Head First Placement)\n" + tool_logs.log_table(),
        ),
        "across_files",
    )
    assert sum("apart by 30%" in f.what for f in found) == 3
    assert sum(f.what == "the same time under DoubleRing and USP (Head First Placement)" for f in found) == 5


def test_identical_memory_of_two_systems_and_of_two_phases() -> None:
    two = (
        "## DoubleRing\n" + tool_logs.log_table() + "## USP (Ring First Placement)\n" + tool_logs.log_table()
    )
    assert "2 different systems" in of(findings(log=two), "memory")[0].what
    page = tool_logs.usp_page().replace("301.2", "200.1").replace("602.4", "400.2").replace("1204.8", "800.4")
    assert "forward alone and forward + backward" in of(findings(page=page), "memory")[0].what


def test_labels_outside_of_the_lengths_said() -> None:
    text = tool_logs.readme().replace("|  524288  |", "|  1048576 |")
    found = of(findings(page=text), "length_labels", Certainty.CONTRADICTION)
    assert len(found) == 2
    assert "524288" in found[0].arithmetic
    shifted = tool_logs.readme(("100.00", "150.00", "160.00"))
    for length in (131072, 262144, 524288):
        shifted = shifted.replace(f"|  {length}  |", f"|  {length // 4}  |")
    found = of(findings(page=shifted), "length_labels", Certainty.CONTRADICTION)
    assert "the first 3 labels times 4 make the table exactly the lengths said" in found[0].arithmetic


def test_a_series_that_fits_another_once_its_labels_are_shifted() -> None:
    rates = [f"{run.rate('fwd_bwd'):.2f}" for run in tool_logs.RUNS]
    page = tool_logs.readme((*rates[:2], rates[2])).replace("- USP", "- DoubleRing")
    for length in (131072, 262144, 524288):
        page = page.replace(f"|  {length}  |", f"|  {length // 4}  |")
    page = page.replace("|  131072  |  170.37", "|  131072  |  170.30")
    found = of(findings(page=page, log="## DoubleRing\n" + tool_logs.log_table()), "length_labels")
    assert any("labels times 4 lie on the series of log:5-7" in f.what for f in found), [
        f.what for f in found
    ]


def test_heads_that_cannot_be_shared_out_and_degrees_that_make_no_world() -> None:
    found = of(findings(page=tool_logs.usp_page(heads=15, world=16)), "runnable_shapes")
    assert {f.what.split(": ")[1] for f in found} == {
        "the heads cannot be shared out",
        "the degrees do not make the ranks",
    }


def test_shares_against_the_profiles_rows() -> None:
    profile = (Path(__file__).with_name("samples") / "profile.log").read_text(encoding="utf-8")
    report = tool_logs.report().replace("61.20 %", "75.00 %").replace("33.10 %", "20.00 %")
    assert of(findings(log=profile + report), "profile_shares") == []
    wrong = report.replace("75.00 %", "0.75 %")
    found = of(findings(log=profile + wrong), "profile_shares")
    assert [(f.certainty, f.where[1]) for f in found] == [(Certainty.CONTRADICTION, "log:3")]
    assert "a fraction under a % sign" in found[0].arithmetic


def test_a_profile_that_disagrees_with_itself() -> None:
    profile = (Path(__file__).with_name("samples") / "profile.log").read_text(encoding="utf-8")
    assert of(findings(log=profile), "profile_arithmetic") == []
    for good, bad, words in (
        ("15.000ms", "25.000ms", "average is not the total over the calls"),
        ("  75.00%", "  65.00%", "share is not the time over the total"),
        ("CUDA time total: 2.000s", "CUDA time total: 1.000s", "sum to more than its total"),
    ):
        found = of(findings(log=profile.replace(good, bad, 1)), "profile_arithmetic", Certainty.CONTRADICTION)
        assert any(words in f.what for f in found)


def test_kernels_that_betray_another_dtype() -> None:
    profile = (Path(__file__).with_name("samples") / "profile.log").read_text(encoding="utf-8")
    assert of(findings(log=profile + tool_logs.log_table()), "dtype") == []
    found = of(findings(log=profile + tool_logs.log_table().replace("bf16", "fp16")), "dtype")
    assert [f.certainty for f in found] == [Certainty.CONTRADICTION]


def test_throughput_against_latency_and_repeats() -> None:
    text = tool_logs.usp_page()
    assert of(findings(page=text), "throughput") == []
    assert len(of(findings(page=text.replace("| 320.000 |", "| 321.000 |")), "throughput")) == 1
    table = text[text.index("| ring type") :]
    assert "6 rows are printed 2 times" in of(findings(page=text + table), "repeats")[0].what
    again = table.replace("| 400.2 |", "| 400.3 |")
    found = of(findings(page=text + again), "repeats", Certainty.SUSPECT)
    assert ["one run printed with different numbers" in f.what for f in found] == [True]
    log = "`./logs/usp-2025_05_01_10_00_00.log`\n"
    twice = tool_logs.readme().replace(log, log + log)
    assert "one log is named twice" in of(findings(page=twice), "repeats")[0].what


def test_rows_faster_than_their_neighbours() -> None:
    fast = tuple(
        replace(run, fwd_ms=0.7 * run.fwd_ms, fwd_bwd_ms=0.7 * run.fwd_bwd_ms) for run in tool_logs.RUNS
    )
    text = (
        "## Megatron CP\n"
        + tool_logs.sp_table(fast)
        + "## DoubleRing\n"
        + tool_logs.log_table()
        + tool_logs.burst()
    )
    found = of(findings(log=text), "plausible")
    assert [f.what for f in found] == [
        f"Megatron CP, {phase}: clearly less time than the next system of the document"
        for phase in ("fwd", "fwd_bwd")
    ]


def test_the_committed_audit_is_current_and_stale_pages_fail(tmp_path: Path, capsys, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.chdir(COMMITTED.parents[1])
    assert main(["audit", "--check"]) == 0
    stale = tmp_path / "audit.md"
    stale.write_text("something else", encoding="utf-8")
    assert main(["audit", "--check", "--out", str(stale)]) == 1
    assert "is stale" in capsys.readouterr().err


@lru_cache(maxsize=1)
def committed_findings() -> list[Finding]:
    return audit(claim.read_csv(COMMITTED / "claims.csv"))


# What a person finds in the five documents with a pencil: (certainty, rule, a place, the arithmetic's core).
BY_HAND = [
    ("contradiction", "status_beside_number", "001_6ad8b6078955b01f.txt:7", "TFLOPs/s = OOM"),
    ("contradiction", "rate_against_time", "001_6ad8b6078955b01f.txt:5", "would give 58.38 and 224.00"),
    (
        "contradiction",
        "rate_against_time",
        "003_095922512483cfba.txt:8-25",
        "16 heads of 128, causal, rate of the whole",
    ),
    ("contradiction", "peak", "003_095922512483cfba.txt:61", "over 8 devices it is 68.7 each"),
    ("contradiction", "profile_shares", "002_24cf2d6a9b1ed1f8.txt:58", "63.51%, printed 0.03%"),
    ("contradiction", "profile_shares", "002_24cf2d6a9b1ed1f8.txt:59", "34.59%, printed 0.00%"),
    ("contradiction", "length_labels", "004_096af187c4e73423.txt:49", "the first 3 labels times 4"),
    (
        "suspect",
        "length_labels",
        "004_096af187c4e73423.txt:49-52",
        "160.25 at 131072 beside 155.09 at 524288",
    ),
    ("suspect", "across_files", "004_096af187c4e73423.txt:51", "160.25 / 106.66 = 1.502"),
    ("suspect", "across_files", "001_6ad8b6078955b01f.txt:23", "112.30 / 94.74 = 1.185"),
    ("suspect", "backward", "001_6ad8b6078955b01f.txt:5", "= 8.57"),
    ("suspect", "memory", "001_6ad8b6078955b01f.txt:47", "131072: 1241.25 MB"),
    ("suspect", "memory", "003_095922512483cfba.txt:56", "4096: 240.1 MB/device"),
    ("suspect", "scaling", "003_095922512483cfba.txt:9", "exponent -0.01"),
    ("suspect", "scaling", "001_6ad8b6078955b01f.txt:49", "exponent 2.15"),
    ("suspect", "plausible", "001_6ad8b6078955b01f.txt:6", "343.59 ms against 447.32 ms"),
    ("note", "repeats", "003_095922512483cfba.txt:50", "18 rows, 6 measurements"),
    (
        "note",
        "repeats",
        "004_096af187c4e73423.txt:25",
        "benchmark_dpa-2025_04_14_19_56_37.log is named 2 times",
    ),
    ("note", "precision", "000_70a12dcf62574dfd.txt:7", "stands for 0.045 to 0.055"),
    ("note", "profile_arithmetic", "002_24cf2d6a9b1ed1f8.txt:13", "12, 12.5, 12.5, 12.5312"),
]


@pytest.mark.parametrize(("certainty", "rule", "place", "core"), BY_HAND)
def test_findings_that_were_checked_by_hand(certainty: str, rule: str, place: str, core: str) -> None:
    found = of(committed_findings(), rule, Certainty(certainty))
    assert any(place in f.where and core in f.arithmetic for f in found), [
        (f.where, f.arithmetic) for f in found
    ]


def test_every_rule_has_a_title_and_the_page_names_every_finding() -> None:
    claims = claim.read_csv(COMMITTED / "claims.csv")
    found = audit(claims)
    page = render(found, claims)
    assert page.count("\n### ") == len(found)
    assert all(module.TITLE for module in known_rules().values())
