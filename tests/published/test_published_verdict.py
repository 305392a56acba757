"""Verdicts: four outcomes, ratios across hardware, tolerances as data, and a campaign's records."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
import tool_logs

import make_records
from ringmark import record, schema
from ringmark.cell import Cell, MeshShape
from ringmark.cli import main
from ringmark.errors import UserError
from ringmark.flops import attention_flops, tflops_per_gpu
from ringmark.published.claim import read_csv, to_csv
from ringmark.published.ingest import ingest_bytes
from ringmark.published.measured import Measured, fold_repeats, from_record, name_devices, read_campaign
from ringmark.published.tolerance import Tolerance, read_tolerances
from ringmark.published.verdict import Outcome, Verdict, verdicts
from ringmark.tables.campaign import Campaign
from ringmark.tables.collect import checked
from ringmark.tables.verdicts import given

COMMITTED = Path(__file__).parents[2] / "results" / "published"
TOLERANCES = read_tolerances(COMMITTED / "tolerances.yaml")
# The report says its shape in full, which the other tables' rates and times are fitted to.
LOG = (
    "## DoubleRing\n" + tool_logs.log_table() + "## USP (Head First Placement)\n"
    + tool_logs.log_table(tuple(replace(r, fwd_ms=1.25 * r.fwd_ms, fwd_bwd_ms=1.25 * r.fwd_bwd_ms)
                                for r in tool_logs.RUNS))
    + tool_logs.report()
)  # fmt: skip
CLAIMS = ingest_bytes(LOG.encode(), "log").claims


def measured(method: str, run: tool_logs.Run, phase: str, factor: float = 1.0, **other: object) -> Measured:
    """What a campaign on 4x8 H200 would hold of a published run, its time multiplied."""
    time_ms = factor * (run.fwd_ms if phase == "fwd" else run.fwd_bwd_ms)
    flops = attention_flops(
        batch=1, seqlen_global=run.seqlen_global, num_heads_q=40, head_dim=128, causal=True, phase=phase
    )
    row = Measured(
        method=method,
        seqlen_global=run.seqlen_global,
        phase=phase,
        status="passed",
        nodes=4,
        gpus_per_node=8,
        device="NVIDIA H200",
        kernel="flash2",
        time_ms=time_ms,
        tflops_per_gpu=tflops_per_gpu(flops, time_ms, 32),
        mem_peak_mib=run.memory_mb,
    )
    return replace(row, **other)


def judge(rows: list[Measured], device: str | None = "H200") -> list[Verdict]:
    return verdicts(CLAIMS, rows, TOLERANCES, device)


def one(found: list[Verdict], subject: str, kind: str = "absolute", phase: str = "fwd_bwd") -> Verdict:
    """The verdict of the shortest sequence."""
    return next(v for v in found if (v.kind, v.phase) == (kind, phase) and subject in v.subject)


RUN = tool_logs.RUNS[0]


@pytest.mark.parametrize(
    ("factor", "outcome"),
    [
        (1.0, Outcome.REPRODUCED),
        (1.09, Outcome.REPRODUCED),
        (1.2, Outcome.NOT_REPRODUCED),
        (0.8, Outcome.NOT_REPRODUCED),
    ],
)
def test_times_and_rates_within_their_tolerance(factor: float, outcome: Outcome) -> None:
    found = judge([measured("double_ring", RUN, "fwd_bwd", factor)])
    time, rate = one(found, "DoubleRing: time"), one(found, "DoubleRing: rate")
    assert (time.outcome, rate.outcome) == (outcome, outcome)
    assert (time.target, time.measured, time.unit) == (171.91, pytest.approx(171.91 * factor), "ms")
    assert time.low == pytest.approx(0.9 * 171.905)
    assert time.high == pytest.approx(1.1 * 171.915)
    assert "rate and time agree with 40 heads of 128, causal, 32 ranks" in time.reason


@pytest.mark.parametrize(
    ("change", "device", "outcome", "words"),
    [
        ({}, None, Outcome.NOT_COMPARABLE, "does not say its hardware"),
        ({}, "A800", Outcome.NOT_COMPARABLE, "other hardware: A800 there, NVIDIA H200 here"),
        ({"nodes": 1}, "H200", Outcome.NOT_COMPARABLE, "other ranks: 32 there, 1x8 here"),
        ({"seqlen_global": 65536}, "H200", Outcome.NOT_MEASURED, "no record of double_ring"),
        ({"head_dim": 64}, "H200", Outcome.NOT_MEASURED, "no record of double_ring"),
        ({"dtype": "fp16"}, "H200", Outcome.NOT_MEASURED, "no record of double_ring"),
        ({"status": "oom", "time_ms": None}, "H200", Outcome.NOT_REPRODUCED, "a number there, oom here"),
        (
            {"status": "unavailable", "time_ms": None},
            "H200",
            Outcome.NOT_MEASURED,
            "the record is unavailable",
        ),
    ],
)
def test_what_cannot_be_compared_says_why(
    change: dict, device: str | None, outcome: Outcome, words: str
) -> None:
    verdict = one(judge([measured("double_ring", RUN, "fwd_bwd", **change)], device), "DoubleRing: time")
    assert verdict.outcome is outcome
    assert words in verdict.reason


def test_a_ratio_is_compared_across_hardware_and_only_on_as_many_ranks() -> None:
    usp = {"options": {"placement": "head_first"}}
    rows = [measured("double_ring", RUN, "fwd_bwd", 0.5), measured("usp", RUN, "fwd_bwd", 0.5 * 1.25, **usp)]
    ratio = one(judge(rows, None), "DoubleRing over USP", "ratio")
    assert (ratio.outcome, ratio.unit) == (Outcome.REPRODUCED, "ratio")
    assert ratio.target == pytest.approx(1.25, rel=1e-3)
    assert ratio.measured == pytest.approx(1.25)
    assert "compared as a ratio: hardware unsaid there, 4x8 NVIDIA H200 here" in ratio.reason
    reverse = [rows[0], replace(rows[1], time_ms=0.9 * (rows[0].time_ms or 0))]
    assert one(judge(reverse, None), "DoubleRing over USP", "ratio").outcome is Outcome.NOT_REPRODUCED
    smaller = [replace(row, nodes=1) for row in rows]
    verdict = one(judge(smaller, None), "DoubleRing over USP", "ratio")
    assert (verdict.outcome, verdict.measured) == (Outcome.NOT_COMPARABLE, pytest.approx(1.25))
    other_kernel = [rows[0], replace(rows[1], kernel="cudnn")]
    assert one(judge(other_kernel, None), "DoubleRing over USP", "ratio").outcome is Outcome.NOT_MEASURED
    ring_first = [rows[0], replace(rows[1], options={"placement": "ring_first"})]
    assert one(judge(ring_first, None), "DoubleRing over USP", "ratio").outcome is Outcome.NOT_MEASURED


def test_every_result_claim_gets_one_verdict_and_ratios_keep_their_phase() -> None:
    found = judge([])
    results = [c.id for c in CLAIMS if c.kind == "result"]
    assert [v.claim for v in found if v.kind == "absolute"] == results
    ratios = [v for v in found if v.kind == "ratio"]
    assert {v.phase for v in ratios} == {"fwd", "fwd_bwd"}
    assert {v.outcome for v in ratios} == {Outcome.NOT_MEASURED}


def test_out_of_memory_there_and_here() -> None:
    claims = ingest_bytes(
        (LOG + "## Megatron CP\n" + tool_logs.sp_table(last_rate="OOM")).encode(), "log"
    ).claims
    last = tool_logs.RUNS[2]
    for status, outcome in (("oom", Outcome.REPRODUCED), ("passed", Outcome.NOT_REPRODUCED)):
        row = measured("megatron_cp", last, "fwd_bwd", status=status)
        if status != "passed":
            row = replace(row, time_ms=None, tflops_per_gpu=None, mem_peak_mib=None)
        found = verdicts(claims, [row], TOLERANCES, "H200")
        assert [v.outcome for v in found if v.target is None and "Megatron" in v.subject] == [outcome]


def test_tolerances_are_data(tmp_path: Path) -> None:
    claim = next(c for c in CLAIMS if c.metric == "time" and c.phase == "fwd_bwd")
    wide = replace(TOLERANCES, claims={claim.id: Tolerance(-0.5, 0.5)})
    rows = [measured("double_ring", RUN, "fwd_bwd", 1.4)]
    assert one(verdicts(CLAIMS, rows, wide, "H200"), "DoubleRing: time").outcome is Outcome.REPRODUCED
    path = tmp_path / "tolerances.yaml"
    path.write_text("metrics: {time: {low: 0.1, high: 0.2}}\n", encoding="utf-8")
    with pytest.raises(UserError, match="low <= 0 <= high"):
        read_tolerances(path)


def test_repeats_are_folded_to_their_median() -> None:
    rows = [measured("burst", RUN, "fwd", factor) for factor in (1.0, 3.0, 1.1)]
    failed = replace(rows[0], status="crashed", time_ms=None, device=None, kernel=None)
    folded = fold_repeats([failed, *rows])
    assert [(row.status, row.time_ms) for row in folded] == [("passed", pytest.approx(1.1 * RUN.fwd_ms))]


def test_the_rate_of_an_even_number_of_repeats_follows_from_their_time() -> None:
    rows = [measured("burst", RUN, "fwd", factor) for factor in (1.0, 3.0)]
    (folded,) = fold_repeats(rows)
    assert folded.time_ms == pytest.approx(2 * RUN.fwd_ms)
    assert folded.tflops_per_gpu == pytest.approx(rows[0].tflops_per_gpu / 2)


def test_one_wrong_repeat_makes_the_cell_wrong_and_no_other_cell() -> None:
    asked = [
        measured("burst", RUN, "fwd", kernel=kernel, kernel_asked=kernel) for kernel in ("flash2", "flash4")
    ]
    caught = replace(asked[0], status="wrong", time_ms=None, tflops_per_gpu=None, mem_peak_mib=None)
    folded = fold_repeats([*asked, caught])
    assert [(row.kernel, row.status) for row in folded] == [("flash2", "wrong"), ("flash4", "passed")]
    out = [replace(caught, status=status) for status in ("crashed", "oom", "oom")]
    assert [row.status for row in fold_repeats(out)] == ["oom"]


def out_of_memory(cell: Cell) -> record.Record:
    """A record that ended before its ranks could name their device."""
    return record.Record(
        cell=cell,
        asked=record.Asked(),
        status=record.Status.OOM,
        campaign="test",
        failure=record.Failure("out of memory in forward"),
    )


def test_records_of_a_campaign(tmp_path: Path) -> None:
    """A record that ran out of memory, as written; then the command over its campaign."""
    cell = Cell("double_ring", RUN.seqlen_global, mesh=MeshShape(4, 8))
    found = out_of_memory(cell)
    row = from_record(schema.load(record.Record, schema.dump(found), "record"))
    assert (row.method, row.status, row.reason, row.world_size) == (
        "double_ring",
        "oom",
        "out of memory in forward",
        32,
    )
    record.write(found, tmp_path / "test" / found.path)
    claims = tmp_path / "claims.csv"
    claims.write_text(to_csv(CLAIMS), encoding="utf-8")
    arguments = ["verdict", str(tmp_path / "test"), "--claims", str(claims), "--device", "H200"]
    arguments += ["--tolerances", str(COMMITTED / "tolerances.yaml"), "--out", str(tmp_path / "out")]
    assert main(arguments) == 0
    with (tmp_path / "out" / "verdicts.csv").open(encoding="utf-8", newline="") as file:
        outcomes = {row["claim"]: row["outcome"] for row in csv.DictReader(file)}
    assert outcomes["log:5:8"] == "not_comparable"  # a record without a device cannot be on the claimed one
    assert "| absolute |" in (tmp_path / "out" / "verdicts.md").read_text(encoding="utf-8")
    assert main(["verdict", str(tmp_path / "nowhere"), *arguments[2:]]) == 2


def test_a_cell_without_a_device_stands_on_its_campaigns_only_one() -> None:
    failed = measured("burst", RUN, "fwd", status="oom", time_ms=None, device=None)
    rows = [measured("double_ring", RUN, "fwd"), failed]
    assert [row.device for row in name_devices(rows)] == ["NVIDIA H200", "NVIDIA H200"]
    two = [*rows, measured("double_ring", RUN, "fwd", device="NVIDIA A800")]
    assert name_devices(two)[1].device is None


def test_the_command_and_the_page_judge_alike(tmp_path: Path) -> None:
    """A cell without a device beside one that has it: both give it the campaign's."""
    mesh = MeshShape(4, 8)
    found = [make_records.make(Cell("ring", RUN.seqlen_global, mesh=mesh), campaign="test")]
    found.append(out_of_memory(Cell("double_ring", RUN.seqlen_global, mesh=mesh)))
    folder = make_records.write_campaign(tmp_path / "results" / "test", found)
    published = tmp_path / "results" / "published"
    published.mkdir()
    (published / "claims.csv").write_text(to_csv(CLAIMS), encoding="utf-8")
    tolerances = published / "tolerances.yaml"
    tolerances.write_bytes((COMMITTED / "tolerances.yaml").read_bytes())
    view = given(checked(Campaign(folder)).rows, tmp_path / "results")
    assert view is not None
    assert view.verdicts == verdicts(CLAIMS, read_campaign(folder), read_tolerances(tolerances))
    assert one(view.verdicts, "DoubleRing: time").measured_on == "4x8 NVIDIA H200"


def test_a_campaign_is_found_as_every_other_verb_finds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cell = Cell("ring", RUN.seqlen_global, mesh=MeshShape(4, 8))
    make_records.write_campaign(tmp_path / "results" / "h200x4", [make_records.make(cell)])
    (tmp_path / "h200x4").mkdir()  # of that name, and no campaign
    (tmp_path / "claims.csv").write_text(to_csv(CLAIMS), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    published = ["--claims", "claims.csv", "--tolerances", str(COMMITTED / "tolerances.yaml")]
    assert main(["verdict", "h200x4", *published]) == 0
    assert main(["verdict", "h200x", *published]) == 2
    assert "did you mean 'h200x4'" in capsys.readouterr().err


def test_ingest_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "a.log"
    log.write_text(LOG, encoding="utf-8")
    assert main(["ingest", str(log), "--out", str(tmp_path)]) == 0
    assert tuple(read_csv(tmp_path / "claims.csv")) == ingest_bytes(LOG.encode(), "a.log").claims
    assert len(json.loads((tmp_path / "claims.json").read_text(encoding="utf-8"))["claims"]) == len(CLAIMS)
    assert main(["ingest", str(log), "--out", str(tmp_path), "--check"]) == 0
    log.write_text(LOG.replace("51.07", "51.08"), encoding="utf-8")
    assert main(["ingest", str(log), "--out", str(tmp_path), "--check"]) == 1
    log.write_text(LOG.replace("51.07", "51.0x"), encoding="utf-8")
    assert main(["ingest", str(log)]) == 2
    assert "a.log:5: FWD (ms) is '51.0x'" in capsys.readouterr().err
