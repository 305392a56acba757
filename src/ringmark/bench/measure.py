"""One cell, measured: may it run, is it right, how long does it take, how much memory, where the time goes.

The order is the law of the product: the answer is checked at the measured size before any clock starts, and
again, on other numbers, after it has stopped: what was timed is what was checked.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import torch

from ringmark import flags, flops, kernels, methods, peers
from ringmark.bench import check, environment, gather, memory, replay, timer
from ringmark.bench import problem as problems
from ringmark.bench.progress import Reporter
from ringmark.cell import Cell
from ringmark.comm.mesh import Mesh
from ringmark.errors import UserError
from ringmark.job import Item
from ringmark.kernels.base import Kernel
from ringmark.methods.base import Method, reason_of, settings_of
from ringmark.record import Asked, Check, Failure, Ran, Record, Series, Status, TensorError, Timing, headline

Refusal = tuple[Status, str]


def measure_cell(
    item: Item, campaign: str, mesh: Mesh, reporter: Reporter, run_id: str, order: int, before: dict[str, Any]
) -> Record:
    """The record of one cell, equal on every rank."""
    cell, asked = item.cell, item.asked
    started_at = datetime.now(timezone.utc).isoformat(timespec="seconds")
    base: dict[str, Any] = {"cell": cell, "asked": asked, "campaign": campaign}
    method, kernel, refusal = prepare(cell, mesh)
    if refusal is not None or method is None or kernel is None:
        status, reason = refusal or (Status.CRASHED, "no method")
        return Record(**base, status=status, failure=Failure(reason), environment=before)

    method.setup(mesh, kernel, causal=cell.shape.causal)
    reporter.at("inputs")
    problem = problems.make(cell, method, mesh, problems.numbers(asked), mesh.device)

    def wrong(checked: Check, stage: str, ran: Ran) -> Record:
        found = checked.again or checked
        failure = Failure(wrong_sentence(found), rank=worst_rank(found), stage=stage)
        return Record(
            **base, status=Status.WRONG, ran=ran, check=checked, failure=failure, environment=before
        )

    reporter.at("check")
    checked = check.check(cell, method, kernel, problem, mesh)
    body = iteration(cell, method, problem)
    if not checked.ok:
        ran = what_ran(cell, method, kernel, mesh, run_id, order, started_at, (0, 0))
        return wrong(checked, "check", ran)
    profiled = None
    with check.untouched(cell, problem):
        reporter.at("timing")
        timing, sent = time_cell(cell, asked, body, mesh)
        timed = replay.left(problem)
        reporter.at("memory")
        used = memory.measure(body, problem, mesh)
        gap = replay.gap(timed, replay.left(problem), mesh)
        if asked.profile:
            from ringmark.bench import profile

            reporter.at("profile")
            profiled = profile.profile(body, mesh, item.out)
    ran = what_ran(cell, method, kernel, mesh, run_id, order, started_at, sent)
    reporter.at("check again")
    problem.draw(problems.numbers(asked, again=True))
    with timer.no_garbage_collection():  # as it was timed
        again = check.check(cell, method, kernel, problem, mesh, again=True)
    checked = dataclasses.replace(
        checked, again=dataclasses.replace(again, timed=replay.graded(gap, checked))
    )
    if not checked.ok:
        return wrong(checked, "check again", ran)
    impossible = above_peak(timing, ran, cell)
    if impossible:
        failure = Failure(impossible, stage="timing")
        return Record(
            **base, status=Status.CRASHED, ran=ran, check=checked, failure=failure, environment=before
        )
    around = {**before, "after": environment.state(mesh)}
    return Record(
        **base,
        status=Status.PASSED,
        ran=ran,
        timing=flagged(timing, [*before.get("preflight_flags", []), *flags.throttled(around)]),
        check=checked,
        memory=used,
        profile=profiled,
        environment=around,
    )


def flagged(timing: Timing, told: list[str]) -> Timing:
    """A timing whose every series carries what a reader must know of the machine while it ran."""
    series: dict[Any, Series] = {
        name: dataclasses.replace(one, flags=[*one.flags, *told]) for name, one in timing.series.items()
    }
    return dataclasses.replace(timing, series=series)


def prepare(cell: Cell, mesh: Mesh) -> tuple[Method | None, Kernel | None, Refusal | None]:
    """The method and kernel of a cell, or why it cannot run; every rank comes to the same answer."""
    method, kernel, refusal = None, None, None
    try:
        method = method_of(cell)
        refusal = refusal_of(method, cell)
        if refusal is None:
            kernel = kernels.select(cell.kernel, cell.shape, mesh.device)
    except UserError as error:
        refusal = (Status.UNSUPPORTED, str(error))
    except ImportError as error:
        refusal = (Status.UNAVAILABLE, f"{type(error).__name__}: {error}")
    refusals: list[Refusal | None] = environment.gathered(mesh, refusal)
    return method, kernel, next((one for one in refusals if one is not None), None)


def method_of(cell: Cell) -> Method:
    """A cell's method or peer, with the cell's options."""
    loader = methods if cell.method in methods.names() else peers
    method: Method = loader.load(cell.method)(**cell.options)
    return method


def refusal_of(method: Method, cell: Cell) -> Refusal | None:
    if reason := reason_of("unavailable()", method.unavailable()):
        return Status.UNAVAILABLE, reason
    if reason := reason_of("unsupported(cell)", method.unsupported(cell)):
        return Status.UNSUPPORTED, reason
    missing = kernels.availability().get(cell.kernel)
    return (Status.UNAVAILABLE, f"kernel {cell.kernel}: {missing}") if missing else None


def iteration(cell: Cell, method: Method, problem: problems.Problem) -> Callable[[], None]:
    """One iteration: forward with grad enabled; fwd_bwd builds a fresh graph and runs it back."""

    def body() -> None:
        for tensor in (problem.q, problem.k, problem.v):
            tensor.grad = None
        out = method.forward(problem.q, problem.k, problem.v)
        if cell.phase == "fwd_bwd":
            torch.autograd.backward(out, problem.dout)

    return body


def time_cell(
    cell: Cell, asked: Asked, body: Callable[[], None], mesh: Mesh
) -> tuple[Timing, tuple[int, int]]:
    """The cell's timing, and the bytes (intra, inter) that the busiest rank sends in one iteration."""
    mesh.traffic.reset()
    first = timer.first_call_ms(body, mesh)
    sent = (mesh.traffic.intra, mesh.traffic.inter)
    series: dict[Any, Series] = {name: timer.measure(body, mesh, name, asked) for name in asked.protocols}
    intra, inter = (int(max(counts)) for counts in zip(*gather.rows(mesh, sent), strict=True))
    total = flops.cell_flops(cell)
    rate = flops.tflops_per_gpu(total, series[headline(series)].summary.median, cell.world_size)
    timing = Timing(first_call_ms=first, floor_ms=timer.floor_ms(mesh), series=series, tflops_per_gpu=rate)
    return timing, (intra, inter)


def what_ran(
    cell: Cell,
    method: Method,
    kernel: Kernel,
    mesh: Mesh,
    run_id: str,
    order: int,
    started_at: str,
    sent: tuple[int, int],
) -> Ran:
    settings = settings_of(method)
    counted = method.implementation == Method.implementation  # a peer's transfers are not ours to count
    return Ran(
        run_id=run_id,
        order=order,
        kernel=str(settings.pop("kernel", kernel.name)),
        kernel_version=str(settings.pop("kernel_version", kernel.version())),
        layout=method.layout,
        opt_bwd=settings.pop("opt_bwd", None),
        deterministic=kernel.deterministic,
        device=environment.device_name(mesh),
        backend=mesh.backend,
        transport=str(settings.pop("transport", mesh.backend)),
        world_size=cell.world_size,
        bytes_sent_intra=sent[0] if counted else None,
        bytes_sent_inter=sent[1] if counted else None,
        started_at=started_at,
        settings=settings,
        label=method.label,
        implementation=method.implementation,
    )


def above_peak(timing: Timing, ran: Ran, cell: Cell) -> str | None:
    """A rate above the hardware's peak is a bug of ours: the sentence that fails the cell."""
    peak = flops.peak_tflops(ran.device, cell.shape.dtype)
    if peak is None or timing.tflops_per_gpu <= peak.tflops:
        return None
    return (
        f"{timing.tflops_per_gpu:.1f} TFLOP/s per GPU is above the peak of {peak.tflops} that {peak.source} "
        "states: the measurement is wrong, please report it"
    )


def worst_rank(checked: Check) -> int | None:
    """Where to look first: a wrong out makes wrong gradients, also on ranks that did nothing wrong."""
    errors = (error.worst_rank for error in checked.errors.values() if not error.ok)
    alike = checked.uniform.worst_rank if checked.uniform and not checked.uniform.ok else None
    return next(errors, alike)


def wrong_sentence(checked: Check) -> str:
    bad = [
        f"{name} is off by {error.relative_error:.2e} ({_limit(error)}), worst on rank {error.worst_rank}"
        + (f", and {error.nonfinite} of its elements are no numbers" if error.nonfinite else "")
        for name, error in checked.errors.items()
        if not error.ok
    ]
    bad += [
        f"{sides} is {sums.gap:.2e} of its scale where attention makes it zero (allowed {sums.allowed:.2e})"
        for sides, sums in checked.balance.items()
        if not sums.ok
    ]
    timed = checked.timed
    if timed is not None and not timed.ok:
        bad.append(
            f"the last timed iteration left gradients that differ by {timed.gap:.2e} of their norm (allowed "
            f"{timed.allowed:.2e}) from those of one that was not timed"
        )
    alike = checked.uniform
    if alike is not None and not alike.ok:
        bad.append(
            f"where all keys weigh alike a row of out is off by {alike.error:.2e} (allowed "
            f"{alike.allowed:.2e}), worst on rank {alike.worst_rank}: it does not see the keys of its mask"
        )
    return "the answer is wrong: " + "; ".join(bad)


def _limit(error: TensorError) -> str:
    if error.allowed:
        return f"allowed {error.allowed:.2e}"
    own = error.kernel_relative_error
    return f"nothing is allowed: the kernel alone is off by {own:.2e}, which is no rounding"
