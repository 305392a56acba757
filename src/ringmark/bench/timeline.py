"""Where an iteration's time goes, from the events of a trace: kinds of work, and communication nobody hides.

    compute   ####  ######      ###          attention, merge, other
    comm        ######  ######               send/recv
    exposed          #        ##             communication running and no compute

Pure functions on the events of a Chrome trace (times in microseconds, as torch's profiler writes them). On a
GPU the events are kernels and copies; on a CPU they are operators, each counted without those inside it.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal["attention", "send_recv", "merge", "other"]
Interval = tuple[float, float]
KINDS: tuple[Kind, ...] = ("attention", "send_recv", "merge", "other")

# The first pattern that is found in a name decides. Copies between devices are communication too.
_PATTERNS: tuple[tuple[Kind, re.Pattern[str]], ...] = (
    ("send_recv", re.compile(r"nccl|gloo|c10d::|memcpy p(to|2)p|nvshmem", re.I)),
    ("attention", re.compile(r"flash|fmha|sdpa|attention|attn_(fwd|bwd)|row_dot", re.I)),
    # The reference kernel is made of these operators.
    ("attention", re.compile(r"aten::(bmm|baddbmm_?|addmm_?|mm|matmul|exp_|amax|masked_fill_|triu_)$")),
    (
        "merge",
        re.compile(r"elementwise|fused_|triton|fold|^_sum|merge|lse|reduce_kernel|vectorized|CatArray", re.I),
    ),
    ("merge", re.compile(r"memcpy dtod|device -> device|logsigmoid|sigmoid", re.I)),
    ("merge", re.compile(r"aten::(add|mul|sub|div|copy|lerp|where|logaddexp|sum|cat|clone|exp|log)\w*$")),
)
_GPU_CATEGORIES = ("kernel", "gpu_memcpy", "gpu_memset")


@dataclass(frozen=True)
class Event:
    """One piece of work on the timeline."""

    name: str
    kind: Kind
    start: float
    end: float


@dataclass(frozen=True)
class Breakdown:
    """The figures of one rank's iteration, in ms. Kinds are sums over events; the rest is on the timeline."""

    span_ms: float
    attention_ms: float
    send_recv_ms: float
    merge_ms: float
    other_ms: float
    compute_busy_ms: float  # some compute is running
    comm_busy_ms: float  # some communication is running
    exposed_comm_ms: float  # communication is running and no compute
    idle_ms: float  # neither


def kind_of(name: str) -> Kind:
    """The kind of work that a kernel or operator of this name does."""
    return next((kind for kind, pattern in _PATTERNS if pattern.search(name)), "other")


def events_of(trace: Mapping[str, Any]) -> list[Event]:
    """The work in a Chrome trace: the GPU's where there is any, else the CPU's operators."""
    complete = [raw for raw in trace["traceEvents"] if raw.get("ph") == "X"]
    on_gpu = [raw for raw in complete if raw.get("cat") in _GPU_CATEGORIES]
    if on_gpu:
        spans = [(raw["name"], float(raw["ts"]), float(raw["ts"]) + float(raw["dur"])) for raw in on_gpu]
    else:
        spans = _cpu_work(complete)
    return [Event(name, kind_of(name), start, end) for name, start, end in spans]


def _cpu_work(raws: Iterable[Mapping[str, Any]]) -> list[tuple[str, float, float]]:
    """Operators cut to the stretches in which nothing inside them runs; gloo's transfers beside them."""
    work, by_thread = [], defaultdict(list)
    for raw in raws:
        span = (str(raw["name"]), float(raw["ts"]), float(raw["ts"]) + float(raw["dur"]))
        if raw["name"].startswith("gloo:"):
            work.append(span)
        elif raw.get("cat") == "cpu_op":
            by_thread[raw.get("tid")].append(span)
    for spans in by_thread.values():
        work += [span for span in _without_inner(spans) if span[0].startswith("aten::")]
    return work


def _without_inner(spans: list[tuple[str, float, float]]) -> list[tuple[str, float, float]]:
    """Nested spans as the stretches that are each one's own."""
    own: list[tuple[str, float, float]] = []
    stack: list[tuple[str, float]] = []  # (name, end) of what is open; `at` is how far time is shared out
    at = 0.0

    def advance(to: float) -> None:
        nonlocal at
        while stack and stack[-1][1] <= to:
            name, end = stack.pop()
            if end > at:
                own.append((name, at, end))
                at = end
        if stack and to > at:
            own.append((stack[-1][0], at, to))
        at = max(at, to)

    for name, start, end in sorted(spans, key=lambda span: (span[1], -span[2])):
        advance(start)
        stack.append((name, end))
    if stack:
        advance(max(end for _, end in stack))
    return own


def breakdown(events: Sequence[Event]) -> Breakdown:
    """The figures of one iteration's events."""
    if not events:
        return Breakdown(*(0.0,) * 9)
    sums = {kind: sum(e.end - e.start for e in events if e.kind == kind) for kind in KINDS}
    comm = union((e.start, e.end) for e in events if e.kind == "send_recv")
    compute = union((e.start, e.end) for e in events if e.kind != "send_recv")
    both = union([*comm, *compute])
    span = max(e.end for e in events) - min(e.start for e in events)
    figures = [span, *(sums[kind] for kind in KINDS), length(compute), length(comm)]
    figures += [length(both) - length(compute), span - length(both)]
    return Breakdown(*(microseconds / 1e3 for microseconds in figures))


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same stretches of time, disjoint and in order."""
    joined: list[Interval] = []
    for start, end in sorted(intervals):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def length(disjoint: Iterable[Interval]) -> float:
    return sum(end - start for start, end in disjoint)


def top(events: Sequence[Event], count: int = 15) -> list[dict[str, Any]]:
    """The names that took the most time: a row each, with its kind, calls, time and share of it all."""
    total: dict[str, float] = defaultdict(float)
    calls: dict[str, int] = defaultdict(int)
    for event in events:
        total[event.name] += event.end - event.start
        calls[event.name] += 1
    everything = sum(total.values())
    names = sorted(total, key=lambda name: (-total[name], name))[:count]
    return [
        {
            "name": name,
            "kind": kind_of(name),
            "calls": calls[name],
            "time_ms": total[name] / 1e3,
            "share": total[name] / everything if everything else 0.0,
        }
        for name in names
    ]
