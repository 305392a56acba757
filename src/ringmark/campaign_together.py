"""What the records of one campaign must satisfy together: comparable, complete, no cell twice."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from ringmark import flops, state, stats
from ringmark.campaign_alike import one_table_one_way, own_kernel
from ringmark.campaign_finding import Finding, Named
from ringmark.cell import BOUND
from ringmark.record import Record, Status

NO_BOUND = "its bound (method single, same kernel) is not measured"
_FASTER_THAN_BOUND = 1.05


def forward_is_shorter(found: Named) -> Iterator[Finding]:
    """Forward and backward together take longer than the forward alone.

    Medians the wrong way round whose intervals overlap, or are of too few iterations to be sure of, only say
    that the machine was not quiet.
    """
    for where, one, forward in _with_forward(found):
        both, alone = _summary(one), _summary(forward)
        if both.median > alone.median:
            continue
        apart, sure = both.ci_high < alone.ci_low, min(both.ci_level, alone.ci_level) >= stats.LEVEL
        sentence = f"fwd_bwd takes {both.median:.3f} ms, its forward alone {alone.median:.3f} ms"
        doubt = "" if apart and sure else ": of too few iterations" if apart else ": within their intervals"
        yield Finding(where, sentence + doubt, apart and sure)


def backward_within_peak(found: Named) -> Iterator[Finding]:
    """What the backward takes more than the forward is no rate above the device's peak.

    Where the longest difference that the intervals leave is possible, it is a note.
    """
    for where, one, forward in _with_forward(found):
        stated = flops.peak_tflops(one.ran.device, one.cell.shape.dtype) if one.ran else None
        both, alone = _summary(one), _summary(forward)
        if stated is None or both.median <= alone.median:
            continue
        operations = flops.cell_flops(one.cell) - flops.cell_flops(forward.cell)
        rate, least = (
            flops.tflops_per_gpu(operations, time_ms, one.cell.world_size)
            for time_ms in (both.median - alone.median, both.ci_high - alone.ci_low)
        )
        if rate > stated.tflops:
            sentence = (
                f"its backward (fwd_bwd - fwd) would run at {rate:.1f} TFLOP/s per GPU, the peak is "
                f"{stated.tflops}"
            )
            apart = least > stated.tflops
            yield Finding(where, sentence + ("" if apart else ": within their intervals"), apart)


def _with_forward(found: Named) -> Iterator[tuple[str, Record, Record]]:
    """Each timed fwd_bwd with its forward: that of its own run, else the fastest of the same state."""
    forwards: dict[Any, Record] = {}
    for _, one in found:
        if one.timing and one.cell.phase == "fwd":
            for place in _places(one):
                known = forwards.setdefault(place, one)
                if _summary(one).median < _summary(known).median:
                    forwards[place] = one
    for where, one in found:
        if one.timing and one.cell.phase == "fwd_bwd":
            forward = next((forwards[place] for place in _places(one) if place in forwards), None)
            if forward is not None:
                yield where, one, forward


def _places(one: Record) -> list[tuple[Any, ...]]:
    """Where the other phase of a cell is looked for, in this order."""
    cell, ran = one.cell, one.ran
    same = (cell.row, cell.shape, cell.mesh, cell.kernel, cell.seqlen_global, ran and ran.kernel)
    return [("run", ran and ran.run_id, one.asked.repeat, *same), ("state", _state(one), *same)]


def _state(one: Record) -> str | None:
    """The state of ringmark that measured, where it is known."""
    return state.named(state.source_of(one))


def _summary(one: Record) -> stats.Summary:
    assert one.timing is not None
    return one.timing.headline.summary


def duplicates(found: Named) -> Iterator[Finding]:
    """No cell has two records of one repeat, and no two cells were the same step of one run."""
    seen: dict[Any, str] = {}
    for where, one in found:
        keys: list[tuple[Any, ...]] = [("cell", one.cell.key, one.asked.repeat)]
        if one.ran is not None:
            keys.append(("step", one.ran.run_id, one.ran.order))
        for key in keys:
            if key in seen:
                yield Finding(where, f"is a second record of {' '.join(map(str, key))}, beside {seen[key]}")
            seen.setdefault(key, where)


def one_campaign(found: Named) -> Iterator[Finding]:
    """All records say that they are of one campaign, and no two methods stand under one label."""
    most = Counter(one.campaign for _, one in found).most_common(1)
    labels: dict[str, tuple[str, str]] = {}
    for where, one in found:
        if one.campaign != most[0][0]:
            yield Finding(where, f"is of the campaign {one.campaign!r}, the others are of {most[0][0]!r}")
        if one.ran is None:
            continue
        method, there = labels.setdefault(one.ran.label, (one.cell.method, where))
        if method != one.cell.method:
            sentence = f"{one.cell.method} calls itself {one.ran.label!r}, as {method} does in {there}"
            yield Finding(where, f"{sentence}: nobody could tell them apart")


def program(found: Named) -> Iterator[Finding]:
    """Worth knowing: records made by different commits of ringmark, or by checkouts with different changes.

    One commit whose files were not the same everywhere, and no record that says they were changed, is a
    problem: a name was given that is not true.
    """
    states: dict[str, str] = {}
    trees: dict[str, tuple[str, str]] = {}
    for where, one in found:
        named, tree = _state(one), state.tree_of(one)
        if named is None:
            continue
        states.setdefault(named, where)
        if tree is None or state.is_changed(state.source_of(one)):
            continue
        first, there = trees.setdefault(named, (tree, where))
        if tree != first:
            yield Finding(
                where,
                f"{named} is the tree {tree[:12]} here and {first[:12]} in {there}: one of them measured "
                "something else; 'ringmark campaign CONFIG --again' moves aside what other files than those "
                "here have measured, and measures it again",
            )
    if len(states) > 1:
        listed = ", ".join(map(_short, states))
        yield Finding(next(iter(states.values())), f"several states of ringmark measured: {listed}", False)


def checked_less(found: Named) -> Iterator[Finding]:
    """Worth knowing: records whose answer was checked in fewer ways, as an earlier ringmark did."""
    checks = [(where, one.check) for where, one in found if one.status is Status.PASSED and one.check]
    for what, places in (
        ("before their timing and not after it", [w for w, one in checks if not one.again]),
        (
            "without a look at every row where all keys weigh alike",
            [w for w, one in checks if one.again and not one.again.uniform],
        ),
    ):
        if places:
            sentence = f"{len(places)} records were checked {what}, this is the first"
            yield Finding(places[0], sentence, False)


def uncounted(found: Named) -> Iterator[Finding]:
    """Worth knowing: a method of ours that says it sent nothing, though every rank needs what others hold."""
    silent: dict[str, list[str]] = defaultdict(list)
    for where, one in found:
        ran = one.ran
        if one.status is not Status.PASSED or ran is None or ran.implementation != "ringmark":
            continue
        sent = (ran.bytes_sent_intra, ran.bytes_sent_inter)
        if sent == (0, 0) and one.cell.world_size > 1 and one.cell.method != BOUND:
            silent[one.cell.method].append(where)
    for method, places in silent.items():
        sentence = (
            f"{len(places)} records of {method} on several ranks say that nothing was sent, this is the "
            "first: what it sends past ringmark's own comm must be told to mesh.traffic"
        )
        yield Finding(places[0], sentence, False)


def bounds(found: Named) -> Iterator[Finding]:
    """Every timed row has its bound, the same kernel alone by the same state; none is clearly faster."""
    alone: dict[tuple[Any, ...], dict[str | None, float]] = defaultdict(dict)
    for _, one in found:
        if one.timing and one.cell.method == BOUND:
            known, by = alone[_problem(one)], _state(one)
            known[by] = min(_summary(one).median, known.get(by, math.inf))
    for where, one in found:
        if one.timing is None or one.cell.method == BOUND or own_kernel(one) is None:
            continue
        known, time_ms = alone.get(_problem(one), {}), _summary(one).median
        bound = known.get(_state(one))
        if bound is None:
            yield Finding(where, NO_BOUND + _only_by(known, _state(one)), False)
        elif bound > _FASTER_THAN_BOUND * time_ms:
            sentence = f"{time_ms:.3f} ms is less than its bound, {bound:.3f} ms for the same work alone"
            yield Finding(where, sentence, False)


def _only_by(states: Iterable[str | None], mine: str | None) -> str:
    """A bound that another state of ringmark measured is none: kernels and engine may have changed."""
    others = ", ".join(sorted(_short(other) for other in states))
    return f" by its commit ({_short(mine)}), only by {others}" if others else ""


def _short(named: str | None) -> str:
    return (named or "unknown").removeprefix("commit ")


def _problem(one: Record) -> tuple[Any, ...]:
    cell = one.cell
    return (cell.seqlen_global, cell.shape, cell.phase, cell.mesh, one.ran.kernel if one.ran else None)


TOGETHER: tuple[Callable[[Named], Iterable[Finding]], ...] = (
    forward_is_shorter,
    backward_within_peak,
    duplicates,
    one_campaign,
    one_table_one_way,
    program,
    checked_less,
    uncounted,
    bounds,
)
