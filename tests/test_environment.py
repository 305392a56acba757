"""What a record says it was measured on: complete, machine-readable, and nothing private in it."""

from __future__ import annotations

import json
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch

import ringmark
from ringmark import flags, state
from ringmark.bench import environment, memory, nvml, problem
from ringmark.cell import Cell, MeshShape, Shape
from ringmark.comm.mesh import Mesh
from ringmark.methods import load
from world import run_world

CPU = Mesh(1, 1, 0, torch.device("cpu"))


def _absent(value: Any) -> bool:
    return isinstance(value, dict) and set(value) == {"value", "reason"} and value["value"] is None


def _walk(value: Any) -> list[Any]:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else []
    return [value, *(found for one in inner for found in _walk(one))]


def test_a_host_without_gpus_says_why_each_fact_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RINGMARK_IMAGE_DIGEST", raising=False)
    found = environment.collect(CPU)
    json.dumps(found, allow_nan=False)
    node = found["nodes"][0]
    for name in ("driver", "cuda", "nccl_runtime", "topology"):
        assert _absent(node[name]) or torch.cuda.is_available(), name
    assert _absent(found["image_digest"])
    assert node["libraries"]["torch"].startswith(torch.__version__.split("+")[0])
    assert node["cpu"]
    nothings = [one for one in _walk(found) if isinstance(one, dict) and None in one.values()]
    assert nothings
    assert all(_absent(one) and one["reason"] for one in nothings)


def test_no_secret_no_path_and_no_other_variable_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    planted = {
        "NCCL_IB_HCA": "mlx5_0",
        "NCCL_TOPO_FILE": "/home/someone/topo.xml",
        "CUDA_HOME": "/opt/cuda",
        "TORCH_HUB_TOKEN": "hunter2",
        "AWS_SECRET_ACCESS_KEY": "hunter2",
        "HOME": "/home/someone",
        "OMP_NUM_THREADS": "1",
        "SLURM_JOB_ID": "4711",
        "SLURM_SUBMIT_DIR": "/home/someone/runs",
    }
    for name, value in planted.items():
        monkeypatch.setenv(name, value)
    text = json.dumps(environment.collect(CPU))
    assert "hunter2" not in text
    assert "someone" not in text
    node = environment.collect(CPU)["nodes"][0]
    assert node["variables"]["NCCL_IB_HCA"] == "mlx5_0"
    assert node["variables"]["NCCL_TOPO_FILE"] == "(path)"
    assert node["variables"]["TORCH_HUB_TOKEN"] == "(withheld)"
    assert node["variables"]["OMP_NUM_THREADS"] == "1"
    assert "HOME" not in node["variables"]
    assert node["scheduler"] == {"SLURM_JOB_ID": "4711"}


def test_the_commit_is_that_of_the_package_or_the_one_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RINGMARK_GIT_COMMIT", raising=False)
    folder = Path(ringmark.__file__).parent
    asked = subprocess.run(["git", "-C", folder, "rev-parse", "HEAD"], capture_output=True, text=True)
    found = environment.source()
    if asked.returncode == 0:
        assert found["git_commit"] == asked.stdout.strip()
        assert isinstance(found["git_dirty"], bool)
    else:
        assert _absent(found["git_commit"])
        assert _absent(found["git_dirty"])
    monkeypatch.setenv("GIT_DIR", "/elsewhere/.git")
    assert environment.source() == found, "a git that is told of another repository is asked of this folder"
    monkeypatch.setenv("RINGMARK_GIT_COMMIT", "abc123")
    assert environment.source()["git_commit"] == "abc123"
    assert _absent(environment.source()["git_dirty"])
    monkeypatch.setenv("RINGMARK_GIT_COMMIT", "abc123-dirty")
    assert (environment.source()["git_commit"], environment.source()["git_dirty"]) == ("abc123", True)
    assert environment.source()["tree"] == found["tree"], "a name that is given does not change the files"


def test_the_tree_is_what_git_calls_these_files(tmp_path: Path) -> None:
    """So a record proves its commit: `git rev-parse COMMIT:src/ringmark` says the same, or it is another."""
    for name in ("a.py", "a/one.py", "a/b/two.txt", "a-b/three", "z"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(f"this is {name}\n")
    git = ["git", "-C", str(tmp_path)]
    subprocess.run([*git, "init", "-q"], check=True)
    subprocess.run([*git, "add", "."], check=True)
    said = subprocess.run([*git, "write-tree"], capture_output=True, text=True, check=True).stdout.strip()
    (tmp_path / "a" / "__pycache__").mkdir()
    (tmp_path / "a" / "__pycache__" / "one.pyc").touch()
    assert state.tree_id(tmp_path) == said
    (tmp_path / "z").write_text("changed")
    assert state.tree_id(tmp_path) != said


def test_a_package_outside_any_checkout_has_no_commit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.delenv("RINGMARK_GIT_COMMIT", raising=False)
    monkeypatch.setattr(ringmark, "__file__", str(tmp_path / "__init__.py"))
    found = environment.source()
    assert _absent(found["git_commit"])
    # In somebody else's repository the package is not tracked: that commit says nothing about it.
    subprocess.run(["git", "init", "-q", tmp_path], check=True)
    (tmp_path / "__init__.py").touch()
    assert _absent(environment.source()["git_commit"])


class _FakeNvml(types.ModuleType):
    """A driver that answers some questions and refuses others."""

    NVML_NVLINK_MAX_LINKS = 18

    def nvmlInit(self) -> None: ...  # noqa: N802 - the library's own names

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:  # noqa: N802
        assert uuid == "GPU-42"
        return uuid

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: str) -> int:  # noqa: N802
        return 0x1 | 0x8 | 0x1000

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:  # noqa: N802
        return 700_500

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:  # noqa: N802
        return {1: 1980, 2: 3201}[kind]

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:  # noqa: N802
        raise RuntimeError("Not Supported")

    def nvmlDeviceGetNvLinkState(self, handle: str, link: int) -> int:  # noqa: N802
        if link >= 4:
            raise RuntimeError("Invalid Argument")
        return 1


def test_a_gpu_answers_question_by_question(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", _FakeNvml("pynvml"))
    properties = types.SimpleNamespace(uuid="42", name="NVIDIA H200", total_memory=1 << 37)
    properties.multi_processor_count, properties.major, properties.minor = 132, 9, 0
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    nvml.library.cache_clear()
    try:
        device = torch.device("cuda", 0)
        state = nvml.state(device)
        identity = nvml.identity(device)
    finally:
        nvml.library.cache_clear()
    assert state["clock_sm_mhz"] == 1980
    assert state["power_w"] == pytest.approx(700.5)
    assert state["throttle_reasons"] == ["gpu_idle", "hw_slowdown", "0x1000"]
    assert state["temperature_c"] == {"value": None, "reason": "RuntimeError: Not Supported"}
    assert identity["nvlinks_active"] == 4
    assert identity["compute_capability"] == "9.0"
    assert _absent(identity["vbios"])


def test_a_gpu_that_complains_flags_the_record() -> None:
    def ranks(*reasons: Any) -> dict[str, Any]:
        return {"ranks": [{"gpu": {"throttle_reasons": one}} for one in reasons]}

    quiet, absent = ["gpu_idle"], nvml.absent("no driver")
    assert flags.throttled({"before": ranks(quiet, absent), "after": ranks(quiet, absent)}) == []
    hot = {"before": ranks(quiet, quiet), "after": ranks(quiet, ["hw_thermal_slowdown", "gpu_idle"])}
    assert flags.throttled(hot) == ["throttled:hw_thermal_slowdown:rank1"]
    assert flags.throttled({}) == []
    assert flags.throttled(environment.collect(CPU)) == []


def _on_a_rank(mesh: Mesh) -> tuple[dict[str, Any], dict[str, Any], Any]:
    cell = Cell("ring", 4096, Shape(1, 4, 4, 64, "fp32", "causal"), mesh=MeshShape(2, 2))
    inputs = problem.make(cell, load("ring")(), mesh, "0", mesh.device)
    grown_mib = 64 if mesh.rank == 2 else 1
    used = memory.measure(lambda: torch.ones(grown_mib << 18).sum(), inputs, mesh)
    return environment.collect(mesh), environment.state(mesh), used


def test_every_node_of_a_world_is_there_and_the_highest_rank_counts() -> None:
    told = run_world(4, _on_a_rank, nodes=2)
    found, state, used = told[0]
    assert found["nodes"] == told[3][0]["nodes"], "the same record on every rank"
    assert [[rank["rank"] for rank in node["ranks"]] for node in found["nodes"]] == [[0, 1], [2, 3]]
    assert len(state["ranks"]) == len(found["before"]["ranks"]) == 4
    assert used == told[1][2]
    assert used.source == "resident_set"
    assert 60 < used.peak_above_inputs_mib < 90, "the one rank that needed 64 MiB"
    assert used.inputs_mib == 4.0
    assert used.peak_mib == max(used.per_rank_peak_mib)
    assert used.device_used_mib is None


def test_memory_is_sampled_where_its_mark_cannot_be_reset(monkeypatch: pytest.MonkeyPatch) -> None:
    looks, look = [], memory._status_mib
    monkeypatch.setattr(memory, "_reset_high_water", lambda: False)
    monkeypatch.setattr(memory, "_status_mib", lambda field: looks.append(look(field)) or looks[-1])
    cell = Cell("ring", 64, Shape(1, 1, 1, 8, "fp32", "causal"))
    inputs = problem.make(cell, load("ring")(), CPU, "0", CPU.device)

    def body() -> None:
        held, before = torch.ones(48 << 18), len(looks)
        while len(looks) < before + 2:  # a look that began before it was held may end after
            held.add_(1)

    assert memory.measure(body, inputs, CPU).peak_above_inputs_mib > 40
