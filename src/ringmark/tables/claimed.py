"""Published claims as runs of the published forms: every number digit for digit as its source prints it."""

from __future__ import annotations

from dataclasses import dataclass

from ringmark.published.claim import Claim
from ringmark.published.rows import Row, Table, rows_of, tables_of
from ringmark.tables.forms import Run

_FIELDS = {
    ("time", "fwd"): ("fwd_ms", "fwd_s"),
    ("time", "fwd_bwd"): ("fwd_bwd_ms", "fwd_bwd_s"),
    ("rate", "fwd"): ("fwd_tflops",),
    ("rate", "bwd"): ("bwd_tflops",),
    ("rate", "fwd_bwd"): ("tflops",),
    ("rate", None): ("tflops",),
    ("memory", None): ("memory_mb",),
}
_ONE_PHASE = {"time": "latency_ms", "throughput": "throughput", "memory": "memory_mb", "rate": "speed"}


@dataclass(frozen=True)
class ClaimedTable:
    """A published table: which form it has, and its runs."""

    form: str
    title: str
    where: str
    runs: list[Run]


def tables(claims: list[Claim]) -> list[ClaimedTable]:
    """Every published table of results, in the order of the documents."""
    return [_table(table) for table in tables_of(rows_of(claims)) if table.rows[0].first.format != "report"]


def reports(claims: list[Claim]) -> list[list[Claim]]:
    """The published reports of single cells: each as its lines' claims."""
    found: dict[tuple[str, str | None, str | None], list[Claim]] = {}
    for claim in claims:
        if claim.format == "report":
            found.setdefault((claim.source_file, claim.log_host, claim.label), []).append(claim)
    return list(found.values())


def _table(table: Table) -> ClaimedTable:
    first = table.rows[0].first
    form = _form(first)
    return ClaimedTable(form, _title(table, form), table.where, [_run(row, form) for row in table.rows])


def _form(first: Claim) -> str:
    if first.format == "burst_block":
        return "burst"
    if "ring_type" in first.options:
        return "degrees"
    if first.format == "log_table" or first.column == "FWD (ms)":
        return "sp_log" if "sp_size" in first.options else "log"
    return "evaluation"


def _title(table: Table, form: str) -> str:
    if form != "degrees":
        return table.name
    return "ring type, degrees and phase"


def _run(row: Row, form: str) -> Run:
    first = row.first
    run: dict[str, str | float] = {
        "system": row.name,
        "dtype": first.dtype or "",
        "kernel": first.kernel or "",
        "batch": _whole(first.batch),
        "seqlen_global": _whole(first.seqlen_global),
        "num_heads_q": _whole(first.num_heads_q),
        "head_dim": _whole(first.head_dim),
        "causal": "" if first.causal is None else str(first.causal),
        **first.options,
    }
    if form == "degrees":
        run["fwd_only"] = str(first.phase == "fwd")
    for claim in row.claims:
        printed = claim.printed
        if form == "degrees":
            run[_ONE_PHASE[claim.metric]] = printed
        else:
            run.update(dict.fromkeys(_FIELDS.get((claim.metric, claim.phase), ()), printed))
    return run


def _whole(value: int | None) -> str:
    return "" if value is None else str(value)
