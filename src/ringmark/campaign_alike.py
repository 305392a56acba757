"""What stands in one table was measured alike: one kernel, device and environment, one thing asked."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from ringmark.campaign_finding import Finding, Named
from ringmark.record import Record, Status


def one_table_one_way(found: Named) -> Iterator[Finding]:
    """What stands in one closed table was measured alike: kernel, device, environment, protocol, inputs."""
    groups: dict[tuple[Any, ...], list[tuple[str, Record]]] = defaultdict(list)
    for where, one in found:
        if one.ran is not None and one.status is Status.PASSED:
            groups[(one.cell.shape, one.cell.mesh, one.cell.kernel)].append((where, one))
    for group in groups.values():
        libraries = sorted({name for _, one in group for name in _libraries(one)})
        same: dict[str, Callable[[Record], Any]] = dict(SAME_IN_A_TABLE)
        same |= {f"the version of {name}": partial(_version, name) for name in libraries}
        for name, of in same.items():
            values: dict[str, str] = {}
            for where, one in group:
                value = of(one)
                if value is not None:
                    values.setdefault(json.dumps(value, sort_keys=True, default=str), where)
            if len(values) > 1:
                (first, there), (other, here) = list(values.items())[:2]
                sentence = f"{name} is {_shown(other, first)}, in {there} it is {_shown(first, other)}"
                yield Finding(here, f"{sentence}: one table, one way of measuring")


def own_kernel(one: Record) -> Any:
    """Our methods share the kernel; a peer brings its own, and the table says so."""
    if one.ran is None or one.ran.implementation != "ringmark":
        return None
    return (one.ran.kernel, one.ran.kernel_version, one.ran.deterministic)


def _asked(one: Record) -> Any:
    asked = one.asked
    return {**vars(asked), "repeat": None, "protocols": sorted(asked.protocols), "profile": None}


LASTING_OF_A_GPU = (
    *("name", "power_limit_w", "clock_sm_max_mhz", "clock_memory_max_mhz", "clock_sm_application_mhz"),
    *("ecc_mode", "mig_mode"),
)


def _lasting(environment: Mapping[str, Any]) -> Any:
    """What makes two environments different: hardware and software, not which of equal nodes it was."""
    nodes = []
    for node in dicts(environment.get("nodes")):
        kept = {name: node.get(name) for name in ("cpu", "python", "driver", "cuda", "cudnn")}
        kept["variables"], kept["nccl_runtime"] = node.get("variables"), node.get("nccl_runtime")
        gpus = dicts([rank.get("gpu") for rank in dicts(node.get("ranks"))])
        kept["gpus"] = [[gpu.get(name) for name in LASTING_OF_A_GPU] for gpu in gpus]
        nodes.append(kept)
    return {"nodes": nodes, "image_digest": environment.get("image_digest")}


def _libraries(one: Record) -> set[str]:
    return {name for node in dicts(one.environment.get("nodes")) for name in _libraries_of(node)}


def _version(library: str, one: Record) -> Any:
    """A library's version on every node, or None where one lacks it: no record can have used it there."""
    found = [_libraries_of(node).get(library) for node in dicts(one.environment.get("nodes"))]
    return found if found and None not in found else None


def _libraries_of(node: Mapping[str, Any]) -> dict[str, Any]:
    (libraries,) = dicts([node.get("libraries")])
    return libraries


def dicts(found: Any) -> list[dict[str, Any]]:
    """A list of mappings, whatever a record says in its place: what is none is an empty one."""
    return [one if isinstance(one, dict) else {} for one in found] if isinstance(found, list) else []


SAME_IN_A_TABLE: dict[str, Callable[[Record], Any]] = {
    "the kernel": own_kernel,
    "the device": lambda one: one.ran.device if one.ran else None,
    "the environment": lambda one: _lasting(one.environment) if one.environment else None,
    "what was asked": _asked,
}


def _shown(text: str, other: str, most: int = 60) -> str:
    """The part of a value in which it differs from another one."""
    start = next((i for i, (a, b) in enumerate(zip(text, other)) if a != b), min(len(text), len(other)))
    start = max(0, start - 20)
    return ("..." if start else "") + text[start : start + most] + ("..." if len(text) > start + most else "")
