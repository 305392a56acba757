"""What one record must satisfy by itself: its numbers follow from its samples, its facts from each other.

Its status law is held already where it is read.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from datetime import datetime

from ringmark import catalog, flags, flops, stats
from ringmark.campaign_alike import dicts
from ringmark.campaign_answer import answer, differs, no_time, rows
from ringmark.cell import DTYPE_BYTES, Cell
from ringmark.record import Record, Series, Status

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
    yield from differs("tflops_per_gpu", one.timing.tflops_per_gpu, rate)
    for name in ("first_call_ms", "floor_ms"):
        yield from no_time(name, getattr(one.timing, name))


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
        yield from differs(name, getattr(series.summary, name), getattr(again, name))
    apart = stats.clock_disagreement(rows, walls)
    yield from differs("clock_disagreement", series.clock_disagreement, apart[0])
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


def memory(one: Record) -> Iterator[str]:
    """The peak is the highest rank's, the inputs are the cell's, and what is above them follows.

    On CUDA exactly: what was there before the iteration are the inputs. On a CPU the process was there too,
    so only the most that can be above them is known.
    """
    if one.memory is None:
        return
    found, ranks = one.memory, one.memory.per_rank_peak_mib
    inputs, results = inputs_and_results_mib(one.cell)
    yield from differs("inputs_mib", found.inputs_mib, inputs, "the cell's tensors are")
    if len(ranks) != one.cell.world_size:
        yield f"memory has {len(ranks)} ranks of {one.cell.world_size}"
    elif found.peak_mib != max(ranks):
        yield f"peak_mib is {found.peak_mib}, its ranks' highest is {max(ranks)}"
    above, most = found.peak_above_inputs_mib, found.peak_mib - found.inputs_mib
    if found.source == "cuda_allocator":
        yield from differs("peak_above_inputs_mib", above, most, "the peak without the inputs is")
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
    yield from _told(one, ours)
    asked = one.cell.kernel
    if asked != "auto" and ours and one.ran.kernel != asked:
        yield f"kernel {one.ran.kernel} ran, {asked} was asked for"


def _told(one: Record, ours: bool) -> Iterator[str]:
    """What no other number follows from, and is no number, or no time, all the same."""
    assert one.ran is not None
    for name in ("bytes_sent_intra", "bytes_sent_inter"):
        sent = getattr(one.ran, name)
        if sent is None and ours and one.status is Status.PASSED:
            yield f"{name} is missing: what ringmark's own methods send is counted"
        if sent is not None and sent < 0:
            yield f"{name} is {sent}: it is not negative"
    try:
        datetime.fromisoformat(one.ran.started_at)
    except ValueError:
        yield f"started_at is {one.ran.started_at!r}: that is no date with a time"


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
