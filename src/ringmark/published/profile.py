"""A published profiler table as rows: times in ms, calls, and which kernels are attention."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from ringmark.published.claim import Claim
from ringmark.published.rows import Span, span

_MS = {"us": 1e-3, "ms": 1.0, "s": 1e3}
FAMILIES = {
    "attention forward": ("flash_fwd_kernel",),
    "attention backward": ("flash_bwd_dq_dk_dv",),
    "attention backward, before": ("flash_bwd_dot_do_o",),
    "attention backward, after": ("flash_bwd_convert_dq",),
}


@dataclass(frozen=True)
class ProfileRow:
    """One kernel or call of a profile."""

    claims: dict[str, Claim]

    @property
    def first(self) -> Claim:
        return next(iter(self.claims.values()))

    @property
    def item(self) -> str:
        return self.first.item or ""

    @property
    def where(self) -> str:
        return self.first.where

    def ms(self, metric: str) -> Span | None:
        claim = self.claims.get(metric)
        return span(claim, _MS[claim.unit or "ms"]) if claim and claim.value is not None else None

    def number(self, metric: str) -> Span | None:
        claim = self.claims.get(metric)
        return span(claim) if claim and claim.value is not None else None

    @property
    def calls(self) -> int:
        claim = self.claims.get("calls")
        return int(claim.value or 0) if claim else 0


@dataclass(frozen=True)
class Profile:
    """One profiler table, with its totals."""

    rows: tuple[ProfileRow, ...]
    totals: dict[str, Claim]

    @property
    def where(self) -> str:
        return f"{self.rows[0].where}-{self.rows[-1].first.source_line}"

    def family(self, name: str) -> list[ProfileRow]:
        return [row for row in self.rows if any(part in row.item for part in FAMILIES[name])]


def profiles_of(claims: Sequence[Claim]) -> list[Profile]:
    """The profiler tables; the totals under a table belong to the nearest table above them."""
    tables: dict[tuple[object, ...], dict[int, dict[str, Claim]]] = defaultdict(lambda: defaultdict(dict))
    totals: dict[tuple[object, ...], dict[str, Claim]] = defaultdict(dict)
    last: dict[tuple[str, str | None], tuple[object, ...]] = {}
    for claim in claims:
        if claim.format != "profiler":
            continue
        stream = (claim.source_file, claim.log_host)
        if claim.table_line is not None:
            last[stream] = key = (*stream, claim.table_line)
            tables[key][claim.source_line][claim.metric] = claim
        elif stream in last:
            totals[last[stream]][claim.metric] = claim
    return [Profile(tuple(map(ProfileRow, rows.values())), totals[key]) for key, rows in tables.items()]
