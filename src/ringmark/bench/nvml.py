"""What a GPU says of itself through NVML: its identity, and its state now (clocks, power, throttling).

Everything is asked separately: a driver that does not answer one question (or a host without nvidia-ml-py)
leaves {"value": null, "reason": ...} in that place and the rest as it is.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

Answer = Any

# NVML's bits for why a clock is lower than it could be; "gpu_idle" is no complaint.
THROTTLE_BITS = {
    0x1: "gpu_idle",
    0x2: "applications_clocks_setting",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake_slowdown",
    0x100: "display_clock_setting",
}


def absent(reason: str) -> dict[str, Any]:
    """The place of a fact that could not be had, and why."""
    return {"value": None, "reason": reason}


def ask(question: Callable[[], Answer]) -> Answer:
    """The answer, or why there is none: a missing fact never stops a measurement."""
    try:
        return question()
    except Exception as error:
        text = " ".join(str(error).split())[:200]
        return absent(f"{type(error).__name__}: {text}" if text else type(error).__name__)


@functools.cache
def library() -> Any:
    """The initialised nvidia-ml-py module; raises where there is none."""
    import pynvml

    pynvml.nvmlInit()
    return pynvml


def handle(device: torch.device) -> Any:
    """NVML's handle of a torch device: found by UUID, since the two number their devices differently."""
    nvml, uuid = library(), str(torch.cuda.get_device_properties(device).uuid)
    return nvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith(("GPU-", "MIG-")) else f"GPU-{uuid}")


def identity(device: torch.device) -> dict[str, Any]:
    """What stays the same about a GPU during a campaign."""
    properties = torch.cuda.get_device_properties(device)

    def nvml(name: str, *extra: Any) -> Any:
        return ask(lambda: _plain(getattr(library(), name)(handle(device), *extra)))

    return {
        "name": properties.name,
        "uuid": ask(lambda: str(properties.uuid)),
        "memory_mib": properties.total_memory // 2**20,
        "num_multiprocessors": properties.multi_processor_count,
        "compute_capability": f"{properties.major}.{properties.minor}",
        "vbios": nvml("nvmlDeviceGetVbiosVersion"),
        "power_limit_w": _scaled(nvml("nvmlDeviceGetEnforcedPowerLimit"), 1e-3),
        "power_limit_default_w": _scaled(nvml("nvmlDeviceGetPowerManagementDefaultLimit"), 1e-3),
        "clock_sm_max_mhz": nvml("nvmlDeviceGetMaxClockInfo", 1),
        "clock_memory_max_mhz": nvml("nvmlDeviceGetMaxClockInfo", 2),
        "clock_sm_application_mhz": nvml("nvmlDeviceGetApplicationsClock", 1),
        "persistence_mode": nvml("nvmlDeviceGetPersistenceMode"),
        "ecc_mode": nvml("nvmlDeviceGetEccMode"),
        "mig_mode": nvml("nvmlDeviceGetMigMode"),
        "pcie_generation": nvml("nvmlDeviceGetCurrPcieLinkGeneration"),
        "pcie_width": nvml("nvmlDeviceGetCurrPcieLinkWidth"),
        "nvlinks_active": ask(lambda: _active_nvlinks(device)),
    }


def state(device: torch.device) -> dict[str, Any]:
    """What changes while a campaign runs."""

    def nvml(name: str, *extra: Any) -> Any:
        return ask(lambda: _plain(getattr(library(), name)(handle(device), *extra)))

    reasons = nvml("nvmlDeviceGetCurrentClocksThrottleReasons")
    return {
        "clock_sm_mhz": nvml("nvmlDeviceGetClockInfo", 1),
        "clock_memory_mhz": nvml("nvmlDeviceGetClockInfo", 2),
        "power_w": _scaled(nvml("nvmlDeviceGetPowerUsage"), 1e-3),
        "temperature_c": nvml("nvmlDeviceGetTemperature", 0),
        "throttle_reasons": throttle_names(reasons) if isinstance(reasons, int) else reasons,
        "energy_j": _scaled(nvml("nvmlDeviceGetTotalEnergyConsumption"), 1e-3),
    }


def throttle_names(bits: int) -> list[str]:
    """The reasons behind NVML's bit mask, by name; a bit that has no name here is told as hexadecimal."""
    names = [name for bit, name in THROTTLE_BITS.items() if bits & bit]
    unknown = bits & ~functools.reduce(int.__or__, THROTTLE_BITS)
    return names + ([hex(unknown)] if unknown else [])


def driver_version() -> Answer:
    return ask(lambda: _plain(library().nvmlSystemGetDriverVersion()))


def topology(devices: list[torch.device]) -> Answer:
    """How near each pair of GPUs of a node is on PCIe, and whether each can read the other's memory."""
    # NVML's levels, from one board to another socket.
    levels = {0: "internal", 10: "single", 20: "multiple", 30: "hostbridge", 40: "node", 50: "system"}

    def nearness(pair: tuple[torch.device, torch.device]) -> Answer:
        level = int(library().nvmlDeviceGetTopologyCommonAncestor(*map(handle, pair)))
        return {"pcie": levels.get(level, str(level)), "peer": torch.cuda.can_device_access_peer(*pair)}

    pairs = itertools.combinations(devices, 2)
    return {f"{pair[0].index}-{pair[1].index}": ask(partial(nearness, pair)) for pair in pairs}


def _active_nvlinks(device: torch.device) -> int:
    nvml, count = library(), 0
    for link in range(int(getattr(nvml, "NVML_NVLINK_MAX_LINKS", 18))):
        try:
            count += int(nvml.nvmlDeviceGetNvLinkState(handle(device), link))
        except Exception:  # fewer links than the library knows of: the count so far is the answer
            if link == 0:
                raise
            break
    return count


def _scaled(value: Answer, factor: float) -> Answer:
    return value * factor if isinstance(value, (int, float)) else value


def _plain(value: Any) -> Any:
    """NVML's answer as JSON has it."""
    if isinstance(value, bytes):
        return value.decode()
    return list(value) if isinstance(value, tuple) else value
