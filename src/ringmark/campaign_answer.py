"""The part of a record that says how right its answer was: what was looked at, what was found and allowed."""

from __future__ import annotations

import math
from collections.abc import Iterator

from ringmark import tolerance
from ringmark.cell import BOUND, Cell
from ringmark.record import Check, Record, Status, TensorError

_SAME = 1e-9  # a number made again from the same samples by the same formula


def answer(one: Record) -> Iterator[str]:
    """Every result was checked, and against something: a sane kernel's own error says what is allowed."""
    if one.check is None:
        return
    yield from _checked(one, one.check)
    if one.check.again is not None:
        again = one.check.again
        for sentence in (
            *_checked(one, again),
            *_balanced(one, again),
            *_alike(one, again),
            *_timed(one, again),
        ):
            yield f"again: {sentence}"


def _checked(one: Record, found: Check) -> Iterator[str]:
    yield from no_time("check_ms", found.check_ms)
    wanted = {"out"} if one.cell.phase == "fwd" else {"out", "dq", "dk", "dv"}
    if set(found.errors) != wanted:
        yield f"the check has {sorted(found.errors)}, the phase needs {sorted(wanted)}"
    for name, error in found.errors.items():
        yield from _in_the_world(one, name, error.worst_rank)
        yield from _graded(one, name, error)


def _balanced(one: Record, found: Check) -> Iterator[str]:
    wanted = set(tolerance.BALANCES) if one.cell.phase == "fwd_bwd" else set()
    if set(found.balance) != wanted:
        yield f"the sums are {sorted(found.balance)}, the phase needs {sorted(wanted)}"
    for name, sums in found.balance.items():
        sides = [
            found.errors[side].allowed for side in tolerance.BALANCES.get(name, ()) if side in found.errors
        ]
        due = tolerance.balance_allowed(*sides)
        yield from _held(name, "gap", sums.gap, sums.allowed, due, "its sides give")


def _alike(one: Record, found: Check) -> Iterator[str]:
    """Every row, where all keys weigh alike; records of an earlier ringmark have none of it."""
    if found.uniform is None:
        return
    due = tolerance.uniform_allowed(one.cell.shape.dtype)
    alike = found.uniform
    yield from _held("uniform", "error", alike.error, alike.allowed, due, "the dtype gives")
    yield from _in_the_world(one, "uniform", alike.worst_rank)


def _timed(one: Record, found: Check) -> Iterator[str]:
    """What the last timed iteration left; as old as the look at every row."""
    assert one.check is not None
    due = one.cell.phase == "fwd_bwd" and found.uniform is not None
    if (found.timed is not None) != due:
        yield f"what the timed iterations left is {'missing' if due else 'there, and there is no such thing'}"
    if found.timed is None:
        return
    sides = [error.allowed for name, error in one.check.errors.items() if name != "out"]
    again = tolerance.timed_allowed(*sides)
    yield from _held("timed", "gap", found.timed.gap, found.timed.allowed, again, "the gradients give")


def _held(name: str, what: str, value: float, allowed: float, due: float, source: str) -> Iterator[str]:
    """Something that may be so large at most: as large as it is due, and no less than nothing."""
    yield from differs(f"{name}: allowed", allowed, due, source)
    if not value >= 0:
        yield f"{name}: {what} is {value}: it is not negative"


def _in_the_world(one: Record, name: str, worst_rank: int) -> Iterator[str]:
    if not 0 <= worst_rank < one.cell.world_size:
        yield f"{name}: worst rank {worst_rank} is not in a world of {one.cell.world_size}"


def _graded(one: Record, name: str, error: TensorError) -> Iterator[str]:
    shape, world_size, own = one.cell.shape, one.cell.world_size, error.kernel_relative_error
    queries, keys = rows(one.cell)
    by_rows = name in ("out", "dq")
    total = world_size * (queries if by_rows else keys)
    looked_at = world_size * tolerance.rows_checked(queries, world_size) if by_rows else total
    if (error.rows_checked, error.rows_total) != (looked_at, total):
        told = f"{error.rows_checked} of {error.rows_total} rows checked"
        yield f"{name}: {told}, the check takes {looked_at} of {total}"
    again = tolerance.allowed(own, shape.dtype, max(1, total))
    yield from differs(f"{name}: allowed", error.allowed, again, "the kernel's own error gives", nothing=0)
    if not error.relative_error >= 0:
        yield f"{name}: relative_error is {error.relative_error}: an error is not negative"
    if one.status is Status.PASSED and not tolerance.kernel_is_sane(own, shape.dtype, max(1, total)):
        most = tolerance.own_max(shape.dtype, max(1, total))
        yield (
            f"{name}: the kernel alone is off by {own:.2e}, rounding explains {most:.2e} at most: "
            "a broken kernel is no measure"
        )


def rows(cell: Cell) -> tuple[int, int]:
    """How many rows of q and how many keys a rank has; on N ranks the bound has a problem on each."""
    seqlen = cell.seqlen_global // cell.world_size
    if cell.method != BOUND or cell.world_size == 1:
        return seqlen, seqlen
    return seqlen, max(1, cell.seqlen_global // 2) if cell.shape.causal else cell.seqlen_global


def no_time(name: str, value: float) -> Iterator[str]:
    if not (math.isfinite(value) and value >= 0):
        yield f"{name} is {value}: a time is not negative"


def differs(
    name: str, written: float, again: float, source: str = "the samples give", nothing: float = 1e-12
) -> Iterator[str]:
    if not math.isclose(written, again, rel_tol=_SAME, abs_tol=nothing):
        yield f"{name} is {written:.9g}, {source} {again:.9g}"
