"""One cell, measured: what is known of the machine reaches the record; above a peak there is no result."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch

from make_records import make
from ringmark import methods
from ringmark.bench import worker
from ringmark.bench.measure import above_peak, flagged
from ringmark.cell import Cell, MeshShape, Shape
from ringmark.methods.base import settings_of
from ringmark.record import Status


def _passed(device: str = "AMD EPYC"):
    found = make(Cell("ring", 4096, Shape(dtype="bf16"), "fwd_bwd", MeshShape(1, 2)))
    assert found.timing is not None
    assert found.ran is not None
    return found, found.timing, dataclasses.replace(found.ran, device=device)


def test_flags_of_the_machine_mark_every_series() -> None:
    _, timing, _ = _passed()
    marked = flagged(timing, ["preflight_slow", "throttled:hw_slowdown:rank3"])
    for name, series in marked.series.items():
        assert series.flags == [*timing.series[name].flags, "preflight_slow", "throttled:hw_slowdown:rank3"]
        assert series.samples_ms == timing.series[name].samples_ms
    assert flagged(timing, []) == timing


def test_a_rate_above_the_peak_is_a_bug_of_ours() -> None:
    found, timing, ran = _passed("NVIDIA H200")
    possible = dataclasses.replace(timing, tflops_per_gpu=700.0)
    assert above_peak(possible, ran, found.cell) is None
    impossible = dataclasses.replace(timing, tflops_per_gpu=1200.0)
    assert "above the peak" in str(above_peak(impossible, ran, found.cell))
    unknown = dataclasses.replace(ran, device="a device that nobody stated a peak of")
    assert above_peak(impossible, unknown, found.cell) is None


@pytest.mark.parametrize(
    ("found", "says"),
    [
        (None, "settings() of ring gives None: return a dict of names and values"),
        (
            {"scale": torch.ones(2)},
            "settings() of ring gives a Tensor for 'scale': give texts, finite numbers",
        ),
        ({"scale": float("nan")}, "settings() of ring gives nan for 'scale': give texts, finite numbers"),
    ],
)
def test_settings_that_no_record_can_hold_are_told(found: Any, says: str) -> None:
    method = methods.load("ring")()
    method.settings = lambda: found  # type: ignore[method-assign]
    with pytest.raises(TypeError) as told:
        settings_of(method)
    assert str(told.value).startswith(says)


def test_settings_are_a_methods_own_to_keep() -> None:
    method = methods.load("ring")()
    settings_of(method).clear()
    assert settings_of(method) == method.settings() != {}


@pytest.mark.parametrize(
    "error",
    [
        torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 2 GiB"),
        MemoryError(),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 99 bytes"),
        RuntimeError("CUDA driver error: out of memory"),
        torch.distributed.DistBackendError("unhandled cuda error, Cuda failure 2 'out of memory'"),
    ],
)
def test_out_of_memory_is_known_by_whoever_ran_out(error: Exception) -> None:
    assert worker.classify(error)[0] is Status.OOM


def test_another_error_is_a_crash_and_one_that_others_caused_is_said_to_be() -> None:
    assert worker.classify(RuntimeError("CUDA driver error: invalid argument"))[::3] == (
        Status.CRASHED,
        False,
    )
    assert worker.classify(RuntimeError("Connection reset by peer"))[::3] == (Status.CRASHED, True)
