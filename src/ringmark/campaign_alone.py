"""What one record must satisfy by itself: its numbers follow from its samples, its facts from each other.

Its status law is held already where it is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator

from ringmark import catalog, flags, flops, stats, tolerance
from ringmark.campaign_together import dicts
from ringmark.cell import BOUND, DTYPE_BYTES, Cell
from ringmark.record import Check, Record, Series, Status, TensorError

_SAME = 1e-9  # a number made again from the same samples by the same formula
_PROFILE_PARTS = ("compute_busy", "exposed_comm", "idle", "span", "comm_busy")
_SHORTEST_PROFILE = 0.5  # of the median: a profiler slows down, and one iteration varies


def timing(one: Record) -> Iterator[str]:
    """Every series' summary, and the rate, follow from the samples."""
    if one.timing is None:
        return
    for protocol, series in one.timing.series.items():
        for sentence in _series(one, series):
            yield f"{protocol}: {sentence}"
    cell = one.cell
    total = flops.cell_flops(cell)
    rate = flops.tflops_per_gpu(total, one.timing.headline.summary.median, cell.world_size)
    yield from _differs("tflops_per_gpu", one.timing.tflops_per_gpu, rate)
    for name in ("first_call_ms", "floor_ms"):
        value = getattr(one.timing, name)
        if not (math.isfinite(value) and value >= 0):
            yield f"{name} is {value}: a time is not negative"


def _series(one: Record, series: Series) -> Iterator[str]:
    rows, walls, asked = series.samples_ms, series.wall_ms, one.asked
    shapes = {(len(rows), len(row)) for row in rows} | {(len(walls), len(row)) for row in walls}
    if shapes != {(one.cell.world_size, series.summary.n)}:
        yield f"the samples are not {one.cell.world_size} ranks x {series.summary.n} iterations"
        return
    if not all(math.isfinite(value) and value > 0 for row in rows for value in row):
        yield "a sample is no positive time"
        return
    again = stats.summarize(stats.slowest_per_iteration(rows))
    for name in ("median", "ci_low", "ci_high", "ci_level", "p5", "p95"):
        yield from _differs(name, getattr(series.summary, name), getattr(again, name))
    apart = stats.clock_disagreement(rows, walls)
    yield from _differs("clock_disagreement", series.clock_disagreement, apart[0])
    yield from _flagged(series, [*flags.of_clocks(*apart), *_machine(one)])
    n, within = again.n, stats.known_within(again, asked.ci_target)
    if n > asked.max_iterations or (n < asked.min_iterations and series.stopped_by != "time_limit"):
        yield f"{n} iterations, asked were {asked.min_iterations} to {asked.max_iterations}"
    if series.stopped_by == "ci_target" and not within:
        yield "it says that the interval reached its target, and it did not"
    if series.stopped_by == "max_iterations" and n != asked.max_iterations:
        yield f"it says that it reached the most iterations, and it has {n} of {asked.max_iterations}"


def _machine(one: Record) -> list[str]:
    preflight = one.environment.get("preflight_flags")
    slow = map(str, preflight) if isinstance(preflight, list) else ()
    return [*slow, *flags.throttled(one.environment)]


def _flagged(series: Series, due: list[str]) -> Iterator[str]:
    for flag in sorted(set(due) - set(series.flags)):
        yield f"the flag {flag} is due and missing"
    for flag in sorted(set(series.flags) - set(due)):
        yield f"nothing in the record gives the flag {flag}"


def peak(one: Record) -> Iterator[str]:
    """No rate is above what the hardware's maker states."""
    if one.timing is None or one.ran is None:
        return
    stated = flops.peak_tflops(one.ran.device, one.cell.shape.dtype)
    if stated is not None and one.timing.tflops_per_gpu > stated.tflops:
        yield (
            f"{one.timing.tflops_per_gpu:.1f} TFLOP/s per GPU is above the device's peak of {stated.tflops} "
            f"({stated.source})"
        )


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
    yield from _differs(f"{name}: allowed", allowed, due, source)
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
    yield from _differs(f"{name}: allowed", error.allowed, again, "the kernel's own error gives", nothing=0)
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


def memory(one: Record) -> Iterator[str]:
    """The peak is the highest rank's, the inputs are the cell's, and what is above them follows.

    On CUDA exactly: what was there before the iteration are the inputs. On a CPU the process was there too,
    so only the most that can be above them is known.
    """
    if one.memory is None:
        return
    found, ranks = one.memory, one.memory.per_rank_peak_mib
    inputs, results = inputs_and_results_mib(one.cell)
    yield from _differs("inputs_mib", found.inputs_mib, inputs, "the cell's tensors are")
    if len(ranks) != one.cell.world_size:
        yield f"memory has {len(ranks)} ranks of {one.cell.world_size}"
    elif found.peak_mib != max(ranks):
        yield f"peak_mib is {found.peak_mib}, its ranks' highest is {max(ranks)}"
    above, most = found.peak_above_inputs_mib, found.peak_mib - found.inputs_mib
    if found.source == "cuda_allocator":
        yield from _differs("peak_above_inputs_mib", above, most, "the peak without the inputs is")
        if min(ranks, default=0.0) < inputs + results:
            yield f"a rank's peak is {min(ranks)} MiB: its inputs and results alone are {inputs + results}"
    elif not 0 <= above <= (most if found.peak_mib else 0.0):  # no peak: a system without /proc
        yield f"peak_above_inputs_mib is {above}: of a peak of {found.peak_mib}, {most} are not inputs"


def inputs_and_results_mib(cell: Cell) -> tuple[float, float]:
    """What a rank is given (q, k, v and dout) and what it gives (out, dq, dk, dv)."""
    shape, (queries, keys) = cell.shape, rows(cell)
    number = shape.batch * shape.head_dim * DTYPE_BYTES[shape.dtype] / 2**20
    q, k = queries * shape.num_heads_q * number, keys * shape.num_heads_kv * number
    return (2 * q + 2 * k, 2 * q + 2 * k) if cell.phase == "fwd_bwd" else (q + 2 * k, q)


def names(one: Record) -> Iterator[str]:
    """What ran is what the cell says."""
    if one.ran is None:
        return
    if one.ran.world_size != one.cell.world_size:
        yield f"{one.ran.world_size} ranks ran, the mesh is {one.cell.mesh}"
    ours = one.ran.implementation == "ringmark"
    if ours and one.cell.method in catalog.peer_names():  # the folder is looked at last: it takes longest
        yield f"{one.cell.method} is somebody else's, and the record says that ringmark's own code ran"
    if not ours and one.cell.method in catalog.native_names():
        yield f"{one.cell.method} is ringmark's own, and the record says that {one.ran.implementation} ran"
    asked = one.cell.kernel
    if asked != "auto" and one.ran.implementation == "ringmark" and one.ran.kernel != asked:
        yield f"kernel {one.ran.kernel} ran, {asked} was asked for"


def _differs(
    name: str, written: float, again: float, source: str = "the samples give", nothing: float = 1e-12
) -> Iterator[str]:
    if not math.isclose(written, again, rel_tol=_SAME, abs_tol=nothing):
        yield f"{name} is {written:.9g}, {source} {again:.9g}"


def machine(one: Record) -> Iterator[str]:
    """A measured cell says on what: every rank is in its environment, on CUDA with a GPU of its own."""
    if one.status is not Status.PASSED or one.timing is None or one.memory is None:
        return
    world_size = one.cell.world_size
    ranks = [rank for node in dicts(one.environment.get("nodes")) for rank in dicts(node.get("ranks"))]
    if [rank.get("rank") for rank in ranks] != list(range(world_size)):
        yield f"the environment has not the ranks 0 to {world_size - 1} on its nodes"
    for moment in ("before", "after"):
        states = len(flags.ranks_at(one.environment, moment))
        if states != world_size:
            yield f"the environment has the state of {states} of {world_size} ranks {moment}"
    on_cuda = {series.clock == "cuda_events" for series in one.timing.series.values()}
    on_cuda.add(one.memory.source == "cuda_allocator")
    if len(on_cuda) > 1:
        yield "its clocks and its memory are not of one kind of device"
    if True in on_cuda:
        gpus = dicts([rank.get("gpu") for rank in ranks])
        if not all(gpu.get("name") for gpu in gpus):
            yield "a rank ran on CUDA and names no GPU"
        uuids = [gpu["uuid"] for gpu in gpus if isinstance(gpu.get("uuid"), str)]
        if len(set(uuids)) < len(uuids):
            yield f"{len(uuids)} ranks share the GPUs of {len(set(uuids))}"


def profile(one: Record) -> Iterator[str]:
    """A profile stands where it was asked for, a row for each rank, and its parts make its whole."""
    if one.profile is None or one.timing is None:
        return
    if not one.asked.profile:
        yield "there is a profile that nobody asked for"
    ranks = dicts(one.profile.get("ranks"))
    if len(ranks) != one.cell.world_size:
        yield f"the profile has {len(ranks)} ranks of {one.cell.world_size}"
    longest = 0.0
    for number, rank in enumerate(ranks):
        parts = [rank.get(f"{name}_ms") for name in _PROFILE_PARTS]
        if not all(isinstance(part, (int, float)) and part >= 0 for part in parts):
            yield f"the profile of rank {number} lacks a time"
            continue
        busy, exposed, idle, span, communicates = map(float, parts)  # type: ignore[arg-type]
        longest = max(longest, span)
        if not math.isclose(busy + exposed + idle, span, rel_tol=1e-3, abs_tol=1e-3):
            yield f"the profile of rank {number}: {busy} + {exposed} + {idle} ms are not its span of {span}"
        if exposed > communicates * (1 + 1e-3) + 1e-3:
            yield f"the profile of rank {number} exposes more communication than there is"
    if ranks and longest < _SHORTEST_PROFILE * one.timing.headline.summary.median:
        yield "the profiled iteration is far shorter than those that were timed"


ALONE: tuple[Callable[[Record], Iterable[str]], ...] = (timing, peak, answer, memory, names, profile, machine)
