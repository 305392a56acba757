"""Where a ring loses against its kernel alone: the same iteration without hops, and without waiting for them.

    torchrun --nproc-per-node 4 benchmarks/without_hops.py --method burst --kernel flash4 --seqlen 65536
    ... --phase fwd --option head_groups=8 --nodes 2 --heads 40 --rounds 3

    kernel alone    the bound: one call, each rank by itself
    as it is        what a campaign times
    no waiting      copy engines copy as ever, and no stream waits for a flag: what the waits cost is gone
    no hops         nothing is sent; what would arrive is random numbers: kernels, sums and launches remain

All take turns, a round after the other, as clocks drift. The last two give wrong answers in the time of right
ones, so they are no method's time and no record: they say which part of a loss is which.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median
from typing import Any
from unittest import mock

sys.path.insert(0, str(Path(__file__).parent.parent / "src"))

from ringmark.bench import measure, timer
from ringmark.bench import problem as problems
from ringmark.cell import BOUND, Cell, MeshShape, Shape, parse_option
from ringmark.comm.copy_engine import CopyEngineRing
from ringmark.comm.mesh import Mesh, start
from ringmark.comm.ring import Exchange, Hop, Ring
from ringmark.comm.stream_flags import Flags
from ringmark.record import Asked

ALONE, AS_IT_IS, NO_WAITING, NO_HOPS = "kernel alone", "as it is", "no waiting", "no hops"


class Random:
    """Hops of which nothing is sent: what is received into holds numbers, as zeros would be faster."""

    def __init__(self) -> None:
        self.filled: set[int] = set()

    def exchange(self, ring: Ring, deliveries: Any, arriving: Any, room: Any, as_of: object) -> Hop:
        """In the place of `Ring._exchange`."""
        by_copies = isinstance(ring, CopyEngineRing)
        received = ring.copies.slots.take(arriving, room) if by_copies else ring.pool.take(arriving)
        for tensor in received.tensors:
            if tensor.numel() and tensor.data_ptr() not in self.filled:
                self.filled.add(tensor.data_ptr())
                tensor.normal_() if tensor.dim() == 4 else tensor.fill_(10.0)  # lse and delta
        return Exchange([], [delivery.parcel.hold() for delivery in deliveries], received)


@contextlib.contextmanager
def hops_of(variant: str, random: Random) -> Iterator[None]:
    """Inside, hops are as this variant has them."""
    with contextlib.ExitStack() as changes:
        for kind in (Ring, CopyEngineRing) if variant == NO_HOPS else ():
            exchange = lambda ring, *given: random.exchange(ring, *given)  # noqa: E731 - a method of the class
            changes.enter_context(mock.patch.object(kind, "_exchange", exchange))
        for wait in ("wait_ready", "wait_data") if variant == NO_WAITING else ():
            changes.enter_context(mock.patch.object(Flags, wait))
        yield


def taken_apart(mesh: Mesh, cell: Cell, asked: Asked, rounds: int) -> dict[str, list[float]]:
    """The medians of every variant, in ms, one for each round."""
    whole, transport = iteration(cell, mesh)
    alone, _ = iteration(dataclasses.replace(cell, method=BOUND, options={}), mesh)
    bodies = {ALONE: alone, AS_IT_IS: whole, NO_WAITING: whole, NO_HOPS: whole}
    if "copy_engine" not in transport:
        del bodies[NO_WAITING]
    random = Random()
    found: dict[str, list[float]] = {variant: [] for variant in bodies}
    for _ in range(rounds):
        for variant, body in bodies.items():
            with hops_of(variant, random):
                found[variant].append(timer.measure(body, mesh, "isolated", asked).summary.median)
    if not random.filled:
        sys.exit(f"{cell.method} made no hop of a ring on {cell.mesh}: there is nothing to leave out")
    return found


def iteration(cell: Cell, mesh: Mesh) -> tuple[Callable[[], None], str]:
    """One iteration of a cell, which has run once, and what moves its bytes."""
    method, kernel, refusal = measure.prepare(cell, mesh)
    if refusal is not None or method is None or kernel is None:
        sys.exit(f"{cell.method}: {refusal}")
    method.setup(mesh, kernel, causal=cell.shape.causal)
    body = measure.iteration(cell, method, problems.make(cell, method, mesh, "0", mesh.device))
    body()
    return body, str(method.settings().get("transport", ""))


def shown(found: dict[str, list[float]], cell: Cell) -> str:
    """A line for each variant: its median in ms, the kernel alone over that, and every round."""
    bound = median(found[ALONE])
    lines = [f"{cell.row} {cell.kernel} {cell.mesh} {cell.seqlen_global} {cell.phase}"]
    for variant, times in found.items():
        every = ", ".join(f"{time_ms:.3f}" for time_ms in times)
        lines.append(f"{variant:<13} {median(times):10.3f} ms  {bound / median(times):.3f}  ({every})")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description="Take the time of a ring apart, on the ranks of torchrun.")
    parser.add_argument("--method", default="burst")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--kernel", default="auto")
    parser.add_argument("--seqlen", type=int, nargs="+", required=True)
    parser.add_argument("--heads", type=int, default=40)
    parser.add_argument("--kv-heads", type=int)
    parser.add_argument("--dtype", default="bf16")
    parser.add_argument("--phase", nargs="+", default=["fwd", "fwd_bwd"])
    parser.add_argument("--nodes", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--warmup-s", type=float, default=2.0)
    given = parser.parse_args()
    options = {name: parse_option(value) for name, value in (one.split("=", 1) for one in given.option)}
    mesh = start(given.nodes)
    shape = Shape(1, given.heads, given.kv_heads or given.heads, 128, given.dtype, "causal")
    asked = Asked(
        min_iterations=6, max_iterations=10, ci_target=0.01, time_limit_s=5, warmup_s=given.warmup_s
    )
    for seqlen in given.seqlen:
        for phase in given.phase:
            at = MeshShape(mesh.nodes, mesh.gpus)
            cell = Cell(given.method, seqlen, shape, phase, at, given.kernel, options)
            found = taken_apart(mesh, cell, asked, given.rounds)
            if mesh.rank == 0:
                print(shown(found, cell), flush=True)


if __name__ == "__main__":
    main()
