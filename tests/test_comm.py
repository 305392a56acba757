"""The schedule as a pure fact, then rings, routes and sums on real (gloo) ranks."""

from __future__ import annotations

import contextlib
import time
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import exact
from ringmark import kernels, methods
from ringmark.comm import driver, symmetric
from ringmark.comm.homeward import homeward
from ringmark.comm.mesh import OPEN_LANE, Group, Lane, Mesh
from ringmark.comm.parcel import Parcel, Pool, Signature, rows_of, signature
from ringmark.comm.plan import Block, Step, order, plan
from ringmark.comm.ring import Delivery, Hop, Ring
from ringmark.comm.route import Route, visits_of
from ringmark.comm.slots import SlotPool, landing
from ringmark.comm.symmetric import Slot
from ringmark.comm.tracks import Track, Tracks
from ringmark.errors import UserError
from world import WorldError, run_world

sizes = st.integers(1, 5)
CPU = torch.device("cpu")


# The plan


@given(sizes, st.integers(1, 9), sizes, st.booleans())
def test_a_plan_meets_every_block_once_and_posts_every_hop_in_time(
    windows: int, turns: int, pieces: int, homeward: bool
) -> None:
    steps = plan(windows, turns, pieces, homeward)
    assert sorted(step.block for step in steps) == sorted(
        Block(window, piece, turn)
        for window in range(windows)
        for piece in range(pieces)
        for turn in range(turns)
    )
    here = {Block(0, piece, 0) for piece in range(pieces)}
    under_way: set[Block] = set()
    for step in steps:
        here |= {step.block} & under_way
        under_way -= {step.block}
        assert step.block in here, "computed before it was sent for"
        for block in step.posts:
            assert block.origin in here, "a hop sends what has arrived"
            under_way.add(block)
        here.discard(step.block)  # its buffers may be received into from the next step on
    assert not under_way, "every hop is waited for"
    for piece in range(pieces):
        of_piece = [step for step in steps if step.block.piece == piece]
        assert [step.first for step in of_piece] == [True] + [False] * (len(of_piece) - 1)
        assert [step.last for step in of_piece] == [False] * (len(of_piece) - 1) + [True]


@given(sizes, st.integers(1, 9), sizes, st.booleans())
def test_blocks_move_one_rank_a_hop_and_meet_everybody(
    windows: int, turns: int, pieces: int, homeward: bool
) -> None:
    """Labels moved by the plan's hops on a whole mesh end where Route.source says they are."""
    ranks = [(node, gpu) for node in range(windows) for gpu in range(turns)]
    held: dict[tuple[int, int], dict[Block, tuple[int, int]]] = {
        rank: {Block(0, piece, 0): rank for piece in range(pieces)} for rank in ranks
    }
    for step in plan(windows, turns, pieces, homeward):
        for block in step.posts:
            for node, gpu in ranks:
                sender = (node, (gpu - 1) % turns) if block.visit else ((node - 1) % windows, gpu)
                held[node, gpu][block] = held[sender][block.origin]
        window, _, turn = step.block
        for node, gpu in ranks:
            assert held[node, gpu][step.block] == ((node - window) % windows, (gpu - turn) % turns)


def hops(steps: Sequence[Step]) -> tuple[int, int]:
    posted = [block for step in steps for block in step.posts]
    return sum(block.visit > 0 for block in posted), sum(block.visit == 0 for block in posted)


def test_four_nodes_of_eight_send_28_inner_and_3_outer_hops() -> None:
    assert hops(plan(4, 8, 1)) == (28, 3)
    assert hops(plan(1, 32, 1)) == (31, 0)
    assert hops(plan(4, 8, 5, homeward=True)) == (140, 15)


def test_the_outer_hops_of_the_first_window_are_posted_at_once_and_waited_piece_by_piece() -> None:
    steps = plan(2, 4, 3)
    outer = [block for block in steps[0].posts if block.visit == 0]
    assert outer == [Block(1, piece, 0) for piece in range(3)]
    assert steps[0].posts == (*outer, Block(0, 0, 1)), "the slow link has its work first"
    assert [step.block for step in steps[12:]] == [
        Block(1, piece, turn) for piece in range(3) for turn in range(4)
    ]


@pytest.mark.parametrize(("windows", "turns"), [(1, 8), (4, 8), (8, 1)])
def test_a_homeward_plan_ends_at_the_own_pair(windows: int, turns: int) -> None:
    assert order(windows, turns, 2, homeward=True)[-1] == Block(0, 1, 0)
    # With one piece there is nothing else to begin with, so the own pair comes first.
    assert order(windows, turns, 1, homeward=True)[0] == Block(0, 0, 0)


@given(st.integers(1, 16), st.integers(1, 8))
def test_visits_are_the_own_column_and_then_even_parties_of_the_others(gpus: int, abreast: int) -> None:
    own, *others = visits_of(gpus, abreast)
    assert own == (0,)
    assert [turn for party in others for turn in party] == list(range(1, gpus))
    sizes = {len(party) for party in others}
    assert not sizes or (max(sizes) <= abreast and max(sizes) - min(sizes) <= 1)
    assert len(others) == -(-(gpus - 1) // abreast), "as few as can be"


@pytest.mark.parametrize(
    ("shape", "view", "whole"),
    [
        ((2, 6, 8, 4), lambda t: t, True),
        ((2, 6, 8, 4), lambda t: t[:, 1:5, 2:4], True),  # some heads of some rows
        ((2, 6, 3, 8, 4), lambda t: t[:, :, 1], True),  # q, k, v from one projection
        ((2, 8, 6, 4), lambda t: t.transpose(1, 2), False),  # heads first
        ((2, 8, 6), lambda t: t.transpose(1, 2), False),  # lse, as kernels return it
        ((2, 1, 6), lambda t: t.transpose(1, 2), True),
        ((7,), lambda t: t[::2], False),
    ],
)
def test_a_copy_engine_reads_views_whose_rows_are_whole(shape: Any, view: Any, whole: bool) -> None:
    assert driver.has_whole_rows(view(torch.zeros(shape))) is whole


# Parcels


def test_a_parcel_is_free_only_when_its_reader_and_every_send_are_done() -> None:
    pool = Pool(CPU)
    kind = signature([torch.empty(3)])
    parcel = pool.take(kind)
    parcel.hold()  # one send
    parcel.hold()  # another, on another ring
    parcel.drop()  # the reader is done
    assert pool.take(kind).tensors[0].data_ptr() != parcel.tensors[0].data_ptr()
    parcel.drop()
    assert pool.take(kind).tensors[0].data_ptr() != parcel.tensors[0].data_ptr()
    parcel.drop()
    assert pool.take(kind).tensors[0].data_ptr() == parcel.tensors[0].data_ptr()


def test_a_parcel_dropped_too_often_or_held_too_late_is_a_bug() -> None:
    parcel = Parcel([torch.empty(1)])
    parcel.drop()
    with pytest.raises(AssertionError, match="dropped more often"):
        parcel.drop()
    with pytest.raises(AssertionError, match="cannot be held again"):
        parcel.hold()


def test_slots_are_taken_in_an_order_that_every_rank_repeats() -> None:
    """Copy engines write into the next rank's slot of the same number: luck must not choose it."""
    made: list[int] = []

    def allocate(num_bytes: int) -> Slot:
        made.append(num_bytes)
        return Slot(torch.zeros(num_bytes, dtype=torch.uint8), [])

    pool = SlotPool(CPU, allocate)
    kv = signature([torch.empty(3 << 18), torch.empty(3 << 18)])  # 6 MiB
    queries = signature([torch.empty(3 << 18), torch.empty(3 << 18), torch.empty(5), torch.empty(5)])
    first, second = pool.take(kv), pool.take(kv)
    assert made == [8 << 20, 8 << 20]
    first.drop()
    second.drop()
    third = pool.take(queries)
    assert third.slot is first.slot, "a slightly larger parcel fits a slot that was made with headroom"
    assert pool.take(kv).slot is second.slot
    third.tensors[3].fill_(7.0)
    assert third.slot.ours.view(torch.float32).sum() == 35.0
    assert all(tensor.data_ptr() % 512 == third.slot.ours.data_ptr() % 512 for tensor in third.tensors)
    third.drop()
    small = signature([torch.empty(5)])
    fourth = pool.take(small, room=kv)
    assert fourth.slot is third.slot, "the room chooses, whatever arrives"
    with pytest.raises(AssertionError, match="larger than the room"):
        pool.take(kv, room=small)
    fourth.drop()
    pool.clear()
    again = pool.take(kv)
    assert again.slot is third.slot, "slots are kept"
    again.drop()
    large = signature([torch.empty(3 << 19), torch.empty(3 << 19)])
    assert pool.take(large).slot.ours.numel() == 14 << 20, "a free slot that is too small stays free"
    exact = signature([torch.empty(2 << 20)])
    assert pool.take(exact).slot is third.slot, "one of just its size is taken"


# Tracks


def test_tracks_take_turns_and_share_nothing() -> None:
    tracks, walked, groups = Tracks(Mesh(1, 1, 0, CPU), OPEN_LANE), [], set()

    def walk(track: Track, pieces: list[str]) -> Iterator[None]:
        assert track.stream is None
        groups.update(id(ring.group) for way in (track.blocks, track.sums) for ring in (way.inner, way.outer))
        for piece in pieces:
            walked.append(("first" if track is tracks.first else "second", piece))
            yield

    tracks.weave(1, "ab", walk)
    assert walked == [("first", "a"), ("first", "b")]
    assert len(groups) == 4
    walked.clear()
    tracks.weave(2, "abcde", walk)
    assert walked == [("second" if piece in "bd" else "first", piece) for piece in "abcde"]
    assert len(groups) == 8
    walked.clear()
    tracks.weave(1, "ab", walk)
    assert walked == [("first", "a"), ("first", "b")], "a second track that is there may have nothing to do"


class NotedStream:
    """A stream that writes down what it waits for; `now` is the one that work goes to."""

    now = "the caller's"
    done: ClassVar[list[str]] = []

    def __init__(self, device: torch.device | None = None) -> None:
        self.name = "its own" if device else self.now

    def wait_stream(self, other: NotedStream) -> None:
        self.done.append(f"{self.name} waits for {other.name}")

    @classmethod
    @contextlib.contextmanager
    def on(cls, stream: NotedStream) -> Iterator[None]:
        with mock.patch.object(cls, "now", stream.name):
            yield


def test_a_second_track_begins_after_the_callers_work_and_the_caller_goes_on_after_it() -> None:
    def walk(track: Track, pieces: list[str]) -> Iterator[None]:
        for piece in pieces:
            NotedStream.done.append(f"{piece} on {NotedStream.now}")
            yield

    with (
        mock.patch("torch.cuda.Stream", NotedStream),
        mock.patch("torch.cuda.current_stream", NotedStream),
        mock.patch("torch.cuda.stream", NotedStream.on),
    ):
        Tracks(Mesh(1, 1, 0, torch.device("cuda", 0)), OPEN_LANE).weave(2, "abc", walk)
    assert NotedStream.done == [
        *["its own waits for the caller's", "a on the caller's", "b on its own", "c on the caller's"],
        "the caller's waits for its own",
    ]


# Copy engines


def test_without_cuda_there_is_no_copy_engine() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    assert methods.load("burst")(transport="copy_engine").unavailable() == (
        "the copy_engine transport needs CUDA devices"
    )
    assert methods.load("burst")().unavailable() is None


def test_copy_engines_say_what_a_machine_lacks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr(driver, "unavailable", lambda: "no such call")
    assert symmetric.unavailable() == "no such call"
    monkeypatch.delattr("torch.distributed._symmetric_memory.rendezvous")
    assert "too old" in (symmetric.unavailable() or "")


@pytest.mark.parametrize(
    ("transport", "suits", "chosen"),
    [
        ("copy_engine", False, True),  # asked for: where there is none it fails, and says why
        ("send_recv", True, False),
        ("auto", True, True),
        ("auto", False, False),
    ],
)
def test_a_transport_that_is_asked_for_is_taken(transport: str, suits: bool, chosen: bool) -> None:
    with mock.patch.object(symmetric, "suits", return_value=suits):
        assert symmetric.chosen(transport, Mesh(1, 1, 0, CPU)) is chosen


def test_a_mesh_tries_copy_engines_once_whatever_the_view() -> None:
    mesh = Mesh(1, 4, 0, torch.device("cuda", 0))
    with mock.patch.object(symmetric, "found_out", return_value=True) as found_out:
        assert [symmetric.suits(one) for one in (mesh.view(2, 2), mesh, mesh.view(4, 1))] == [True] * 3
        assert not symmetric.suits(Mesh(1, 4, 0, CPU))
    found_out.assert_called_once_with(mesh)


@pytest.mark.parametrize(
    ("gpus", "visible", "closed", "reason", "within"),
    [
        (4, 4, set(), None, True),
        (4, 8, set(), None, True),
        (4, 4, {1}, None, False),
        (4, 1, set(), None, False),  # each rank sees its own GPU alone
        (1, 1, set(), None, True),
        (1, 1, set(), "the driver is too old", False),
        (4, 4, set(), "the driver is too old", False),
    ],
)
def test_gpus_are_within_reach_if_they_see_each_other(
    gpus: int, visible: int, closed: set[int], reason: str | None, within: bool
) -> None:
    ours = visible - 1
    mesh = Mesh(1, gpus, 0, torch.device("cuda", ours))

    def sees(here: int, other: int) -> bool:
        assert here == ours != other, "a GPU is not asked whether it sees itself"
        return other not in closed

    with (
        mock.patch.object(symmetric, "unavailable", return_value=reason),
        mock.patch("torch.cuda.device_count", return_value=visible),
        mock.patch("torch.cuda.can_device_access_peer", sees),
    ):
        assert symmetric._within_reach(mesh) is within
        assert gpus > 1 or symmetric.found_out(mesh) is within


@pytest.mark.parametrize("knows", ["get_remote_tensor", "get_buffer"])  # newer and older handles
def test_a_slot_is_the_memory_of_every_member_and_counted_while_it_lives(knows: str) -> None:
    others = [torch.zeros(64, dtype=torch.uint8) for _ in range(3)]
    handle = mock.Mock(spec=[knows])
    getattr(handle, knows).side_effect = lambda place, shape, dtype: others[place]

    def meet(ours: torch.Tensor, group: Any) -> Any:  # a Mock would keep ours alive
        return handle

    shared = "torch.distributed._symmetric_memory"
    group, before = Group((0, 1, 2), 1, mock.Mock()), symmetric.allocated_bytes()
    with mock.patch(f"{shared}.empty", lambda *size, dtype, device: torch.empty(size, dtype=dtype)):
        with mock.patch(f"{shared}.rendezvous", meet):
            slot = symmetric.make_slot(group, CPU, 64)
        assert slot.addresses == [others[0].data_ptr(), slot.ours.data_ptr(), others[2].data_ptr()]
        assert symmetric.allocated_bytes() == before + 64
        del slot
        assert symmetric.allocated_bytes() == before
        with (
            mock.patch(f"{shared}.rendezvous", side_effect=RuntimeError("not permitted")),
            pytest.raises(RuntimeError, match="take transport=send_recv: not permitted"),
        ):
            symmetric.make_slot(group, CPU, 64)


# Real ranks


def check_agreement(mesh: Mesh, far: set[int], closed: set[int]) -> tuple[bool, list[int]]:
    """What all ranks find out where some are out of reach, or may not share memory; and who tried."""
    tried = []

    def make_slot(group: Any, device: Any, num_bytes: int) -> None:
        tried.append(group.size)
        if mesh.rank in closed:
            raise RuntimeError("the GPUs of this node cannot share memory")

    with (
        mock.patch.object(symmetric, "_within_reach", lambda mesh: mesh.rank not in far),
        mock.patch.object(symmetric, "make_slot", make_slot),
        warnings.catch_warnings(record=True) as said,
    ):
        warnings.simplefilter("always")
        answer = symmetric.found_out(mesh)
    assert any("instead of copy engines" in str(one.message) for one in said) == (
        bool(tried) and mesh.rank in closed
    )
    assert not symmetric.suits(mesh), "there is no CUDA device"
    return answer, tried


def check_agreements(mesh: Mesh) -> list[tuple[bool, list[int]]]:
    return [check_agreement(mesh, *case) for case in ((set(), set()), ({2}, set()), (set(), {0, 1}))]


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_all_ranks_take_copy_engines_or_none(nodes: int) -> None:
    """And none waits alone for the others: nobody tries where one is out of reach."""
    tries = [4 // nodes] if nodes < 4 else []
    for found in run_world(4, check_agreements, nodes=nodes):
        assert found == [(True, tries), (False, []), (nodes == 4, tries)]


def number(rank: int, piece: int = 0) -> torch.Tensor:
    return torch.full((2, 6, 4, 3), float(10 * rank + piece))


def heads_first(part: torch.Tensor) -> torch.Tensor:
    """The same (B, S, H, D) as some kernels return it."""
    return part.transpose(1, 2).contiguous().transpose(1, 2)


def check_rings(mesh: Mesh) -> dict[str, object]:
    pool = Pool(CPU)
    first, second = (Ring(mesh, "flat", purpose, pool) for purpose in ("a", "b"))
    mesh.traffic.reset()
    # Two rings at once, waited for in the other order.
    mine, halves = Parcel([number(mesh.rank)]), Parcel([number(mesh.rank) / 2, torch.tensor([mesh.rank])])
    hops = first.post(mine), second.post(halves)
    got_halves, got = hops[1].wait(), hops[0].wait()
    before = (mesh.rank - 1) % mesh.world_size
    assert torch.equal(got.tensors[0], number(before))
    assert torch.equal(got_halves.tensors[0], number(before) / 2)
    assert int(got_halves.tensors[1]) == before
    assert first.group.process_group is not second.group.process_group or mesh.world_size == 1
    sent = mesh.traffic.intra + mesh.traffic.inter
    whole, view = torch.zeros(2, 6, 4), number(mesh.rank)[:, :, 1:3]
    for stop in Route(mesh, "mixed").travel([(whole, view)]):
        assert (stop.tensors[0] is whole) == stop.first, "what can be sent as it lies is not copied"
    # Parts of every row, which lie as some kernels return them.
    flat, result = mesh.view(1, mesh.world_size), torch.empty(2, 6, 2, 3)
    home = homeward(Route(flat, "sums"), [(result,)], "auto", lambda owner, contributor: slice(0, 6))
    for stop in Route(flat, "blocks").travel([(view,)]):
        home.add(stop, slice(0, 6), (heads_first(stop.tensors[0]),))
    home.finish()
    assert torch.equal(result, view * mesh.world_size)
    return {"sent": sent}


def check_travel(mesh: Mesh, pieces: int, kept_for_last: bool) -> dict[str, object]:
    """Every block of every rank passes by; the sums that trail behind them come home complete."""
    route, sums = Route(mesh, "blocks"), Route(mesh, "sums")
    assert route.transport == "gloo"
    views = [number(mesh.rank, piece)[:, :, 1:3] for piece in range(pieces)]  # not contiguous, as heads are
    results = [(torch.empty(2, 6, 2, 3),) for _ in range(pieces)]
    whole, middle = slice(0, 6), slice(2, 5)

    def covers(owner: int, contributor: int) -> slice:
        return whole if owner % mesh.gpus == contributor % mesh.gpus else middle

    home = homeward(sums, results, "auto", covers)
    mesh.traffic.reset()
    met = []
    blocks_made, sums_made = (
        mock.patch.object(pool, "_make", wraps=pool._make) for pool in (route.pool, sums.pool)
    )
    with blocks_made as make_block, sums_made as make_sum:
        for stop in route.travel([(view,) for view in views], kept_for_last):
            (block,) = stop.tensors
            assert torch.equal(block, number(stop.source, stop.piece)[:, :, 1:3])
            met.append((stop.source, stop.piece))
            rows = whole if stop.own else middle
            home.add(stop, rows, (heads_first(block[:, rows] * (mesh.rank + 1)),))
        home.finish()
    assert not route.pool._free, "memory goes back to the allocator"
    assert not sums.pool._free
    assert sorted(met) == [(rank, piece) for rank in range(mesh.world_size) for piece in range(pieces)]
    everybody = sum(rank + 1 for rank in range(mesh.world_size))
    for piece, (result,) in enumerate(results):
        own = number(mesh.rank, piece)[:, :, 1:3]
        assert torch.equal(result[:, 2:5], own[:, 2:5] * everybody)
        on_my_gpu = sum(rank + 1 for rank in range(mesh.gpu, mesh.world_size, mesh.gpus))
        assert torch.equal(result[:, 0:2], own[:, 0:2] * on_my_gpu)
    made = (make_block.call_count, make_sum.call_count)
    return {"made": made, "traffic": (mesh.traffic.intra, mesh.traffic.inter)}


def check_all(mesh: Mesh) -> dict[str, object]:
    found: dict[str, object] = {"rings": check_rings(mesh)}
    for nodes in sorted({1, mesh.nodes, mesh.gpus, mesh.world_size}):  # inner rings may cross nodes, too
        view = mesh.view(nodes, mesh.world_size // nodes)
        for pieces in (1, 3):
            for kept_for_last in (False, True):
                found[f"{view.nodes}x{view.gpus}-{pieces}-{kept_for_last}"] = check_travel(
                    view, pieces, kept_for_last
                )
    return found


@pytest.mark.parametrize(("nodes", "gpus"), [(1, 1), (1, 2), (2, 2), (3, 2), (2, 4)])
def test_rings_routes_and_sums(nodes: int, gpus: int) -> None:
    world_size = nodes * gpus
    found = run_world(world_size, check_all, nodes=nodes)[0]
    assert found["rings"]["sent"] == (0 if world_size == 1 else 2 * 144 * 4 + 8)
    block_bytes = 2 * 6 * 2 * 3 * 4
    for pieces in (1, 3):
        intra, inter = found[f"{nodes}x{gpus}-{pieces}-True"]["traffic"]
        # Blocks and sums make the same number of hops: what a rank adds for itself never travels. Inside a
        # node a contribution is the rows that it has, here half of them.
        assert 2 * intra == (2 + 1) * pieces * block_bytes * nodes * (gpus - 1)
        assert inter == 2 * pieces * block_bytes * (nodes - 1)
        # The buffers of a flat ring do not grow with its steps or pieces: one is read while the next is under
        # way. Where the own pair is kept for the end a piece begins before the one before it ends.
        as_they_come, kept_for_last = (
            found[f"1x{world_size}-{pieces}-{kept}"]["made"] for kept in (False, True)
        )
        assert max(as_they_come) <= 2
        assert max(kept_for_last) <= 4
        assert kept_for_last[0] <= 3


def check_view(mesh: Mesh) -> tuple[int, int]:
    """A flat ring over two nodes: every rank sends to its neighbour, the last of a node to the other node."""
    mesh.traffic.reset()
    Ring(mesh.view(1, 4), "intra", "x", Pool(CPU)).post(Parcel([torch.zeros(5)])).wait()
    return mesh.traffic.intra, mesh.traffic.inter


def test_bytes_count_by_the_real_nodes_whatever_the_view() -> None:
    assert run_world(4, check_view, nodes=2) == [(20, 0), (0, 20), (20, 0), (0, 20)]


def check_groups(mesh: Mesh) -> list[object]:
    view = mesh.view(1, 4)
    assert mesh.view(2, 2) is mesh
    assert view.view(2, 2) is mesh
    assert mesh.view(1, 4) is view, "one view of each shape, so that its groups are shared"
    with pytest.raises(UserError, match="3x2 view needs 6 ranks"):
        mesh.view(3, 2)
    intra, inter = mesh.group("intra", "p"), mesh.group("inter", "p")
    assert mesh.group("intra", "p") is intra
    assert mesh.group("intra", "other").process_group is not intra.process_group
    for name, options, lanes in [
        ("double_ring", {}, [Lane(high_priority=True)] * 8),  # rows and columns, for blocks and for sums
        ("double_ring", {"ctas": 2, "priority": "normal"}, [Lane(2)] * 8),
        ("usp", {}, [OPEN_LANE] * 2 + [Lane(high_priority=True)] * 4),  # rows for heads, columns for the ring
    ]:
        with mock.patch.object(Lane, "options", autospec=True, return_value=None) as asked:
            methods.load(name)(**options).setup(mesh, kernels.load("reference"), causal=True)
        assert asked.call_args_list == [mock.call(lane) for lane in lanes]
    return [intra.members, inter.members, view.group("intra", "p").members]


def test_groups_are_rows_and_columns() -> None:
    found = run_world(4, check_groups, nodes=2)
    assert found[0] == [(0, 1), (0, 2), (0, 1, 2, 3)]
    assert found[3] == [(2, 3), (1, 3), (0, 1, 2, 3)]


# The harness itself


def fail_on(mesh: Mesh, rank: int) -> None:
    if mesh.rank == rank:
        raise RuntimeError("this rank is broken")


def hang_on(mesh: Mesh, rank: int) -> None:
    if mesh.rank == rank:
        time.sleep(1000)


def test_a_world_says_which_rank_failed_or_hung_and_where() -> None:
    with pytest.raises(WorldError, match=r"ranks \[1\] of 2 failed(.|\n)*this rank is broken"):
        run_world(2, fail_on, 1)
    with pytest.raises(WorldError, match=r"ranks \[0\] of 2 hung(.|\n)*in hang_on"):
        run_world(2, hang_on, 0, timeout_s=3.0)


def test_a_ring_of_one_gives_back_what_it_was_given() -> None:
    ring = Ring(Mesh(1, 1, 0, CPU), "flat", "x", Pool(CPU))
    parcel = Parcel([torch.ones(2)])
    with mock.patch("torch.distributed.batch_isend_irecv", side_effect=AssertionError("nobody to talk to")):
        hop = ring.post(parcel)
        parcel.drop()
        assert hop.wait() is parcel
    assert parcel.users == 1


class SlotRing(Ring):
    """gloo that receives into slots, as the copy engines do, and writes down which, and where in them."""

    posts_late = True

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.taken: list[tuple[int, int]] = []
        self.sent: list[list[tuple[int, list[int]]]] = []  # of each hop: to whom, where it lies there
        self.received: list[list[tuple[int, list[int]]]] = []  # from whom, where it lies here
        self.slots = SlotPool(CPU, self._allocate)
        self._numbers: dict[int, int] = {}

    def _allocate(self, num_bytes: int) -> Slot:
        slot = Slot(torch.zeros(num_bytes, dtype=torch.uint8), [])
        self._numbers[id(slot)] = len(self._numbers)
        return slot

    def _exchange(
        self, deliveries: Sequence[Delivery], arriving: Signature, room: Signature, as_of: object
    ) -> Hop:
        received = self.slots.take(arriving, room)
        self.taken.append((self._numbers[id(received.slot)], len(self._numbers)))
        memory, members = received.slot.ours, self.group.members
        self.sent.append([])
        self.received.append([])
        for steps, parcel, there, here in deliveries:
            places = list(landing(signature(parcel.tensors), room, there))
            self.sent[-1].append((members[self.place(steps)], places))
            rows = [] if here is None else [rows_of(tensor, here) for tensor in received.tensors]
            places = [part.data_ptr() - memory.data_ptr() for part in rows]
            self.received[-1].append((members[self.place(-steps)], places))
        self.pool = mock.Mock(take=lambda kind: received)
        # gloo sends what is contiguous; the copy engine has rows of more than one place to read.
        packed = [one._replace(parcel=_copied(one.parcel)) for one in deliveries]
        return super()._exchange(packed, arriving, room, as_of)

    def sends(self, tensor: torch.Tensor) -> bool:
        return driver.has_whole_rows(tensor)


def _copied(parcel: Parcel) -> Parcel:
    return Parcel([tensor.clone(memory_format=torch.contiguous_format) for tensor in parcel.tensors])


def check_slots(mesh: Mesh) -> dict[str, Any]:
    found: dict[str, Any] = {}
    problem = exact.make(64, heads=(4, 4))
    for name, options in [
        ("burst", {"side": "q", "head_groups": 2, "hops": "ring"}),
        ("burst", {"side": "q", "head_groups": 4, "tracks": 2, "layout": "striped"}),
        ("double_ring", {"head_groups": 1}),
        ("zigzag", {"head_groups": 2, "wire": "native"}),
        ("ring", {}),
        ("burst", {"side": "q", "head_groups": 2}),
        ("burst", {"side": "q", "head_groups": 2, "abreast": 2}),
        ("burst", {"side": "kv", "head_groups": 4, "tracks": 2, "abreast": 1}),
        ("ring", {"hops": "straight", "head_groups": 4, "tracks": 2}),
    ]:
        rings: list[SlotRing] = []

        def make(*args: Any) -> Ring:
            ring = SlotRing(*args)
            rings.append(ring)  # noqa: B023 - called in this turn of the loop
            return ring

        method = methods.load(name)(**options)
        with mock.patch(
            "ringmark.comm.route._ring",
            lambda mesh, axis, purpose, pool, lane: make(mesh, axis, purpose, pool),
        ):
            results = exact.run(method, mesh, kernels.load("reference"), problem)
        assert max(exact.errors(results, method.layout, mesh, problem).values()) < 1e-5
        found[f"{name} {options}"] = [(ring.taken, ring.sent, ring.received) for ring in rings]
    return found


@pytest.fixture(scope="module", params=[1, 2])
def slots(request: pytest.FixtureRequest) -> tuple[int, list[dict[str, Any]]]:
    """How many nodes, and by rank what `check_slots` wrote down."""
    return request.param, run_world(4, check_slots, nodes=request.param)


def test_every_rank_takes_the_same_slots_whatever_its_rows(slots: tuple[int, list[dict[str, Any]]]) -> None:
    """The one rule of the copy engines: a rank writes into the slot that it would take itself."""
    _, by_rank = slots
    for row, rings in by_rank[0].items():
        assert sum(len(taken) for taken, _, _ in rings) > 0
        for number, (taken, _, _) in enumerate(rings):
            assert all(other[row][number][0] == taken for other in by_rank), row


def test_a_delivery_lands_where_its_receiver_looks_for_it(slots: tuple[int, list[dict[str, Any]]]) -> None:
    """Copy engines write into another GPU's slot: both ends count the rows before a block by themselves."""
    (nodes, by_rank), joined = slots, 0
    for rank, rows in enumerate(by_rank):
        for row, rings in rows.items():
            for number, (_, sent, _) in enumerate(rings):
                for hop, deliveries in enumerate(sent):
                    joined += len(deliveries) > 1
                    for target, places in deliveries:
                        arrived = by_rank[target][row][number][2][hop]
                        assert dict(arrived)[rank] == places, row
    assert joined or nodes == 2, "several deliveries in one hop"
