"""Verdicts as a table for people (Markdown) and as one for programs (CSV)."""

from __future__ import annotations

import csv
import io
from collections import Counter
from collections.abc import Sequence
from dataclasses import fields

from ringmark.published.verdict import Outcome, Verdict

_COMPARED = (Outcome.REPRODUCED, Outcome.NOT_REPRODUCED)


def to_csv(verdicts: Sequence[Verdict]) -> str:
    """All verdicts; an empty cell is null."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    names = [each.name for each in fields(Verdict)]
    writer.writerow(names)
    for verdict in verdicts:
        writer.writerow([_cell(getattr(verdict, name)) for name in names])
    return out.getvalue()


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, Outcome):
        return value.value
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def to_markdown(verdicts: Sequence[Verdict], campaign: str) -> str:
    """Counts, then what could be compared, then why the rest could not."""
    lines = [f"# Verdicts of campaign {campaign}", ""]
    lines += [
        "| kind | " + " | ".join(each.value for each in Outcome) + " |",
        "|---|" + "---|" * len(Outcome),
    ]
    for kind in ("absolute", "ratio"):
        counts = Counter(v.outcome for v in verdicts if v.kind == kind)
        lines.append(f"| {kind} | " + " | ".join(str(counts[each]) for each in Outcome) + " |")
    lines += [
        "",
        "Ratios compare two methods on one machine with the published ratio of the same two methods.",
        "",
    ]
    compared = [v for v in verdicts if v.outcome in _COMPARED]
    if compared:
        lines += [
            "## Compared",
            "",
            "| claim | subject | S | phase | target | low | high | measured | unit | verdict |",
        ]
        lines.append("|---|---|---|---|---|---|---|---|---|---|")
        for v in compared:
            numbers = " | ".join(_cell(x) for x in (v.target, v.low, v.high, v.measured, v.unit))
            lines.append(
                f"| {v.claim} | {v.subject} | {_cell(v.seqlen_global)} | {v.phase} | {numbers} | "
                f"{v.outcome.value} |"
            )
        lines.append("")
    lines += ["## Not compared", "", "| verdict | kind | claims | reason |", "|---|---|---|---|"]
    reasons = Counter((v.outcome.value, v.kind, v.reason) for v in verdicts if v.outcome not in _COMPARED)
    for (outcome, kind, reason), count in sorted(reasons.items(), key=lambda pair: (-pair[1], pair[0])):
        lines.append(f"| {outcome} | {kind} | {count} | {reason} |")
    return "\n".join(lines) + "\n"
