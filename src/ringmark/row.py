"""A record as one row of text, for people who measured one cell."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ringmark.cell import BOUND
from ringmark.diagnose import in_lines
from ringmark.record import Record, Status
from ringmark.shares import PARTS, shares

HEADER = (
    f"{'method':<24} {'seqlen':>8} {'mesh':>5} {'kernel':>10} {'phase':>8} {'median ms':>11} "
    f"{'95% interval':>21} {'TFLOP/s/GPU':>12} {'of bound':>9} {'error':>9} {'peak MiB':>9}"
)


def headline_row(found: Record, bound: Record | None) -> str:
    """The header and the row; a cell without a time shows its status and the reason."""
    cell = found.cell
    kernel = found.ran.kernel if found.ran else cell.kernel
    head = f"{cell.row:<24} {cell.seqlen_global:>8} {cell.mesh!s:>5} {kernel:>10} {cell.phase:>8} "
    if found.status is not Status.PASSED or not (found.timing and found.check and found.memory):
        reason, *more = in_lines(found.failure) if found.failure else [""]
        lines = [HEADER, f"{head}{found.status.value:>11}   {reason}", *(f"    {line}" for line in more)]
        return "\n".join([*lines, *_failed_bound(bound)])
    series = found.timing.headline
    summary = series.summary
    error = max(one.relative_error for one in found.check.errors.values())
    interval = f"[{summary.ci_low:.3f}, {summary.ci_high:.3f}]"
    lines = [
        HEADER,
        f"{head}{summary.median:>11.3f} {interval:>21} {found.timing.tflops_per_gpu:>12.4g} "
        f"{fraction_of_bound(found, bound):>9} {error:>9.1e} {found.memory.peak_mib:>9.0f}",
    ]
    if series.summary.ci_level < 0.95:
        lines.append(
            f"    {summary.n} iterations reach a {summary.ci_level:.0%} interval; 6 or more reach 95%"
        )
    lines += [f"    {flag}" for flag in series.flags]
    return "\n".join([*lines, *_failed_bound(bound)])


def _failed_bound(bound: Record | None) -> list[str]:
    """Why there is no bound to hold a row against; nothing where there is one, or none was asked for."""
    if bound is None or bound.failure is None:
        return []
    return [f"    the bound is {bound.status.value}: {'; '.join(in_lines(bound.failure))}"]


def profile_lines(profile: Mapping[str, Any]) -> list[str]:
    """Where the slowest rank's profiled iteration goes, and its longest kernels or operators."""
    rank = max(range(len(profile["ranks"])), key=lambda index: profile["ranks"][index]["span_ms"])
    figures = profile["ranks"][rank]
    parts = shares(figures)
    if not parts:
        return ["    the profile shows no work"]
    hidden = (figures["comm_busy_ms"] - figures["exposed_comm_ms"]) / figures["span_ms"]
    words = ", ".join(f"{PARTS[name]} {share:.1%}" for name, share in parts.items())
    lines = [
        f"    where the {figures['span_ms']:.3f} ms of a profiled iteration go (rank {rank}, the slowest):",
        f"        {words}; hidden communication {hidden:.1%}",
    ]
    for one in profile["top"][:3]:
        lines.append(f"        {one['time_ms']:.3f} ms in {one['calls']} x {one['name'][:80]}")
    return lines


def fraction_of_bound(found: Record, bound: Record | None) -> str:
    """The bound's median over the cell's, or the word that says why there is none."""
    if found.cell.method == BOUND:
        return "the bound"
    if bound is None:
        return "unmeasured"
    if bound.timing is None or found.timing is None:
        return bound.status.value
    return f"{bound.timing.headline.summary.median / found.timing.headline.summary.median:.3f}"
