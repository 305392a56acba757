"""Every format is read from samples and from what today's tools print; what is broken is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import tool_logs

from ringmark.errors import UserError
from ringmark.published import claim
from ringmark.published.ingest import Ingested, ingest_bytes, ingest_files

SAMPLES = Path(__file__).with_name("samples")


def read(name: str) -> Ingested:
    return ingest_files([SAMPLES / name])


def printed(found: Ingested, **where: object) -> list[str]:
    """The printed texts of the claims with these fields."""
    return [c.printed for c in found.claims if all(getattr(c, key) == value for key, value in where.items())]


def test_wrapped_rules_and_prefixes() -> None:
    found = read("double_ring_wrapped.log")
    assert printed(found) == [
        *("20.00", "70.00", "600.25", "68.72"),
        *("60.00", "210.00", "1200.50", "91.63"),
        *("nan", "OOM", "OOM", "OOM"),
    ]
    first = found.claims[0]
    assert (first.source_line, first.position, first.label, first.system) == (
        7,
        7,
        "DoubleRing",
        "double_ring",
    )
    assert (first.batch, first.seqlen_global, first.dtype, first.log_host) == (1, 65536, "bf16", "n07")
    assert first.options == {"qkv_format": "bshd", "cp": "True", "window": "None"}
    assert [c.phase for c in found.claims[:4]] == ["fwd", "fwd_bwd", None, None]
    assert (first.world_size, first.num_heads_q, first.head_dim, first.causal, first.device) == (None,) * 5
    assert [c.status for c in found.claims[8:]] == ["nan", "oom", "oom", "oom"]
    assert all(c.value is None for c in found.claims[8:])
    assert [(skip.source_line, skip.reason) for skip in found.skipped] == [(9, "no known format")]


def test_burst_block() -> None:
    found = read("burst_wrapped.log")
    assert printed(found, metric="time") == ["0.10", "0.35"]
    assert printed(found, metric="rate") == ["11.00", "11.01", "11.02"]
    shape = found.claims[0]
    assert (shape.batch, shape.seqlen_global, shape.num_heads_q, shape.head_dim) == (2, 65536, 16, 64)
    assert (shape.causal, shape.num_heads_kv, shape.dtype, shape.world_size) == (False, None, None, None)
    assert shape.options == {"double_ring": "True", "opt_bwd": "False"}
    assert (shape.row_line, shape.source_line, shape.unit, shape.decimals) == (5, 7, "s", 2)


def test_sp_table_keeps_an_oom_beside_times() -> None:
    found = read("sp_size.log")
    assert printed(found, seqlen_global=131072) == ["90.00", "315.00", "600.00", "OOM"]
    assert found.claims[0].options == {"sp_size": "16"}
    assert (found.claims[0].world_size, found.claims[0].world_known) == (None, 16)


def test_report() -> None:
    found = read("report.log")
    assert printed(found, kind="result") == ["45.50", "160.25", "75.00", "20.00", "750.00", "96.05"]
    time = next(c for c in found.claims if c.metric == "time")
    assert (time.world_size, time.num_heads_q, time.num_heads_kv, time.head_dim) == (4, 32, 8, 64)
    assert (time.causal, time.dtype, time.options["window"]) == (True, "fp16", "(-1, -1)")
    assert printed(found, metric="inter_rank") == ["0", "2"]
    assert printed(found, metric="intra_rank") == ["0", "1"]


def test_profiler_table() -> None:
    found = read("profile.log")
    assert len(found.claims) == 4 * 10 + 2 + 4
    kernel = [c for c in found.claims if c.source_line == 3]
    assert [(c.printed, c.unit) for c in kernel[5:]] == [
        ("1.500", "s"), ("75.00", "%"), ("1.500", "s"), ("15.000", "ms"), ("100", None),
    ]  # fmt: skip
    assert kernel[0].item == "void flash_fwd_kernel<Traits<128, cutlass::bfloat16_t>..."
    assert printed(found, source_line=5, metric="calls") == ["200"]
    assert printed(found, metric="self_cuda_time_total") == ["2.000"]
    assert [(c.item, c.printed, c.unit) for c in found.claims[-4:]] == [
        ("flash", "1500.0", None), ("flash", "0.75", None),
        ("SendRecv", "400.0", None), ("SendRecv", "0.2", None),
    ]  # fmt: skip


def test_pages() -> None:
    page = read("usp_page.md")
    assert printed(page, source_line=7) == ["100.000", "10.000", "120", "6.9"]
    row = [c for c in page.claims if c.source_line == 8]
    assert {c.phase for c in row} == {"fwd_bwd"}
    assert (row[0].device, row[0].world_size, row[0].head_dim, row[0].nodes) == ("A800", 4, 64, None)
    assert row[0].options == {"ring_type": "basic", "ulysses_degree": "2", "ring_degree": "2"}
    readme = read("readme.md")
    results = [c for c in readme.claims if c.kind == "result"]
    assert [(c.label, c.seqlen_global, c.printed) for c in results] == [
        ("USP", 65536, "120.10"), ("USP", 131072, "x"),
        ("BurstAttention", 65536, "125.40"), ("BurstAttention", 131072, "OOM"),
    ]  # fmt: skip
    first = results[0]
    assert (first.hidden_size, first.head_dim, first.head_dim_known) == (4096, None, 128)
    assert (first.world_size, first.nodes, first.gpus_per_node, first.causal) == (16, 2, 8, None)
    assert printed(readme, metric="version") == ["25.01-py3", "2.2"]


@pytest.mark.parametrize("name", tool_logs.ALL)
@pytest.mark.parametrize("layout", ["plain", "prefixed", "wrapped"])
def test_fresh_logs_of_todays_tools(name: str, layout: str) -> None:
    text = tool_logs.ALL[name]
    if layout != "plain":
        text = tool_logs.prefixed(text, "g43")
    if layout == "wrapped":
        text = tool_logs.wrapped(text)
    found = ingest_bytes(text.encode(), name)
    expected = {"burst": 15, "burst_six_columns": 15, "log_table": 12, "sp_table": 12, "report": 28,
                "usp_page": 28, "readme": 19}  # fmt: skip
    assert (len(found.claims), found.skipped) == (expected[name], ())


def test_todays_profiler_table() -> None:
    torch = pytest.importorskip("torch")
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        x = torch.ones(64, 64)
        for _ in range(3):
            x = torch.nn.functional.gelu(x @ x)
    averages = profile.key_averages()
    text = averages.table(sort_by="self_cpu_time_total", row_limit=-1)
    found = ingest_bytes(text.encode(), "profile")
    calls = {c.item: c.printed for c in found.claims if c.metric == "calls"}
    assert calls == {event.key: str(event.count) for event in averages}
    assert len(printed(found, metric="self_cpu_time_total")) == 1


def test_several_hosts_in_one_stream_are_read_apart() -> None:
    a = tool_logs.prefixed(tool_logs.burst(), "g1").splitlines()
    b = tool_logs.prefixed(tool_logs.sp_table(), "g2").splitlines()
    mixed = "\n".join(x for pair in zip(a, b) for x in pair) + "\n" + "\n".join(a[len(b) :]) + "\n"
    apart = [ingest_bytes("".join(f"{line}\n" for line in lines).encode(), "x") for lines in (a, b)]
    both = {(c.metric, c.phase, c.printed, c.seqlen_global) for each in apart for c in each.claims}
    assert {
        (c.metric, c.phase, c.printed, c.seqlen_global) for c in ingest_bytes(mixed.encode(), "x").claims
    } == both


BROKEN = {
    "a row that is cut": (tool_logs.log_table()[:-170] + "\n", "the row has"),
    "digits cut off": (tool_logs.log_table().replace("51.07", "51.0 "), "FWD (ms) is '51.0'"),
    "a wrong word": (tool_logs.sp_table().replace("171.91", "fast  "), "neither a number nor a status"),
    "a column nobody knows": (
        tool_logs.log_table().replace("Window ", "Windows"),
        "unknown column 'Windows'",
    ),
    "a shape of three": (tool_logs.burst().replace(f"|{131072:^16}", ""), "the shape row has 6 cells"),
    "no method above the title": (tool_logs.burst().removeprefix("burst\n"), "without the method's name"),
    "a time of another block": (
        tool_logs.burst() + tool_logs.burst().splitlines()[3] + "\n",
        "without its own",
    ),
    "two shapes, then a time": (
        "".join(
            line + "\n" for line in [*tool_logs.burst().splitlines()[:3], *tool_logs.burst().splitlines()]
        ),
        "a new Burst block begins before",
    ),
    "a report read twice": (
        tool_logs.report().replace("  - Head", "  - World Size: 4\n  - Head"),
        "appears twice",
    ),
    "a unit that changed": (tool_logs.report().replace(" ms", " us", 1), "not a number with two decimals"),
    "a Markdown row that is cut": (tool_logs.usp_page()[:-8] + "\n", "cut"),
    "not UTF-8": ("ü".encode("latin-1") + b"\n", "not UTF-8"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_logs_are_refused_by_file_and_line(name: str) -> None:
    text, sentence = BROKEN[name]
    with pytest.raises(UserError, match=r"^log\.txt:\d+: ") as caught:
        ingest_bytes(text.encode() if isinstance(text, str) else text, "log.txt")
    assert sentence in str(caught.value)


def test_a_line_without_its_end_is_not_read() -> None:
    whole = ingest_bytes(tool_logs.readme().encode(), "x")
    cut = ingest_bytes(tool_logs.readme().rstrip().encode(), "x")
    assert len(cut.claims) == len(whole.claims) - 1
    assert "ends inside this line" in cut.skipped[-1].reason


def test_csv_and_json_bring_back_equal_claims(tmp_path: Path) -> None:
    found = ingest_files(sorted(SAMPLES.iterdir()))
    path = tmp_path / "claims.csv"
    path.write_text(claim.to_csv(found.claims), encoding="utf-8")
    assert tuple(claim.read_csv(path)) == found.claims
    path.write_text(claim.to_csv(found.claims).replace("45.5,", "46.5,"), encoding="utf-8")
    with pytest.raises(UserError, match=r"is not the printed '45\.50'"):
        claim.read_csv(path)
