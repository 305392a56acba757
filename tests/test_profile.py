"""Where the time goes: kinds of work, exposed communication."""

from __future__ import annotations

import gzip
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from ringmark import kernels, methods, shares
from ringmark.bench import problem, profile, timeline
from ringmark.cell import Cell, MeshShape, Shape
from ringmark.comm.mesh import Mesh
from ringmark.schema import dump
from world import run_world

FLASH = "void flash_fwd_kernel<Flash_fwd_kernel_traits<128, 128, 64, 4, false>>"
SEND = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
ADD = "void at::native::vectorized_elementwise_kernel<4, CUDAFunctor_add<float>>"


def _event(name: str, start_us: float, end_us: float, cat: str = "kernel", tid: int = 7) -> dict[str, Any]:
    return {"ph": "X", "cat": cat, "name": name, "ts": start_us, "dur": end_us - start_us, "tid": tid}


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        (FLASH, "attention"),
        ("flash_bwd_convert_dq_kernel", "attention"),
        ("cudnn_generated_fort_native_sdpa_sm90_flash_fprop_wgmma_f16_knob_7", "attention"),
        ("void pytorch_flash::flash_bwd_dot_do_o_kernel<true>", "attention"),
        (SEND, "send_recv"),
        ("ncclDevKernel_AllGather_RING_LL", "send_recv"),
        ("Memcpy PtoP (Device -> Device)", "send_recv"),
        ("gloo:send", "send_recv"),
        (ADD, "merge"),
        ("fused_to_sub_sigmoid_sub_mul_sub", "merge"),
        ("Memcpy DtoD (Device -> Device)", "merge"),
        ("Memset (Device)", "other"),
        ("ampere_bf16_s16816gemm", "other"),
    ],
)
def test_a_kernel_is_known_by_its_name(name: str, kind: str) -> None:
    assert timeline.kind_of(name) == kind


def test_communication_counts_as_exposed_only_where_nothing_computes() -> None:
    trace = {
        "traceEvents": [
            _event(FLASH, 0, 100),
            _event(SEND, 50, 160),  # 60 of it with no compute
            _event(SEND, 150, 180, tid=8),  # overlaps the other: 20 more
            _event(ADD, 190, 200),
            _event(FLASH, 195, 250),
            {"ph": "M", "name": "process_name"},
            _event("aten::add", 0, 1000, cat="cpu_op"),  # the host does not count where there is a GPU
        ]
    }
    found = timeline.breakdown(timeline.events_of(trace))
    assert dump(found) == {
        "span_ms": 0.25,
        "attention_ms": 0.155,
        "send_recv_ms": 0.14,
        "merge_ms": 0.01,
        "other_ms": 0.0,
        "compute_busy_ms": 0.16,
        "comm_busy_ms": 0.13,
        "exposed_comm_ms": 0.08,
        "idle_ms": 0.01,
    }


def test_an_operator_on_the_host_counts_without_those_inside_it() -> None:
    trace = {
        "traceEvents": [
            _event("autograd::Function", 0, 100, cat="cpu_op"),
            _event("aten::matmul", 10, 60, cat="cpu_op"),
            _event("aten::bmm", 20, 50, cat="cpu_op"),
            _event("aten::add_", 70, 80, cat="cpu_op"),
            _event("gloo:recv", 55, 90, cat="user_annotation"),
        ]
    }
    events = timeline.events_of(trace)
    spans = sorted((e.name, e.start, e.end) for e in events if e.name == "aten::matmul")
    assert spans == [("aten::matmul", 10, 20), ("aten::matmul", 50, 60)]
    found = timeline.breakdown(events)
    assert (found.attention_ms, found.merge_ms, found.exposed_comm_ms) == (0.05, 0.01, 0.02)


def test_nothing_profiled_is_no_time_and_no_error() -> None:
    assert set(dump(timeline.breakdown([])).values()) == {0.0}
    assert timeline.top([]) == []


def test_the_parts_make_the_whole_of_an_iteration() -> None:
    """12 ms of kernels, side by side, share out the 8 in which any computes; transfers show for 1.5."""
    rank = {"span_ms": 10.0, "compute_busy_ms": 8.0, "exposed_comm_ms": 1.5, "idle_ms": 0.5}
    rank |= {"attention_ms": 9.0, "merge_ms": 2.0, "other_ms": 1.0}
    parts = shares.shares(rank)
    wanted = {"attention": 0.6, "merge": 2 / 15, "other": 1 / 15, "exposed": 0.15, "idle": 0.05}
    assert parts == pytest.approx(wanted)
    assert list(parts) == list(shares.PARTS)
    nothing = dict.fromkeys(rank, 0.0)
    assert shares.shares(nothing) == {}
    idle = shares.shares({**nothing, "span_ms": 2.0, "idle_ms": 2.0})
    assert idle == {**dict.fromkeys(shares.PARTS, 0.0), "idle": 1.0}


def test_the_top_table_adds_up() -> None:
    events = timeline.events_of(
        {"traceEvents": [_event(FLASH, 0, 3000), _event(ADD, 0, 500), _event(ADD, 600, 1100)]}
    )
    rows = timeline.top(events)
    assert [(row["name"], row["calls"], row["time_ms"], row["share"]) for row in rows] == [
        (FLASH, 1, 3.0, 0.75),
        (ADD, 2, 1.0, 0.25),
    ]
    assert len(timeline.top(events, count=1)) == 1


def _profiled(mesh: Mesh, folder: Path) -> dict[str, Any]:
    cell = Cell("burst", 512, Shape(1, 2, 2, 16, "fp32", "causal"), mesh=MeshShape(1, 2), kernel="reference")
    method, kernel = methods.load("burst")(), kernels.load("reference")
    method.setup(mesh, kernel, causal=True)
    inputs = problem.make(cell, method, mesh, "0", mesh.device)

    def body() -> None:
        inputs.clear_grads()
        torch.autograd.backward(method.forward(inputs.q, inputs.k, inputs.v), inputs.dout)

    return profile.profile(body, mesh, str(folder / "S512_fwd_bwd.r0.json"))


def test_an_iteration_is_profiled_on_every_rank_and_its_trace_kept(tmp_path: Path) -> None:
    told = run_world(2, _profiled, tmp_path)
    found = told[0]
    assert found["ranks"] == told[1]["ranks"]
    json.dumps(found, allow_nan=False)
    for rank in found["ranks"]:
        assert all(math.isfinite(value) and value >= 0 for value in rank.values())
        assert rank["attention_ms"] > 0
        assert rank["send_recv_ms"] > 0
        assert rank["exposed_comm_ms"] <= rank["comm_busy_ms"] <= rank["span_ms"] * 1.001
        busy = rank["compute_busy_ms"] + rank["exposed_comm_ms"] + rank["idle_ms"]
        assert busy == pytest.approx(rank["span_ms"], rel=1e-6)
    with gzip.open(tmp_path / found["trace"], "rt") as file:
        trace = json.load(file)
    again = timeline.breakdown(timeline.events_of(trace))
    assert dump(again) == pytest.approx(found["ranks"][0]), "the kept trace says the same"
    assert str(tmp_path) not in json.dumps(trace)
