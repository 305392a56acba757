"""Writes results/opt_bwd/README.md from the records of the proof; --check says whether it is current."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "results/opt_bwd"
HEAD = """# opt_bwd on a GPU: the record

Rendered by `python tests/gpu/opt_bwd_report.py` from the JSON files beside it, which
`tests/gpu/prove_opt_bwd.py` wrote on a GPU host. Builds: head size 128, bf16, sm_90; the patched extension
and an unpatched one of the same version, loaded side by side. `patches.sha256` holds the patches that were
tested; a test fails when a patch has changed since. A shape is (batch, seqlen_q, seqlen_k, query heads, key
heads, causal).
"""
SAME_BITS = """
Given the kernel's own delta, dk and dv have the bits of the unpatched build with out, and dq too in the
deterministic mode, where additions have one order. The same holds against the patched build with out for
packed sequences (varlen) and through `flash_attn_func`, which knows nothing of the patch.\
"""


def main() -> int:
    records = [json.loads(path.read_text()) for path in sorted(FOLDER.glob("opt_bwd-*.json"))]
    text = "\n".join([HEAD, *(section(record) for record in records)])
    readme = FOLDER / "README.md"
    if "--check" in sys.argv:
        current = readme.exists() and readme.read_text() == text
        print(f"{readme} is {'current' if current else 'stale: run tests/gpu/opt_bwd_report.py'}")
        return 0 if current else 1
    readme.write_text(text)
    return 0


def section(record: dict[str, Any]) -> str:
    where, checks = record["environment"], record["checks"]
    verdict = "all checks passed" if record["passed"] else "NOT all checks passed"
    lines = [f"## flash-attn {where['flash_attn']}: {verdict}", ""]
    lines += [f"{where['gpu']}, torch {where['torch']}, CUDA {where['cuda']}, {where['utc']}.", ""]
    lines += [*accuracy(checks["accuracy"]["cases"]), ""]
    lines += [*poison(checks["poisoned_memory"]["runs"]), ""]
    lines += [*times(checks["time"]["cases"]), ""]
    lines += [f"Refused with a sentence: {'; '.join(checks['build']['refusals'].values())}.", ""]
    return "\n".join(lines)


def accuracy(cases: list[dict[str, Any]]) -> list[str]:
    """The worst relative error of each gradient against float64, over all shapes."""
    lines = [
        f"Relative error against float64, the worst of {len(cases)} cases: causal and full, GQA, most lengths"
    ]
    lines += ["no multiple of 64, deterministic and not.", ""]
    lines += ["| gradient | delta given | out given | the two apart |", "|---|---|---|---|"]
    for name in ("dq", "dk", "dv"):
        worst = [max(case[name][key] for case in cases) for key in ("error_delta", "error_out", "apart")]
        lines.append(f"| {name} | " + " | ".join(f"{value:.3e}" for value in worst) + " |")
    return [*lines, *SAME_BITS.splitlines()]


def poison(runs: list[dict[str, Any]]) -> list[str]:
    """Bad values among the calls whose every buffer started as NaN."""
    lines = ["Delta given, and every buffer that the call allocates filled with NaN first:", ""]
    lines += ["| shape | deterministic | calls | bad dq, dk, dv |", "|---|---|---|---|"]
    for run in runs:
        bad = ", ".join(str(run["bad_values"][name]) for name in ("dq", "dk", "dv"))
        lines.append(f"| {shape(run)} | {run['deterministic']} | {run['repeats']} | {bad} |")
    return lines


def shape(case: dict[str, Any]) -> str:
    return ", ".join(str(number) for number in case["shape"][:-1]) + (
        ", causal" if case["shape"][-1] else ", full"
    )


def times(cases: list[dict[str, Any]]) -> list[str]:
    """Medians of the interleaved calls."""
    rounds = len(cases[0]["samples_ms"]["with_delta"])
    lines = [f"Time of one backward in ms, medians of {rounds} interleaved calls each:"]
    lines += [
        "",
        "| shape | delta given | out given | unpatched | delta / unpatched |",
        "|---|---|---|---|---|",
    ]
    for case in cases:
        values = [f"{case['time_ms'][name]:.3f}" for name in ("with_delta", "with_out", "unpatched")]
        lines.append(f"| {shape(case)} | " + " | ".join([*values, f"{case['ratio']:.4f}"]) + " |")
    return lines


if __name__ == "__main__":
    sys.exit(main())
