"""What stands under a table: the machine, the versions and the protocol, as the records tell them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from ringmark import campaign_check
from ringmark.cell import BOUND
from ringmark.errors import UserError
from ringmark.tables.cellrow import CellRow, program_of
from ringmark.tables.collect import Collected
from ringmark.tables.numbers import plain

Facts = list[tuple[str, str]]
PROTOCOLS = {
    "isolated": "isolated (a barrier before every iteration)",
    "pipelined": "pipelined (iterations back to back)",
}


def machine(environments: Mapping[str, Mapping[str, Any]], rows: Sequence[CellRow]) -> Facts:
    """The hardware and software of all environments of a campaign; where they differ, every value."""
    found: dict[str, list[str]] = {}
    for environment in environments.values():
        for name, value in _of_environment(environment):
            found.setdefault(name, []).append(value)
    facts = [(name, _joined(name, values, len(environments))) for name, values in found.items()]
    for name, field in (("device", "device"), ("backend", "backend")):
        values = sorted({str(getattr(row, field)) for row in rows if getattr(row, field)})
        if values:
            facts.append((name, "; ".join(values)))
    return facts


def _joined(name: str, values: list[str], environments: int) -> str:
    """One value of all environments, or each; of a list's parts those that are not everywhere say so."""
    if name not in ("libraries", "variables"):
        return "; ".join(dict.fromkeys(values))
    counts = Counter(part for value in values for part in value.split(", "))
    return ", ".join(
        part if count == environments else f"{part} (in {count} of {environments} environments)"
        for part, count in sorted(counts.items())
    )


def _of_environment(environment: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    nodes = [node for node in environment.get("nodes", []) if isinstance(node, dict)]
    if nodes:
        names = Counter(_node_name(node) for node in nodes)
        yield "nodes", ", ".join(f"{count} x {name}" for name, count in sorted(names.items()))
    for name in ("system", "python", "driver", "cuda", "cudnn", "nccl_runtime"):
        values = sorted({str(node[name]) for node in nodes if isinstance(node.get(name), (str, int))})
        if values:
            yield name.replace("_", " "), ", ".join(values)
    libraries = sorted({f"{k} {v}" for node in nodes for k, v in (node.get("libraries") or {}).items()})
    if libraries:
        yield "libraries", ", ".join(libraries)
    program = program_of(environment.get("source") or {})
    if program:
        yield "ringmark", program
    digest = environment.get("image_digest")
    if isinstance(digest, str):
        yield "image", digest
    variables = sorted({f"{k}={v}" for node in nodes for k, v in (node.get("variables") or {}).items()})
    if variables:
        yield "variables", ", ".join(variables)


def _node_name(node: Mapping[str, Any]) -> str:
    """'8 NVIDIA H200, Xeon, 192 CPUs': a node without its host's name."""
    gpus = Counter(rank["gpu"]["name"] for rank in node.get("ranks", []) if rank.get("gpu", {}).get("name"))
    parts = [f"{count} {name}" for name, count in sorted(gpus.items())]
    if node.get("cpu"):
        parts.append(f"{node['cpu']}, {node.get('num_cpus', '?')} CPUs")
    return "(" + ", ".join(parts or ["unnamed hardware"]) + ")"


def protocol(rows: Sequence[CellRow]) -> Facts:
    """How the times were taken."""
    timed = [row for row in rows if row.passed]
    facts: Facts = []
    used = sorted({row.protocol for row in timed if row.protocol})
    if used:
        facts.append(("protocol", "; ".join(PROTOCOLS[name] for name in used)))
    counts = sorted({row.n for row in timed if row.n})
    if counts:
        span = str(counts[0]) if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
        facts.append(("iterations", f"{span} timed; the time of one is its slowest rank's; median of all"))
    repeats = Counter(Counter(row.key for row in rows).values())
    if set(repeats) - {1}:
        most = max(repeats)
        facts.append(
            ("repeats", f"up to {most} of a cell: median of their medians, interval around all of theirs")
        )
    runs = sorted({row.run_id for row in rows if row.run_id})
    if runs:
        facts.append(("runs", str(len(runs))))
    errors = [row.error_of_allowed for row in timed if row.error_of_allowed is not None]
    if errors:
        facts.append(("worst error", f"{plain(max(errors), 2)} of what is allowed, over all passed cells"))
    started = sorted(row.started_at for row in rows if row.started_at)
    if started:
        facts.append(("measured", f"{started[0][:10]} to {started[-1][:10]}"))
    return facts


def links(preflight: Mapping[str, Any] | None) -> Facts:
    """The plain numbers of a preflight: rates of links, copies and matmuls measured before the cells."""
    if preflight is None:
        return []
    return [(name.replace("_", " "), value) for name, value in _leaves(preflight)]


def _leaves(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _leaves(item, f"{name} {key}".strip())
    elif isinstance(value, float) or (isinstance(value, int) and not isinstance(value, bool)):
        yield name, plain(value)


def what_ran(rows: Iterable[CellRow]) -> tuple[tuple[str, ...], list[list[str]]]:
    """Per method row: the implementation, the kernel behind what was asked, layout, transport, settings."""
    header = ("row", "implementation", "kernel ran", "layout", "transport", "opt_bwd", "deterministic")
    seen: dict[tuple[str, ...], list[dict[str, Any]]] = {}
    for row in rows:
        if row.kernel_ran is None:
            continue
        kernel = f"{row.kernel_ran} {row.kernel_version or ''}".strip()
        flags = (_yes_no(row.opt_bwd), _yes_no(row.deterministic))
        transport = "nothing moves" if row.method == BOUND else row.transport or ""
        ran = (row.row, row.implementation or "", kernel, row.layout or "", transport, *flags)
        settings = json.loads(row.settings or "{}")
        if settings not in seen.setdefault(ran, []):
            seen[ran].append(settings)
    return (*header, "settings"), [[*ran, _settings(found)] for ran, found in sorted(seen.items())]


def _yes_no(value: bool | None) -> str:
    return "does not apply" if value is None else ("yes" if value else "no")


def _settings(found: list[dict[str, Any]]) -> str:
    """A method's settings as name=value, its overrides among them; what differed by cell has each value."""
    values: dict[str, list[str]] = {}
    for settings in found:
        for name, value in settings.items():
            text = value if isinstance(value, str) else json.dumps(value)
            if text not in values.setdefault(name, []):
                values[name].append(text)
    return ", ".join(f"{name}={' or '.join(texts)}" for name, texts in sorted(values.items())) or "none"


def summary(collected: Collected) -> str:
    """One sentence: how many records, how they ended, and how many of the plan are not there."""
    counts = Counter(row.status for row in collected.rows)
    words = ", ".join(f"{count} {status}" for status, count in sorted(counts.items()))
    cells = len({row.key for row in collected.rows})
    records = len(collected.rows)
    text = f"{cells} {'cell' if cells == 1 else 'cells'}, {records} records: {words}"
    return text + _missing(collected)


def _missing(collected: Collected) -> str:
    try:
        wanted = campaign_check.planned(collected.campaign.folder)
    except (OSError, ValueError, UserError):
        return ""  # the check has a note of a plan that cannot be read
    left = len(wanted - {row.path for row in collected.rows})
    return f"; of {len(wanted)} records that were planned {left} are missing" if left else ""
