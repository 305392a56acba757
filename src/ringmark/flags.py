"""What a series must carry as a flag: clocks that disagree, and what the machine complained of.

Pure rules over figures of the record, no torch: the engine flags by them, `ringmark check` flags again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

CLOCKS_DISAGREE = "clocks_disagree"
DISAGREEMENT_ALLOWED = 0.02
# Waking up after a synchronisation costs the host some microseconds: a smaller gap says nothing.
DISAGREEMENT_FLOOR_MS = 0.1

# Why a GPU's clock is lower than it could be, by names of NVML (bench/nvml.py); an idle one is no complaint.
COMPLAINTS = (
    "sw_power_cap",
    "hw_slowdown",
    "sw_thermal_slowdown",
    "hw_thermal_slowdown",
    "hw_power_brake_slowdown",
)


def of_clocks(fraction: float, gap_ms: float) -> list[str]:
    """The flag of a series whose clock and witness are so far apart (stats.clock_disagreement)."""
    apart = fraction > DISAGREEMENT_ALLOWED and gap_ms > DISAGREEMENT_FLOOR_MS
    return [CLOCKS_DISAGREE] if apart else []


def throttled(environment: Mapping[str, Any]) -> list[str]:
    """Flags for a record whose GPUs complained before or after: like "throttled:hw_slowdown:rank3"."""
    found = []
    for moment in ("before", "after"):
        for rank, state in enumerate(ranks_at(environment, moment)):
            gpu = state.get("gpu")
            reasons = gpu.get("throttle_reasons") if isinstance(gpu, Mapping) else None
            if isinstance(reasons, list):
                found += [f"throttled:{name}:rank{rank}" for name in reasons if name in COMPLAINTS]
    return sorted(set(found))


def ranks_at(environment: Mapping[str, Any], moment: str) -> list[Mapping[str, Any]]:
    """Every rank's state "before" or "after"; none where the environment has no such thing."""
    state = environment.get(moment)
    ranks = state.get("ranks") if isinstance(state, Mapping) else None
    return [rank if isinstance(rank, Mapping) else {} for rank in ranks] if isinstance(ranks, list) else []
