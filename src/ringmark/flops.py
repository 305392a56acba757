"""The one FLOPs formula, and the hardware's peaks as data.

Attention's two matrix products cost 4 b S^2 h d floating-point operations forward, half of that under a
causal mask; backward has five products to forward's two, so 2.5 times as many. Nothing else is counted:
recomputation, softmax and merging are a method's own business. A rate is these over time and world size.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import Any

from ringmark import yamlfile
from ringmark.cell import Cell

FACTOR = {"fwd": 1.0, "bwd": 2.5, "fwd_bwd": 3.5}
FORMULA = "F = 4 b S² h d, halved when causal; backward 2.5 F, forward + backward 3.5 F; per GPU: F / N"


def attention_flops(
    *, batch: int, seqlen_global: int, num_heads_q: int, head_dim: int, causal: bool, phase: str
) -> float:
    """Floating-point operations of one iteration, over all ranks."""
    forward = 4.0 * batch * float(seqlen_global) ** 2 * num_heads_q * head_dim
    return forward * (0.5 if causal else 1.0) * FACTOR[phase]


def cell_flops(cell: Cell) -> float:
    """Floating-point operations of one iteration of a cell, over all ranks."""
    return attention_flops(
        batch=cell.shape.batch,
        seqlen_global=cell.seqlen_global,
        num_heads_q=cell.shape.num_heads_q,
        head_dim=cell.shape.head_dim,
        causal=cell.shape.causal,
        phase=cell.phase,
    )


def tflops_per_gpu(flops: float, time_ms: float, world_size: int) -> float:
    """TFLOP/s per GPU of an iteration that took `time_ms`."""
    return flops / world_size / (time_ms * 1e-3) / 1e12


@dataclass(frozen=True)
class Peak:
    """The dense matrix rate that a device's maker states, per dtype."""

    device: str
    dtype: str
    tflops: float
    source: str


def peak_tflops(device_name: str, dtype: str) -> Peak | None:
    """The peak of a device by the words of its name (data/peaks.yaml), of a slice its GPU's; or None."""
    entry = _stated(device_name)
    if dtype not in entry.get("tflops", {}):
        return None
    return Peak(device_name, dtype, float(entry["tflops"][dtype]), entry["source"])


def nvlink_gb_per_s(device_name: str) -> float | None:
    """What a device sends over NVLink in one direction, as its maker states it, or None."""
    return _stated(device_name).get("nvlink_gb_per_s")


def is_slice(device_name: str) -> bool:
    """Whether a device is a part of a GPU (MIG), which is as fast as its share of what the maker states."""
    return "mig" in _words(device_name)


@cache
def _stated(device_name: str) -> dict[str, Any]:
    devices = yamlfile.packaged("data/peaks.yaml")["devices"]
    matching = [name for name in devices if _words(name) <= _words(device_name)]
    return devices[max(matching, key=lambda name: len(_words(name)))] if matching else {}


def _words(name: str) -> set[str]:
    """NVIDIA A100-PCIE-40GB -> nvidia, a100, pcie, 40gb: an A1000 is no A100, a GH200 no H200."""
    return set(re.findall(r"[a-z0-9]+", name.lower()))
