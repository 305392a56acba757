"""Report: one campaign as one HTML file that needs no network: its data, scripts and styles are inside.

Every figure is made here, by the code that makes the tables; the scripts only show, filter and sort.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

from ringmark.published.audit import audit
from ringmark.published.claim import read_csv
from ringmark.shares import PARTS
from ringmark.tables import facts, verdicts
from ringmark.tables.cellrow import COLUMNS, CellRow
from ringmark.tables.collect import Collected
from ringmark.tables.group import Group, Line, groups
from ringmark.tables.page import group_title, kind
from ringmark.tables.point import Point, Span
from ringmark.tables.profiles import part_shares
from ringmark.tables.style import looks

SCRIPTS = (
    "report_dom.js",
    "report_plot.js",
    "report_shares.js",
    "report_compare.js",
    "report_records.js",
    "report.js",
)
_LEFT_OUT = ("campaign", "key", "path")  # the page makes a record's key and path from the other columns


def html(collected: Collected) -> str:
    """The whole page."""
    data = json.dumps(_data(collected), ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    page = _asset("report.html")
    parts = {
        "TITLE": _text(collected.campaign.name),
        "STYLE": _asset("report.css"),
        "DATA": data.replace("<", "\\u003c"),  # no text of a record can end the script that holds it
        "SCRIPT": "\n".join(_asset(name) for name in SCRIPTS),
    }
    before = page.split("@@")
    return "".join(parts[piece] if i % 2 else piece for i, piece in enumerate(before))


def _asset(name: str) -> str:
    return resources.files("ringmark").joinpath("data", name).read_text(encoding="utf-8")


def _text(text: str) -> str:
    return text.replace("&", "&amp;").replace("<", "&lt;")


def _data(collected: Collected) -> dict[str, Any]:
    campaign = collected.campaign
    config = campaign.beside("campaign.json") or {}
    results = campaign.folder.parent
    view = verdicts.given(collected.rows, results)
    preflight = campaign.beside("preflight.json")
    return {
        "name": campaign.name,
        "title": config.get("title") or campaign.name,
        "summary": facts.summary(collected),
        "parts": PARTS,
        "groups": [_group(group) for group in groups(collected.rows)],
        "records": _columns(collected.rows),
        "environments": collected.environments,
        "protocol": facts.protocol(collected.rows),
        "machine": facts.machine(collected.environments, collected.rows),
        "preflight": preflight,
        "notes": collected.notes,
        "audit": _audit(results / "published" / "claims.csv"),
        "verdict_summary": view.summary if view else None,
        "verdicts": [_verdict(verdict) for verdict in view.verdicts] if view else [],
    }


def _group(group: Group) -> dict[str, Any]:
    styles = looks([line.row for line in group.lines if not line.is_bound])
    return {
        "title": group_title(group),
        "kind": kind(group),
        "shape": group.shape,
        "mesh": group.mesh,
        "kernel": group.kernel,
        "open": group.open,
        "phases": group.phases(),
        "lines": [
            _line(line, list(styles).index(line.row) if line.row in styles else -1) for line in group.lines
        ],
    }


def _line(line: Line, look: int) -> dict[str, Any]:
    points = [
        {"phase": phase, "seqlen": seqlen, **_point(p)} for (phase, seqlen), p in sorted(line.points.items())
    ]
    return {"row": line.row, "label": line.label, "bound": line.is_bound, "look": look, "points": points}


def _point(p: Point) -> dict[str, Any]:
    if not p.passed:
        return {"status": p.status, "notes": p.notes}
    memory = p.memory_above_inputs_mib
    return {
        "status": p.status,
        "ms": _span(p.time_ms),
        "tflops": _span(p.rate),
        "fraction": _digits(p.fraction),
        "memory": _digits(memory),
        "repeats": len(p.rows),
        "runs": sorted(map(str, p.runs)),
        "lead": p.clear_lead,
        "notes": p.told,
        "shares": part_shares(p),
    }


def _span(span: Span | None) -> list[Any] | None:
    return None if span is None else [_digits(value) for value in (span.value, span.low, span.high)]


def _digits(value: Any) -> Any:
    """Seven digits are more than any interval needs, and half the page."""
    return float(f"{value:.7g}") if isinstance(value, float) else value


def _columns(rows: Sequence[CellRow]) -> dict[str, Any]:
    """The tidy table by columns; a column of few texts as indices into them."""
    packed: dict[str, Any] = {}
    for name in COLUMNS:
        if name in _LEFT_OUT:
            continue
        values = [_digits(getattr(row, name)) for row in rows]
        known = list(dict.fromkeys(values))
        if len(known) * 4 <= len(values) + 4:
            index = {value: i for i, value in enumerate(known)}
            packed[name] = {"known": known, "at": [index[value] for value in values]}
        else:
            packed[name] = {"values": values}
    return {"count": len(rows), "columns": packed}


def _audit(claims_file: Path) -> list[dict[str, Any]]:
    if not claims_file.exists():
        return []
    return [_plain(asdict(finding)) for finding in audit(read_csv(claims_file))]


def _verdict(verdict: Any) -> dict[str, Any]:
    return _plain({name: _digits(value) for name, value in asdict(verdict).items()})


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    """Enums as their words."""
    return {name: getattr(value, "value", value) for name, value in values.items()}
