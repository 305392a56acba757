"""Bugs planted in the methods, one at a time: each must be caught, and the table says by what.

The checks, on a 2 x 2 mesh: out, dq, dk and dv against exact attention, as in the other tests, and `sums`:
one step's gradients are 1 and every other's 2**-9 in bf16, which only a float32 sum adds up to 1 + 2**-7.
Ranks are forked, so no bug outlives its world.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any
from unittest import mock

import pytest
import torch

import exact
import planted
from exact import NAMES, Problem
from ringmark import geometry, kernels, methods
from ringmark.cell import OptionValue
from ringmark.comm import homeward, ring
from ringmark.comm.mesh import Mesh
from ringmark.comm.parcel import Parcel
from ringmark.methods import ring as ring_method
from world import run_world

Options = dict[str, OptionValue]
BURST: tuple[str, Options] = ("burst", {"side": "q", "head_groups": 2})
DOUBLE_RING: tuple[str, Options] = ("double_ring", {"head_groups": 2})
ZIGZAG: tuple[str, Options] = ("zigzag", {"head_groups": 2})  # flat, over two nodes
STRIPE: tuple[str, Options] = ("stripe", {})


def _meet_otherwise(change: Callable[[geometry.Meeting, int, int, int], geometry.Meeting]) -> Any:
    def meeting(layout: str, rank_q: int, rank_k: int, seqlen_local: int, causal: bool) -> Any:
        right = geometry.meeting(layout, rank_q, rank_k, seqlen_local, causal)
        return right and change(right, rank_q, rank_k, seqlen_local)

    return mock.patch.object(ring_method, "meeting", meeting)


def _swap_the_halves() -> Any:
    def change(right: geometry.Meeting, rank_q: int, rank_k: int, seqlen: int) -> geometry.Meeting:
        if rank_k < rank_q:
            return right._replace(keys=slice(seqlen // 2, seqlen))
        return right

    return _meet_otherwise(change)


def _keep_the_diagonal() -> Any:
    def change(right: geometry.Meeting, rank_q: int, rank_k: int, seqlen: int) -> geometry.Meeting:
        return right._replace(queries=slice(0, seqlen), keys=slice(0, seqlen))

    return _meet_otherwise(change)


def _receive_into_what_is_being_read() -> Any:
    def exchange(self: ring.Ring, deliveries: list[ring.Delivery], *kinds: Any) -> ring.Hop:
        hop = real(self, deliveries, *kinds)
        arrived = hop.wait()
        for mine, new in zip(deliveries[0].parcel.tensors, arrived.tensors):
            rows = min(mine.shape[1], new.shape[1])
            mine[:, :rows] = new[:, :rows]  # what a buffer recycled too early would hold by now
        return mock.Mock(wait=lambda: arrived)

    real = ring.Ring._exchange
    return mock.patch.object(ring.Ring, "_exchange", exchange)


def _drop_the_last_hop() -> Any:
    def post_last(self: homeward.Trailing, piece: int, total: Parcel) -> None:
        stayed = total.hold()
        self._last[piece] = mock.Mock(wait=lambda: stayed)

    return mock.patch.object(homeward.Trailing, "_post_last", post_last)


def _do_not_clear() -> Any:
    """A new sum starts from what its buffer held before."""
    real = homeward.Trailing._start

    def start(self: homeward.Trailing, piece: int, rows: slice, parts: Any) -> Parcel:
        total = real(self, piece, rows, parts)
        before = self.__dict__.setdefault("leftover", torch.zeros(1))
        for buffer in total.tensors:
            buffer += before.mean()
        self.__dict__["leftover"] = total.tensors[0].clone()
        return total

    return mock.patch.object(homeward.Trailing, "_start", start)


def _travel_in_bf16() -> Any:
    real = homeward.wire_dtypes
    return mock.patch.object(homeward, "wire_dtypes", lambda native, wire: real(native, "native"))


def _forget_the_own_window() -> Any:
    real = homeward.Straight.finish

    def finish(self: homeward.Straight) -> None:
        for (window, _), sums in self._sums.items():
            if window == 0:
                for running in sums:
                    running._held.zero_()  # type: ignore[union-attr]
        real(self)

    return mock.patch.object(homeward.Straight, "finish", finish)


def _old_lse() -> Any:
    """Each block's log-sum-exp stays where it was while the block moves on."""
    from ringmark.methods import burst

    real = burst.Method.backward

    def backward(self: Any, stop: Any, *args: Any) -> Any:
        q, dout, lse, for_out = stop.tensors
        self.__dict__.setdefault("first_lse", lse.clone())
        return real(self, dataclasses.replace(stop, tensors=(q, dout, self.first_lse, for_out)), *args)

    return mock.patch.object(burst.Method, "backward", backward)


def _wrong_source() -> Any:
    from ringmark.comm.route import Route

    return mock.patch.object(
        Route, "source", lambda self, window, turn: (self.mesh.rank - window - turn) % self.mesh.world_size
    )


def _all_alike() -> Any:
    """One call of the kernel for blocks that meet different rows of ours."""
    return mock.patch.object(ring_method.Method, "alike", return_value=lambda source: True)


def _a_row_too_far() -> Any:
    real = ring.Ring._exchange

    def exchange(self: ring.Ring, deliveries: list[ring.Delivery], *kinds: Any) -> ring.Hop:
        hop = real(self, deliveries, *kinds)
        if len(deliveries) == 1:
            return hop
        arrived = hop.wait()
        shifted = mock.Mock(tensors=tuple(tensor.roll(1, 1) for tensor in arrived.tensors), drop=arrived.drop)
        return mock.Mock(wait=lambda: shifted)

    return mock.patch.object(ring.Ring, "_exchange", exchange)


# bug: (how it is planted, in which method, the results that must betray it)
BUGS: dict[str, tuple[Callable[[], Any], tuple[str, Options], set[str]]] = {
    "skip one merge": (planted.skip_one_merge, BURST, set(NAMES)),
    "swap the halves": (_swap_the_halves, BURST, set(NAMES)),
    "keep the diagonal for later ranks in stripe": (_keep_the_diagonal, STRIPE, set(NAMES)),
    "receive into what is being read": (_receive_into_what_is_being_read, DOUBLE_RING, set(NAMES)),
    "lose a contribution to dq": (planted.lose_a_contribution, BURST, {"dq"}),
    "lose a contribution to dk and dv": (planted.lose_a_contribution, DOUBLE_RING, {"dk", "dv"}),
    "drop the last hop of dk and dv": (_drop_the_last_hop, ZIGZAG, {"dk", "dv"}),
    "do not clear an accumulator": (_do_not_clear, ZIGZAG, {"dk", "dv"}),
    "forget the own window's sum": (_forget_the_own_window, BURST, {"dq"}),
    "leave lse behind": (_old_lse, BURST, {"dq", "dk", "dv"}),
    "count sources as on a flat ring": (_wrong_source, DOUBLE_RING, set(NAMES)),
    "sum in bf16": (planted.sum_in_bf16, BURST, {"sums of dq", "sums of dk", "sums of dv"}),
    "sum what travels in bf16": (_travel_in_bf16, BURST, {"sums of dq"}),
}

# The same on one node of 4, where burst fetches three blocks at a time.
ON_ONE_NODE: dict[str, tuple[Callable[[], Any], tuple[str, Options], set[str]]] = {
    "take all blocks abreast for alike": (_all_alike, BURST, set(NAMES)),
    "a row too far into what is abreast": (_a_row_too_far, BURST, set(NAMES)),
    "lose a contribution to dq of several": (planted.lose_a_contribution, BURST, {"dq"}),
}


class _SmallParts:
    """A kernel whose gradients are 1 for the block of the rank before, and 2**-9 for every other."""

    needs_out = False

    def forward(self, q: Any, k: Any, v: Any, scale: float, causal: bool) -> Any:
        return kernels.load("reference").forward(q, k, v, scale, causal)

    def backward(
        self, dout: Any, q: Any, k: Any, v: Any, lse: Any, delta: Any, scale: float, causal: bool, out: Any
    ) -> Any:
        large = round(float(k[0, 0, 0, 0] - q[0, 0, 0, 0])) % 4 == 1  # the values are the ranks
        return tuple(torch.full_like(tensor, 1.0 if large else 2.0**-9) for tensor in (q, k, v))


def sums_are_off(mesh: Mesh, row: tuple[str, Options]) -> set[str]:
    """The gradients that are not 1 + 3 * 2**-9, rounded once."""
    name, options = row
    method = methods.load(name)(**options)
    method.layout = "contiguous"
    ranks = torch.arange(64.0).div(16).floor().view(1, 64, 1, 1).expand(1, 64, 4, 16).bfloat16()
    problem = Problem(ranks, ranks, ranks, ranks, False, 1.0, {})
    results = exact.run(method, mesh.view(1, 4), _SmallParts(), problem)  # type: ignore[arg-type]
    return {f"sums of {key}" for key in NAMES[1:] if not bool((results[key] == 1.0 + 2.0**-7).all())}


def caught(problem: Problem, mesh: Mesh, row: tuple[str, Options]) -> set[str]:
    """The results that the checks find wrong."""
    name, options = row
    method = methods.load(name)(**options)
    results = exact.run(method, mesh, kernels.load("reference"), problem)
    by_name = exact.errors(results, method.layout, mesh, problem)
    return {key for key in NAMES if not by_name[key] <= 1e-5}


def check_bugs(mesh: Mesh, problem: Problem) -> dict[str, tuple[set[str], set[str]]]:
    found = {}
    for bug, (plant, row, expected) in (BUGS if mesh.nodes == 2 else ON_ONE_NODE).items():
        in_sums = any(word.startswith("sums") for word in expected)
        check = sums_are_off if in_sums else functools.partial(caught, problem)
        healthy = check(mesh, row)
        with plant():
            found[bug] = healthy, check(mesh, row)
    return found


@pytest.fixture(scope="module")
def found() -> list[dict[str, tuple[set[str], set[str]]]]:
    """By rank: what each bug's checks said without it and with it."""
    problem = exact.make(64, heads=(4, 4))
    two, one = (run_world(4, check_bugs, problem, nodes=count) for count in (2, 1))
    return [{**by_two, **by_one} for by_two, by_one in zip(two, one)]


@pytest.mark.parametrize("bug", [*BUGS, *ON_ONE_NODE])
def test_a_seeded_bug_is_caught(bug: str, found: list[dict[str, tuple[set[str], set[str]]]]) -> None:
    healthy = set().union(*(by_rank[bug][0] for by_rank in found))
    betrayed = set().union(*(by_rank[bug][1] for by_rank in found))
    assert not healthy, "without the bug every check passes"
    assert betrayed == {**BUGS, **ON_ONE_NODE}[bug][2], f"'{bug}' shows in {sorted(betrayed)}"
