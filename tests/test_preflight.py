"""The preflight: every rank and link measured, the slow one named in one sentence, or allowed and marked."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

from ringmark import flops
from ringmark.bench import preflight
from ringmark.comm.mesh import Mesh
from ringmark.errors import UserError
from world import run_world

CUDA = preflight.rules()["cuda"]


def _ranks(**changed: Any) -> list[dict[str, Any]]:
    """Eight healthy H200s on two nodes; rank 5 differs as told."""
    healthy = {"matmul_tflops": 700.0, "copy_gb_per_s": 4000.0, "intra_gb_per_s": 380.0}
    made = []
    for rank in range(8):
        who = {"rank": rank, "host": f"n{rank // 4}", "device": "NVIDIA H200", "gpu_uuid": f"GPU-{rank}"}
        made.append({**who, **healthy, "inter_gb_per_s": 48.0, **(changed if rank == 5 else {})})
    return made


def test_healthy_ranks_are_ready() -> None:
    assert preflight.judge(_ranks(), 4, CUDA) == []
    sentence = preflight.verdict(_ranks(), [])
    assert sentence.startswith("ready: 8 ranks, the slowest of them: matmul tflops 700")


@pytest.mark.parametrize(
    ("figure", "slow", "words"),
    [
        ("matmul_tflops", 600.0, "multiplies at 600 TFLOP/s, less than 0.9 of the median 700"),
        ("copy_gb_per_s", 3000.0, "copies at 3000 GB/s, less than 0.9 of the median 4000"),
        ("intra_gb_per_s", 200.0, "sends inside its node at 200 GB/s, less than 0.8 of the median 380"),
        ("inter_gb_per_s", 24.0, "sends between nodes at 24 GB/s, less than 0.7 of the median 48"),
    ],
)
def test_one_slow_rank_or_link_is_named(figure: str, slow: float, words: str) -> None:
    complaints = preflight.judge(_ranks(**{figure: slow}), 4, CUDA)
    assert complaints == [f"rank 5 (node 1, n1, GPU-5) {words}"]
    assert preflight.verdict(_ranks(), complaints) == f"not ready: {complaints[0]}"
    assert preflight.slowest(_ranks(**{figure: slow}))[figure] == slow


def test_all_slow_alike_is_held_against_what_the_maker_states() -> None:
    ranks = [{**rank, "matmul_tflops": 400.0, "intra_gb_per_s": 25.0} for rank in _ranks()]
    complaints = preflight.judge(ranks, 4, CUDA)
    assert len(complaints) == 16
    assert "less than 0.5 of the 989.4 that its maker states" in complaints[0]
    assert "less than 0.4 of the 450 that its maker states" in complaints[8]
    assert preflight.verdict(ranks, complaints).endswith("and 15 more")
    unknown = [{**rank, "device": "Some Other GPU"} for rank in ranks]
    assert preflight.judge(unknown, 4, CUDA) == [], "nothing is stated of it, so nothing is held against it"


@pytest.mark.parametrize(
    ("device", "figures"),
    [
        ("NVIDIA A100-PCIE-40GB", {"matmul_tflops": 250.0, "intra_gb_per_s": 24.0}),
        ("NVIDIA H100 PCIe", {"matmul_tflops": 450.0, "intra_gb_per_s": 40.0}),
        ("NVIDIA A100-SXM4-80GB MIG 1g.10gb", {"matmul_tflops": 33.0, "intra_gb_per_s": 9.0}),
        ("NVIDIA RTX A1000", {"matmul_tflops": 20.0, "intra_gb_per_s": 9.0}),
    ],
)
def test_a_healthy_card_or_slice_is_not_held_against_another_boards_figures(
    device: str, figures: dict[str, float]
) -> None:
    assert preflight.judge([{**rank, "device": device, **figures} for rank in _ranks()], 4, CUDA) == []


def test_a_link_that_is_not_there_is_no_slow_link() -> None:
    ranks = [{**rank, "inter_gb_per_s": None} for rank in _ranks()]
    assert preflight.judge(ranks, 8, CUDA) == []
    assert "inter_gb_per_s" not in preflight.slowest(ranks)


def test_thresholds_and_peaks_are_data() -> None:
    rules = preflight.rules()
    for kind in ("cuda", "cpu"):
        assert set(rules[kind]["of_median"]) == set(preflight.FIGURES)
        assert all(0 < share < 1 for share in rules[kind]["of_median"].values())
    assert flops.nvlink_gb_per_s("NVIDIA H200") == 450
    assert flops.nvlink_gb_per_s("Some CPU") is None


CALLS = itertools.count()


def _alike(body: Callable[[], object], mesh: Mesh, iterations: int) -> list[float]:
    """What is measured is done, and takes as long on every rank, whatever else the machine does; a thousandth
    longer each time, so that what is measured again is not what was measured."""
    body()
    return [1.0 + next(CALLS) / 1e3] * iterations


@mock.patch.object(preflight.timer, "own_times_ms", _alike)
def _measured(mesh: Mesh, folder: Path) -> dict[str, Any]:
    path = folder / "preflight.json"
    told: dict[str, Any] = {"first": preflight.once(mesh, path)}
    written = path.read_text()
    told["again"] = preflight.once(mesh, path)
    told["kept"] = path.read_text() == written
    found = json.loads(written)
    preflight.gather.barrier(mesh)  # every rank has looked before the file changes
    if mesh.rank == 0:
        path.write_text(json.dumps({**found, "complaints": ["rank 1 multiplies slowly", "and copies so"]}))
    preflight.gather.barrier(mesh)
    try:
        preflight.once(mesh, path)
    except UserError as error:
        told["stopped"] = str(error)
    told["allowed"] = preflight.once(mesh, path, allow_slow=True)
    return {**told, "found": found}


def test_a_campaign_is_measured_once_and_stopped_or_marked(tmp_path: Path) -> None:
    told = run_world(4, _measured, tmp_path, nodes=2)
    for rank in told:
        assert rank["first"] == rank["again"] == []
        assert rank["kept"], "a second world reads what the first one measured"
        assert rank["stopped"].startswith("preflight: rank 1 multiplies slowly; take it out, or allow it")
        assert rank["allowed"] == ["preflight_slow"]
    found = told[0]["found"]
    assert found["verdict"].startswith("ready: 4 ranks")
    assert [rank["rank"] for rank in found["ranks"]] == [0, 1, 2, 3]
    assert set(found["slowest"]) == set(preflight.FIGURES)
    assert all(rank[name] > 0 for rank in found["ranks"] for name in preflight.FIGURES)


@pytest.mark.parametrize(
    "other",
    [{"mesh": "1x2"}, {"backend": "nccl"}, {"ranks": [{"device": "NVIDIA H200"}]}],
)
def test_the_preflight_of_another_world_is_measured_again(other: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "preflight.json"
    mesh = Mesh(1, 1, 0, torch.device("cpu"))
    preflight.once(mesh, path)
    own = json.loads(path.read_text())
    path.write_text(json.dumps({**own, **other, "complaints": ["rank 1 is slow"]}))
    assert preflight.once(mesh, path) == []
    again = json.loads(path.read_text())
    assert [again[key] for key in ("mesh", "backend")] == ["1x1", own["backend"]]
    assert [rank["device"] for rank in again["ranks"]] == [own["ranks"][0]["device"]]


def _one_node(mesh: Mesh) -> dict[str, Any]:
    return preflight.measure(mesh)


def test_one_node_has_no_links_between_nodes() -> None:
    found = run_world(2, _one_node)[0]
    assert "inter_gb_per_s" not in found["slowest"]
    assert {rank["inter_gb_per_s"] for rank in found["ranks"]} == {None}
    assert found["mesh"] == "1x2"
