"""Published against reproduced: the verdicts on all claims, given from a campaign's collected rows."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ringmark.published.claim import Claim, read_csv
from ringmark.published.measured import Measured, cells
from ringmark.published.tolerance import read_tolerances
from ringmark.published.verdict import Outcome, Verdict, verdicts
from ringmark.tables.cellrow import CellRow
from ringmark.tables.numbers import plain
from ringmark.tables.table import Entry, Table, word

_COMPARED = (Outcome.REPRODUCED, Outcome.NOT_REPRODUCED)


@dataclass(frozen=True)
class VerdictView:
    """What a page says of the verdicts."""

    summary: str
    table: Table | None
    verdicts: list[Verdict]


def given(rows: Sequence[CellRow], results: Path) -> VerdictView | None:
    """The verdicts on the claims under results/published; None where there are no claims."""
    folder = results / "published"
    if not (folder / "claims.csv").exists() or not (folder / "tolerances.yaml").exists():
        return None
    claims: list[Claim] = read_csv(folder / "claims.csv")
    measured = cells([_measured(row) for row in rows])
    found = verdicts(claims, measured, read_tolerances(folder / "tolerances.yaml"))
    counts = Counter((verdict.kind, verdict.outcome.value) for verdict in found)
    parts = []
    for kind in ("absolute", "ratio"):
        words = [f"{counts[(kind, each.value)]} {each.value}" for each in Outcome]
        parts.append(f"{kind}: {', '.join(words)}")
    return VerdictView("; ".join(parts), _table([v for v in found if v.outcome in _COMPARED]), found)


def _table(compared: Sequence[Verdict]) -> Table | None:
    if not compared:
        return None
    header = (
        "claim",
        "subject",
        "seqlen",
        "phase",
        "published",
        "low",
        "high",
        "measured",
        "unit",
        "verdict",
    )
    rows = []
    for verdict in compared:
        numbers = [_number(x) for x in (verdict.target, verdict.low, verdict.high, verdict.measured)]
        place = [word(str(verdict.seqlen_global or "any")), word(verdict.phase or "any")]
        ends = [word(verdict.unit or "times"), word(verdict.outcome.value)]
        rows.append((word(verdict.claim), word(verdict.subject), *place, *numbers, *ends))
    return Table("verdicts", "published against measured", header, tuple(rows))


def _number(value: float | None) -> Entry:
    return word("none") if value is None else Entry(plain(float(value)), is_number=True)


def _measured(row: CellRow) -> Measured:
    return Measured(
        method=row.method,
        seqlen_global=row.seqlen_global,
        phase=row.phase,
        status=row.status,
        options={key: str(value).lower() for key, value in json.loads(row.options).items()},
        batch=row.batch,
        num_heads_q=row.num_heads_q,
        num_heads_kv=row.num_heads_kv,
        head_dim=row.head_dim,
        causal=row.mask == "causal",
        dtype=row.dtype,
        nodes=row.nodes,
        gpus_per_node=row.gpus,
        device=row.device,
        kernel=row.kernel_ran,
        kernel_asked=row.kernel_asked,
        time_ms=row.median_ms,
        tflops_per_gpu=row.tflops_per_gpu,
        mem_peak_mib=row.memory_peak_mib,
        reason=row.reason or "",
        source=row.path,
    )
