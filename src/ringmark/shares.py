"""Where the time of a profiled iteration goes: parts that together make the whole.

Kinds of compute are sums over kernels, which may run side by side; here they share out the time in which any
compute ran, so that compute, exposed communication and idle time make the whole. Communication hidden under
compute is told beside them: it costs no time.
"""

from __future__ import annotations

from collections.abc import Mapping

PARTS = {
    "attention": "attention kernels",
    "merge": "merging and elementwise",
    "other": "other kernels",
    "exposed": "exposed communication",
    "idle": "idle",
}
_KINDS = ("attention", "merge", "other")


def shares(rank: Mapping[str, float]) -> dict[str, float]:
    """Each part's share of one rank's iteration; nothing where it has no length."""
    span = rank["span_ms"]
    if not span:
        return {}
    sums = {kind: rank[f"{kind}_ms"] for kind in _KINDS}
    busy = rank["compute_busy_ms"] / (sum(sums.values()) or 1.0)
    parts = {kind: sums[kind] * busy / span for kind in _KINDS}
    return {**parts, "exposed": rank["exposed_comm_ms"] / span, "idle": rank["idle_ms"] / span}
