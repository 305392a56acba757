"""Methods on copy engines whose memory is shared between gloo ranks: every byte where it belongs, in time."""

from __future__ import annotations

import itertools
import random
import time
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

import exact
from copy_engines import on_the_cpu
from ringmark import kernels, layout, methods
from ringmark.comm import driver
from ringmark.comm.all_to_all import HeadExchange, head_exchange
from ringmark.comm.all_to_all_by_copies import CopiedHeadExchange
from ringmark.comm.copies import Copies
from ringmark.comm.copy_engine import CopyEngineRing
from ringmark.comm.mesh import Lane, Mesh
from ringmark.comm.parcel import Parcel, Pool
from ringmark.comm.stream_flags import Flags
from world import WorldError, run_world

Case = tuple[str, dict[str, Any], dict[str, Any]]

MANY, SHARED, ONE = {"heads": (8, 8)}, {"heads": (8, 2)}, {"heads": (4, 1), "causal": False}
CASES: list[Case] = [
    ("burst", {"side": "q", "head_groups": 4, "tracks": 2}, MANY),
    ("burst", {"side": "kv", "abreast": 2}, SHARED),
    ("zigzag", {"head_groups": 2}, {**MANY, "batch": 2}),
    ("ring", {"hops": "straight", "abreast": 2}, MANY),  # some ranks meet nothing of a block
    ("ulysses", {}, {**MANY, "batch": 2}),
    ("ulysses", {"head_groups": 2}, MANY),
    ("ulysses", {}, {**SHARED, "batch": 2}),  # two ranks share each kv head
    ("ulysses", {}, ONE),  # all share the one
    ("usp", {"ulysses": 2}, {**MANY, "batch": 2}),
    ("usp", {"ulysses": 2, "placement": "ring_first"}, SHARED),
    ("usp", {"ulysses": 4, "head_groups": 2}, MANY),
    ("usp", {"ulysses": 1}, MANY),
]


def check_cases(mesh: Mesh, folder: Path, late: float) -> list[tuple[str, float]]:
    """The settings' transport and the worst error of each case, three times with the same slots."""
    found = []
    write = Flags.say_data

    def say_late(*args: Any) -> None:
        time.sleep(random.uniform(0, late))
        write(*args)

    with on_the_cpu(folder) as memory, mock.patch.object(Flags, "say_data", say_late):
        for name, options, shape in CASES:
            method = methods.load(name)(transport="copy_engine", **options)
            problem = exact.make(64, **shape)
            results = [exact.run(method, mesh, kernels.load("reference"), problem)]
            made = memory.num_slots
            results += [exact.again(method, mesh, problem) for _ in range(2)]
            assert memory.num_slots == made, "slots come free, and are used again"
            worst = max(max(exact.errors(one, method.layout, mesh, problem).values()) for one in results)
            found.append((method.settings()["transport"], worst))
    return found


# What moves the bytes on two nodes of two: inside a node and between them, or the heads and the ring.
ON_TWO_NODES = [
    *["copy_engine+gloo", "copy_engine+gloo", "gloo", "gloo"],
    *["gloo"] * 4,
    *["copy_engine+gloo", "gloo+copy_engine", "gloo", "copy_engine+gloo"],
]


@pytest.mark.parametrize("nodes", [1, 2])
def test_methods_are_exact_by_copy_engines(tmp_path: Path, nodes: int) -> None:
    expected = ON_TWO_NODES if nodes == 2 else ["copy_engine"] * len(CASES)
    for rank, found in enumerate(run_world(4, check_cases, tmp_path, 0.002, nodes=nodes)):
        for case, (transport, worst), names in zip(CASES, found, expected, strict=True):
            assert worst < 1e-5, f"rank {rank}: {case}"
            assert transport == names, case


def check_both_ways(mesh: Mesh, folder: Path) -> int:
    """The two exchanges give the same bits and count the same bytes."""
    torch.manual_seed(mesh.rank)
    compared = 0
    with on_the_cpu(folder):
        by_copies = head_exchange(mesh, "flat", "heads", Lane(copy_engine=True))
        by_messages = head_exchange(mesh, "flat", "heads")
        assert isinstance(by_copies, CopiedHeadExchange)
        assert type(by_messages) is HeadExchange
        for batch, num_heads, span in [(2, 8, slice(0, 2)), (1, 12, slice(1, 3)), (2, 2, slice(0, 1))]:
            tensor = torch.randn(batch, 3, num_heads, 4)
            views = [
                tensor,
                tensor.transpose(1, 3).contiguous().transpose(1, 3),
                tensor[..., :1].expand(-1, -1, -1, 4),
            ]
            for view in views:
                sent, answers = [], []
                for exchange in (by_messages, by_copies):
                    mesh.traffic.reset()
                    (by_heads,) = exchange.to_heads([view], [span]).wait()
                    back = torch.zeros(tensor.shape)
                    pending = exchange.to_sequence([by_heads], [span], [back])
                    (again,) = pending.wait()
                    assert again is back
                    sent.append((mesh.traffic.intra, mesh.traffic.inter))
                    answers.append((by_heads, back))
                assert sent[0] == sent[1] != (0, 0)
                for one, other in zip(*answers, strict=True):
                    assert torch.equal(one, other)
                compared += 1
    return compared


def test_copies_and_messages_bring_the_same(tmp_path: Path) -> None:
    assert run_world(4, check_both_ways, tmp_path) == [9] * 4


def check_holding(mesh: Mesh, folder: Path) -> list[int]:
    """The users of a parcel that its reader has dropped: before and after its hop is waited for."""
    parcel = Parcel([torch.zeros(5)])
    with on_the_cpu(folder):
        hop = CopyEngineRing(mesh, "flat", "held", Pool(mesh.device)).post(parcel)
        parcel.drop()
        before = parcel.users
        hop.wait()
        return [before, parcel.users]


def test_a_parcel_is_held_while_a_copy_engine_may_read_it(tmp_path: Path) -> None:
    assert run_world(2, check_holding, tmp_path) == [[1, 0]] * 2


def test_every_flag_has_a_place_of_its_own_in_the_memory_made_for_flags() -> None:
    size, said, awaited = Flags.num_bytes(3), [], []
    with (
        mock.patch.object(driver, "write", lambda stream, address, number: said.append(address)),
        mock.patch.object(driver, "wait", lambda stream, address, number: awaited.append(address)),
    ):
        for us, other in itertools.permutations(range(3), 2):
            flags = Flags(mock.Mock(addresses=[0, size, 2 * size]), us)
            for call in (flags.say_ready, flags.say_data, flags.wait_ready, flags.wait_data):
                call(0, other, 1)
    assert sorted(said) == sorted(set(awaited)), "what one says another waits for"
    assert max(said) + 4 <= 3 * size
    assert {address // size for address in said} == {0, 1, 2}


@pytest.mark.parametrize("forgotten", ["wait_ready", "wait_data"])
def test_a_flag_that_is_not_waited_for_is_seen(tmp_path: Path, forgotten: str) -> None:
    """The ranks of this file are late enough for a race to show."""
    with mock.patch.object(Flags, forgotten, autospec=True):
        try:
            found = run_world(4, check_cases, tmp_path, 0.01)
        except WorldError:
            return
    assert max(worst for rank in found for _, worst in rank) > 1e-3


def check_what_comes_first(mesh: Mesh, folder: Path) -> list[list[str]]:
    """What a rank's program does first, in the forward and in the backward."""
    done: list[str] = []
    post = Copies.post

    def noted(*args: Any, **kwargs: Any) -> Any:
        done.append("hop")
        return post(*args, **kwargs)

    kernel = kernels.load("reference")
    forward, backward = kernel.forward, kernel.backward
    problem = exact.make(64, heads=(8, 8))
    with on_the_cpu(folder), mock.patch.object(Copies, "post", noted):
        method = methods.load("burst")(transport="copy_engine", side="q", head_groups=4, tracks=2)
        method.setup(mesh, kernel, causal=True)
        q, k, v, dout = (
            layout.shard(tensor, method.layout, mesh.rank, mesh.world_size)
            for tensor in (problem.q, problem.k, problem.v, problem.dout)
        )
        kernel.forward = lambda *args: (done.append("kernel"), forward(*args))[1]  # type: ignore[method-assign]
        out, lse = method.attend(q, k, v, 0.25)
        first = done[:3]
        done.clear()
        kernel.backward = lambda *args, **more: (  # type: ignore[method-assign]
            done.append("kernel"), backward(*args, **more)
        )[1]  # fmt: skip
        method.gradients(dout, q, k, v, out, lse, 0.25)
        return [first, done[:3]]


def test_kernels_are_launched_before_hops_are_posted(tmp_path: Path) -> None:
    """A GPU would have nothing to do while the host posts the first hops; each track has a kernel first."""
    for found in run_world(2, check_what_comes_first, tmp_path):
        assert found == [["kernel", "kernel", "hop"]] * 2


def check_marks(mesh: Mesh, folder: Path) -> list[bool]:
    """Of the blocks' hops, on four nodes of one: whether each is as of a mark."""
    marked: list[bool] = []
    post = Copies.post

    def noted(self: Copies, *args: Any) -> Any:
        marked.append(args[4] is not None)
        return post(self, *args)

    seen = mesh.view(4, 1)
    with on_the_cpu(folder), mock.patch.object(Copies, "post", noted):
        method = methods.load("double_ring")(transport="copy_engine", head_groups=2)
        problem = exact.make(64)
        results = exact.run(method, seen, kernels.load("reference"), problem)
        assert max(exact.errors(results, method.layout, seen, problem).values()) < 1e-5
        marked.clear()
        # A copy engine reads the rows of some heads as they lie.
        as_they_lie = mock.patch.object(Pool, "packed", side_effect=AssertionError("packed for nothing"))
        with torch.no_grad(), as_they_lie:
            method(*(torch.zeros(1, 16, 4, 16) for _ in range(3)))
    return marked


def test_a_late_hop_is_as_of_its_mark_on_whichever_ring_it_goes(tmp_path: Path) -> None:
    """Without one it would wait for the kernel that was launched before it."""
    assert run_world(4, check_marks, tmp_path) == [[True] * 6] * 4
