"""Every native method against exact attention on worlds of 1 to 32 ranks, and what each of them moves."""

from __future__ import annotations

import collections
import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

import exact
from exact import Problem
from ringmark import geometry, kernels, methods
from ringmark import layout as layouts
from ringmark.cell import BOUND, Cell, MeshShape, OptionValue, Shape
from ringmark.comm.mesh import Group, Mesh
from ringmark.comm.parcel import Parcel
from ringmark.errors import UserError
from ringmark.methods import base, burst
from ringmark.methods.base import row_dot
from world import run_world

Options = dict[str, OptionValue]

TOLERANCE = 1e-5  # float32 against float64, every result of every rank
EVERYWHERE = {"ring", "zigzag", "stripe", "double_ring", "burst"}  # these take a cell on every mesh below
MESHES = [(1, 1), (1, 2), (2, 1), (2, 2), (3, 2), (2, 4)]

# A method that is not listed runs with its defaults: a new file is tested from the day it is there.
VARIANTS: dict[str, list[Options]] = {
    "ring": [{}, {"head_groups": 2, "wire": "native", "tracks": 2}, {"hops": "straight"}],
    "zigzag": [{}, {"head_groups": 2}, {"hops": "straight", "abreast": 2}],
    "stripe": [{}, {"head_groups": 2}],
    "double_ring": [
        {},
        {"head_groups": 2, "wire": "float32"},
        {"head_groups": 4, "tracks": 2, "hops": "straight"},
    ],
    "burst": [
        {"side": "q"},
        {"side": "q", "head_groups": 2},
        {"side": "q", "head_groups": 4, "tracks": 2},
        {"side": "q", "head_groups": 4, "tracks": 2, "hops": "ring"},
        {"side": "q", "head_groups": 2, "abreast": 1},
        {"side": "q", "head_groups": 2, "abreast": 2},
        {"side": "q", "opt_bwd": False, "layout": "striped", "hops": "ring"},
        {"side": "q", "head_groups": 2, "layout": "striped", "wire": "native"},
        {"side": "q", "opt_bwd": False},
        {"side": "kv", "head_groups": 2, "layout": "striped"},
        {"side": "auto"},
    ],
    "usp": [{}, {"placement": "ring_first"}, {"ulysses": 1}],
}


def problems() -> dict[str, Problem]:
    """Batch 2, and the three kinds of heads: a kv head each, shared by two, one for all."""
    return {
        "causal": exact.make(96, batch=2, heads=(4, 4)),
        "full": exact.make(96, batch=2, heads=(4, 4), causal=False),
        "causal GQA": exact.make(96, heads=(4, 2)),
        "full GQA, another scale": exact.make(96, heads=(4, 2), causal=False, scale=0.4),
        "causal MQA": exact.make(48, heads=(4, 1)),
    }


def rows(world_size: int) -> list[tuple[str, Options]]:
    found = []
    for name in methods.names():
        if name == BOUND and world_size > 1:
            continue
        found += [(name, options) for options in VARIANTS.get(name, [{}])]
    return found


@contextlib.contextmanager
def everything_dropped() -> Iterator[None]:
    """Whatever travels in here has no user left in the end: no buffer is lost to its pool."""
    made: list[Parcel] = []
    make = Parcel.__init__

    def noted(parcel: Parcel, *args: Any) -> None:
        make(parcel, *args)
        made.append(parcel)

    with mock.patch.object(Parcel, "__init__", noted):
        yield
    assert not any(parcel.users for parcel in made)


def check_every_method(mesh: Mesh, given: dict[str, Problem]) -> dict[str, float]:
    worst = {}
    for name, options in rows(mesh.world_size):
        for label, problem in given.items():
            method = methods.load(name)(**options)
            if method.unavailable() or method.unsupported(problem.cell(name, mesh, **options)):
                continue
            with everything_dropped():
                found = exact.run(method, mesh, kernels.load("reference"), problem)
            by_name = exact.errors(found, method.layout, mesh, problem)
            worst[f"{name} {options} {label}"] = max(by_name.values())
    return worst


@pytest.mark.parametrize(("nodes", "gpus"), MESHES)
def test_every_method_is_exact_on_every_mesh(nodes: int, gpus: int) -> None:
    by_rank = run_world(nodes * gpus, check_every_method, problems(), nodes=nodes)
    for rank, worst in enumerate(by_rank):
        bad = {row: error for row, error in worst.items() if not error <= TOLERANCE}
        assert not bad, f"rank {rank}: {bad}"
    seen = {row.split(" ")[0] for row in by_rank[0]}
    assert seen >= EVERYWHERE
    assert ("single" in seen) == (nodes * gpus == 1)
    if (
        nodes == 1 and gpus <= 2
    ):  # nothing here is hard to deal out: whoever refuses all of it is never tested
        idle = {name for name, _ in rows(gpus) if not methods.load(name)().unavailable()} - seen
        assert not idle, f"{sorted(idle)} refuse every cell of 96 or 48 tokens and 4 heads on {nodes}x{gpus}"


def test_a_method_that_refuses_everything_is_not_passed_over(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "idle.py").write_text(
        "from ringmark.methods import ring\nclass Method(ring.Method):\n"
        "    label = 'Idle'\n"
        "    def unsupported(self, cell): return 'not today'\n"
    )
    monkeypatch.setattr(methods, "__path__", [*methods.__path__, str(tmp_path)])
    with pytest.raises(AssertionError, match=r"\['idle'\] refuse every cell"):
        test_every_method_is_exact_on_every_mesh(1, 1)


# Hard inputs, on a 2 x 2 mesh


def steep() -> Problem:
    """Logits of exactly 1e4, -1e4 and 0: every query sees ties, and nothing but its greatest logits."""
    generator = torch.Generator().manual_seed(1)
    axis = torch.randint(0, 4, (2, 64, 4), generator=generator)
    sign = torch.randint(0, 2, (64, 4), generator=generator) * 2.0 - 1.0
    one_hot = torch.nn.functional.one_hot(axis, 16).float() * 100.0
    v, dout = torch.randn(2, 1, 64, 4, 16, generator=generator)
    return exact.solved(one_hot[:1], one_hot[1:] * sign[None, :, :, None], v, dout, True, scale=1.0)


def check_hard_inputs(mesh: Mesh, hard: Problem, usual: Problem) -> dict[str, dict[str, float]]:
    found = {}
    for name, options in rows(mesh.world_size):
        method = methods.load(name)(**options)
        if method.unavailable() or method.unsupported(usual.cell(name, mesh, **options)):
            continue
        results = exact.run(method, mesh, kernels.load("reference"), hard)
        assert all(bool(result.isfinite().all()) for result in results.values()), f"{name} overflows"
        by_name = exact.errors(results, method.layout, mesh, hard)
        first, second = (exact.run(method, mesh, method.kernel, usual) for _ in range(2))
        third = exact.again(method, mesh, usual)
        for key, result in first.items():
            assert torch.equal(result, second[key]), f"{name}: {key} differs from call to call"
            assert torch.equal(result, third[key]), f"{name}: {key} differs from call to call"
        found[f"{name} {options}"] = by_name
    return found


def test_steep_logits_are_exact_and_results_do_not_change_from_call_to_call() -> None:
    for by_row in run_world(4, check_hard_inputs, steep(), exact.make(64, heads=(4, 4)), nodes=2):
        assert {row.split(" ")[0] for row in by_row} >= EVERYWHERE
        for row, by_name in by_row.items():
            # A float32 log-sum-exp of 1e4 is rounded to 1e-3, and the weights of blocks that tie with it.
            # dq and dk cancel to nearly nothing here: there is no size to hold them against.
            assert by_name["out"] <= 1e-3, row
            assert by_name["dv"] <= 1e-3, row


def check_few_tokens(mesh: Mesh, problem: Problem) -> float:
    """One token a rank: where the query comes before the key, striped blocks meet nothing at all."""
    worst = 0.0
    for name, options in [("ring", {}), ("stripe", {}), ("burst", {"layout": "striped", "side": "q"})]:
        method = methods.load(name)(**options)
        found = exact.run(method, mesh, kernels.load("reference"), problem)
        worst = max(worst, *exact.errors(found, method.layout, mesh, problem).values())
    return worst


def test_one_token_a_rank() -> None:
    assert max(run_world(4, check_few_tokens, exact.make(4), nodes=2)) <= TOLERANCE


class _SeesOut:
    """The reference kernel as one that is handed O, and makes delta from it by itself."""

    needs_out = True

    def __init__(self) -> None:
        self.forward = kernels.load("reference").forward

    def backward(
        self, dout: Any, q: Any, k: Any, v: Any, lse: Any, delta: Any, scale: float, causal: bool, out: Any
    ) -> Any:
        delta = row_dot(dout, out)
        return kernels.load("reference").backward(dout, q, k, v, lse, delta, scale, causal, out=None)


def check_kernel_that_sees_out(mesh: Mesh, problem: Problem) -> dict[str, float]:
    worst = {}
    with mock.patch.object(base, "row_dot", side_effect=AssertionError("nobody reads it")):
        for name, options in rows(mesh.world_size):
            method = methods.load(name)(**options)
            results = exact.run(method, mesh, _SeesOut(), problem)  # type: ignore[arg-type]
            by_name = exact.errors(results, method.layout, mesh, problem)
            worst[f"{name} {options}"] = max(by_name.values())
            assert not method.settings().get("opt_bwd"), "O travels in place of delta"
    return worst


def test_a_kernel_that_must_see_the_output_does_so_in_every_method() -> None:
    for by_row in run_world(4, check_kernel_that_sees_out, exact.make(64, heads=(4, 4)), nodes=2):
        assert {row.split(" ")[0] for row in by_row} >= EVERYWHERE
        for row, error in by_row.items():
            assert error <= TOLERANCE, row


class _Masks:
    """The reference kernel, noting the mask of each backward call: with zigzag only an own pair is causal."""

    needs_out = False

    def __init__(self) -> None:
        self.forward = kernels.load("reference").forward
        self.causal: list[bool] = []

    def backward(self, *args: Any, out: Any) -> Any:
        self.causal.append(args[7])
        return kernels.load("reference").backward(*args, out=out)


def check_ways_back(mesh: Mesh, problem: Problem) -> tuple[int, int]:
    """The bytes that the keys' side sends inside the node, forward and backward."""
    for name, options in [("zigzag", {}), ("burst", {"side": "q"}), ("burst", {"side": "q", "hops": "ring"})]:
        kernel = _Masks()
        exact.run(methods.load(name)(head_groups=2, **options), mesh, kernel, problem)  # type: ignore[arg-type]
        own = [index for index, causal in enumerate(kernel.causal) if causal]
        assert own == [0, len(kernel.causal) - 1], "the last hops of all else hide under the last own pair"
    moved = sent(mesh, "burst", {"side": "kv", "head_groups": 2}, problem, causal=True)
    return moved["forward"][0], moved["backward"][0]


def test_the_way_back_ends_at_the_own_pair_and_moves_only_the_rows_that_meet() -> None:
    by_rank = run_world(4, check_ways_back, exact.make(64, heads=(4, 4)), nodes=2)
    forward, backward = (sum(moved) for moved in zip(*by_rank, strict=True))
    assert backward == 2 * forward, "K and V are fetched as in the forward, dK and dV are as many rows"


# A world of 4 nodes x 8 gpus


BURST: Options = {"side": "q", "wire": "native", "hops": "ring"}
MOVING: list[tuple[str, Options]] = [
    ("burst", BURST),
    ("burst", {**BURST, "head_groups": 2}),
    ("burst", {**BURST, "head_groups": 2, "tracks": 2}),
    ("burst", {**BURST, "opt_bwd": False}),
    ("burst", {**BURST, "hops": "straight"}),
    ("double_ring", {}),
    ("double_ring", {"wire": "float32"}),
    ("zigzag", {"wire": "native"}),
]


def check_large_world(mesh: Mesh, single: Problem, half: Problem, wide_heads: Problem) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, options in [("ring", {}), ("stripe", {}), ("double_ring", {}), ("burst", {"head_groups": 2})]:
        method = methods.load(name)(**options)
        results = exact.run(method, mesh, kernels.load("reference"), single)
        found[name] = exact.errors(results, method.layout, mesh, single)
    for name, options in [("burst", {"side": "q"}), ("double_ring", {}), ("stripe", {})]:
        method = methods.load(name)(**options)
        found[f"bf16 {name}"] = method.layout, exact.run(method, mesh, kernels.load("reference"), half)
    for name, options in MOVING:
        for causal in (False, True):
            found[f"{name} {options} {causal}"] = sent(mesh, name, options, wide_heads, causal)
    return found


def sent(
    mesh: Mesh, name: str, options: Options, problem: Problem, causal: bool
) -> dict[str, tuple[int, int]]:
    """(intra, inter) bytes that this rank sends forward and backward."""
    method = methods.load(name)(**options)
    method.setup(mesh, kernels.load("reference"), causal=causal)
    q, k, v = (
        torch.zeros(1, problem.q.shape[1] // mesh.world_size, *tensor.shape[2:], dtype=tensor.dtype)
        for tensor in (problem.q, problem.k, problem.v)
    )
    mesh.traffic.reset()
    out = method(q.requires_grad_(), k, v)
    forward = (mesh.traffic.intra, mesh.traffic.inter)
    mesh.traffic.reset()
    out.backward(torch.zeros_like(out))
    return {"forward": forward, "backward": (mesh.traffic.intra, mesh.traffic.inter)}


@pytest.fixture(scope="module")
def large_world() -> list[dict[str, Any]]:
    given = (
        exact.make(256, heads=(2, 2), head_dim=32),
        exact.make(512, heads=(2, 2), head_dim=32, dtype=torch.bfloat16),
        exact.make(64, heads=(2, 2), head_dim=128, dtype=torch.bfloat16),
    )
    return run_world(32, check_large_world, *given, nodes=4)


@pytest.mark.parametrize("heads", [(4, 4), (8, 4)])
@pytest.mark.parametrize("causal", [True, False])
def test_the_bound_by_groups_of_heads_is_the_same_answer(heads: tuple[int, int], causal: bool) -> None:
    mesh, problem = Mesh(1, 1, 0, torch.device("cpu")), exact.make(96, heads=heads, causal=causal, batch=2)
    kernel = _Counting()
    for count in (1, 2, 4):
        method = methods.load("single")(head_groups=count)
        assert method.unsupported(problem.cell("single", mesh)) is None
        errors = exact.errors(exact.run(method, mesh, kernel, problem), "contiguous", mesh, problem)
        assert max(errors.values()) <= TOLERANCE
        assert kernel.calls == {"forward": count, "backward": count}
        kernel.calls.clear()
    for count, reason in ((3, "does not divide 4 kv heads"), (0, "no automatic choice")):
        found = methods.load("single")(head_groups=count).unsupported(problem.cell("single", mesh))
        assert reason in (found or "")


class _Counting:
    """The reference kernel, counting its calls."""

    def __init__(self) -> None:
        self.calls: collections.Counter[str] = collections.Counter()
        self._kernel = kernels.load("reference")

    def __getattr__(self, name: str) -> Any:
        if name in ("forward", "backward"):
            self.calls[name] += 1
        return getattr(self._kernel, name)


def test_the_error_does_not_grow_with_the_number_of_ranks(large_world: list[dict[str, Any]]) -> None:
    problem, mesh = exact.make(256, heads=(2, 2), head_dim=32), Mesh(1, 1, 0, torch.device("cpu"))
    alone = exact.run(methods.load("burst")(), mesh, kernels.load("reference"), problem)
    by_one = exact.errors(alone, "zigzag", mesh, problem)
    for name in ("ring", "stripe", "double_ring", "burst"):
        for key, error in by_one.items():
            together = sum(found[name][key] for found in large_world) / 32
            assert together <= TOLERANCE
            assert together <= 2 * error, (
                f"{name}: {key} is off by {together:.1e}, on one rank by {error:.1e}"
            )


def test_bf16_on_32_ranks_is_at_most_twice_as_far_off_as_the_kernel_alone(
    large_world: list[dict[str, Any]],
) -> None:
    problem = exact.make(512, heads=(2, 2), head_dim=32, dtype=torch.bfloat16)
    mesh = Mesh(1, 1, 0, torch.device("cpu"))
    kernel = exact.run(methods.load("single")(), mesh, kernels.load("reference"), problem)
    alone = exact.errors(kernel, "contiguous", mesh, problem)
    for name in ("bf16 burst", "bf16 double_ring", "bf16 stripe"):
        layout = large_world[0][name][0]
        undo = layouts.inverse(layouts.permutation(layout, 512, 32))
        for key, error in alone.items():
            whole = torch.cat([found[name][1][key] for found in large_world], 1)[:, undo]
            together = exact.relative(whole, problem.exact[key], problem.exact[key], 1)
            assert together <= 2 * error, f"{name}: {key} is off by {together:.1e}, the kernel by {error:.1e}"


def test_what_4_x_8_ranks_move(large_world: list[dict[str, Any]]) -> None:
    """28 inner and 3 outer hops of 2T forward; backward 3.03T a hop for burst, 4T for the double ring."""
    local = (64 // 32) * 2 * 128 * 2  # T
    per_row = (64 // 32) * 2 * 4  # a float32 for each row and head
    flat = ("zigzag", MOVING[-1][1])
    hops = {
        "burst q": 2 * local + 2 * per_row + local,
        "burst with O": 3 * local + per_row + local,
        "double_ring": 2 * local + 2 * local,
    }
    assert [round(size / local, 2) for size in hops.values()] == [3.03, 4.02, 4.0]
    for name, options in MOVING:
        forward, backward = (
            [world[f"{name} {options} False"][way] for world in large_world]
            for way in ("forward", "backward")
        )
        if (name, options) == flat:
            # All 31 hops of a node's last rank cross to the next node, all others stay inside.
            assert forward == [(0, 62 * local) if rank % 8 == 7 else (62 * local, 0) for rank in range(32)]
            assert backward == [(0, 124 * local) if rank % 8 == 7 else (124 * local, 0) for rank in range(32)]
            continue
        kind = "burst with O" if "opt_bwd" in options else "burst q" if name == "burst" else name
        inner = outer = hops[kind]
        if options.get("wire") == "float32":  # of sums, from node to node; they are bf16 else
            outer += 2 * local
        assert forward == [(28 * 2 * local, 3 * 2 * local)] * 32
        assert backward == [(28 * inner, 3 * outer)] * 32


def test_under_a_causal_mask_only_the_rows_that_met_travel_home(large_world: list[dict[str, Any]]) -> None:
    """Straight home inside the node: all rows of an earlier block of queries, half of a later one's."""
    local = (64 // 32) * 2 * 128 * 2  # T
    name, options = MOVING[0]
    straight = {**BURST, "hops": "straight"}
    saved_by_all = 0
    for rank, world in enumerate(large_world):
        full, causal = (world[f"{name} {options} {mask}"] for mask in (False, True))
        node, gpu = divmod(rank, 8)
        sources = [(node - o) % 4 * 8 + (gpu - i) % 8 for o in range(4) for i in range(1, 8)]
        meetings = [geometry.meeting("zigzag", source, rank, 2, True) for source in sources]
        saved = sum(2 - len(range(2)[meet.queries]) for meet in meetings if meet) * local // 2
        saved_by_all += saved
        assert causal["forward"] == full["forward"]
        assert causal["backward"] == (full["backward"][0] - saved, full["backward"][1])
        # Fetched straight, a block is only the rows that meet: K, V forward, Q, dO, lse, delta backward.
        fetched = world[f"{name} {straight} True"]
        visitors = [node * 8 + (gpu + i) % 8 for _ in range(4) for i in range(1, 8)]
        owners = [(node - o) % 4 * 8 + gpu for o in range(4) for _ in range(1, 8)]
        pairs = [(owner, visitor) for owner, visitor in zip(owners, visitors)]
        keys = [geometry.meeting("zigzag", visitor, owner, 2, True) for owner, visitor in pairs]
        queries = [geometry.meeting("zigzag", owner, visitor, 2, True) for owner, visitor in pairs]
        half = local // 2
        kept = sum(len(range(2)[meet.keys]) for meet in keys if meet) * 2 * half
        assert fetched["forward"] == (kept, full["forward"][1])
        blocks = sum(len(range(2)[meet.queries]) for meet in queries if meet) * (2 * half + 8 + 8)
        sums = sum(len(range(2)[meet.queries]) for meet in meetings if meet) * half
        assert fetched["backward"] == (blocks + sums, full["backward"][1])
    assert saved_by_all == 32 * 28 * local // 4, "half of all pairs have a later contributor"


# What a method says of itself


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("zigzag", {"wire": "native"}, "31 hops of 2T forward and of 4T backward"),
        ("zigzag", {}, "31 hops of 2T forward and of 6T backward"),
        ("burst", {"wire": "float32"}, "of 3.03T and 4.03T backward"),
        ("double_ring", {}, "28 inner and 3 outer hops of 2T forward, of 4T and 4T backward"),
        ("burst", {}, "28 inner and 3 outer hops of 2T forward, of 3.03T and 3.03T backward"),
        ("burst", {"wire": "native", "opt_bwd": False}, "of 4.02T and 4.02T backward"),
        ("burst", {"wire": "native", "side": "kv"}, "of 4T and 4T backward"),
        ("ulysses", {}, "all-to-all over 32: 3.88T forward and 3.88T backward"),
        ("usp", {}, "over 8: 3.5T forward and 3.5T backward; ring of 4: 0 inner and 3 outer hops of 2T"),
        ("usp", {"placement": "ring_first"}, "over 4: 3T forward and 3T backward; ring of 8: 7 hops of 2T"),
        (
            "usp",
            {"ulysses": 4, "wire": "float32"},
            "ring of 8: 4 inner and 3 outer hops of 2T forward, of 4T",
        ),
        ("usp", {"ulysses": 4, "wire": "float32"}, "of 4T and 6T backward"),
        ("usp", {"ulysses": 2, "placement": "ring_first"}, "ring of 16: 14 inner and 1 outer hops"),
    ],
)
def test_a_method_says_what_it_moves(name: str, options: Options, says: str) -> None:
    assert says in methods.load(name)(**options).moves(MeshShape(4, 8))


def test_on_one_node_contributions_go_straight_and_are_no_wider_than_the_model() -> None:
    assert methods.load("zigzag")().moves(MeshShape(1, 8)) == "7 hops of 2T forward and of 4T backward"


def cell(name: str, **changes: Any) -> Cell:
    options = changes.pop("options", {})
    shape = Shape(**changes.pop("shape", {}))
    return Cell(name, changes.pop("seqlen_global", 4096), shape, mesh=MeshShape(2, 4), options=options)


@pytest.mark.parametrize(
    ("name", "changes", "says"),
    [
        ("zigzag", {"seqlen_global": 1000}, "take 992 or 1008"),
        ("stripe", {"seqlen_global": 1001}, "take 1000 or 1008"),
        ("burst", {"options": {"head_groups": 3}}, "head_groups 3 does not divide 40 kv heads"),
        ("zigzag", {"options": {"abreast": 2}}, "abreast is 2, which needs hops=straight"),
        ("ring", {"options": {"head_groups": True}}, "give a whole number"),
        ("burst", {"options": {"layout": "contiguous"}}, "choose one of zigzag, striped"),
        ("burst", {"options": {"side": "left"}}, "choose one of auto, q, kv"),
        ("burst", {"options": {"opt_bwd": 3}}, "choose one of true, false"),
        ("double_ring", {"options": {"wire": "copper"}}, "choose one of auto, native, float32"),
    ],
)
def test_a_cell_that_cannot_be_is_refused_with_what_to_change(
    name: str, changes: dict[str, Any], says: str
) -> None:
    asked = cell(name, **changes)
    try:
        reason = methods.load(name)(**asked.options).unsupported(asked)
    except UserError as error:  # a value that no cell could have is refused where the method is made
        reason = str(error)
    assert reason is not None
    assert says in reason
    assert methods.load(name)().unsupported(cell(name)) is None


@pytest.mark.parametrize("options", [{"abreast": 1}, {"abreast": 2, "hops": "straight"}, {"head_groups": 8}])
def test_a_cell_that_can_be_is_not_refused(options: Options) -> None:
    asked = cell("zigzag", options=options)
    assert methods.load("zigzag")(**options).unsupported(asked) is None


@pytest.mark.parametrize(
    ("heads", "wire", "nodes", "side"),
    [
        ((8, 8), "auto", 1, "q"),
        ((8, 8), "native", 4, "q"),
        ((8, 4), "auto", 1, "kv"),
        ((8, 1), "native", 4, "kv"),
        # With seven heads for ten it is q where sums of float32 travel, and kv where bf16 does.
        ((10, 7), "auto", 1, "kv"),
        ((10, 7), "float32", 1, "kv"),  # inside a node contributions go straight
        ((10, 7), "auto", 4, "kv"),
        ((10, 7), "float32", 4, "q"),
    ],
)
def test_the_side_that_travels_is_the_one_of_fewer_bytes(
    heads: tuple[int, int], wire: str, nodes: int, side: str
) -> None:
    method = burst.Method(wire=wire)
    method.setup(Mesh(1, 1, 0, torch.device("cpu")), kernels.load("reference"), causal=True)
    q, k = (torch.empty(1, 64, count, 128, dtype=torch.bfloat16) for count in heads)
    method.blocks.outer.group = Group(tuple(range(nodes)), 0, None)
    assert method.side(q, k) == side
    assert method.settings()["side"] == side
    assert method.settings()["opt_bwd"] is True


def test_the_bytes_of_a_hop_on_either_side() -> None:
    """Ten rows and heads of q, five of k, of 128 bf16; sums of float32."""
    native, carried = torch.bfloat16, torch.float32
    side_kv = 5 * 128 * (2 + 2 + 4 + 4)  # K, V, dK, dV
    side_q = 10 * 128 * (2 + 2 + 4)  # Q, dO, dQ
    assert burst.hop_bytes(1280, 640, 128, native, carried, True) == (side_q + 10 * (4 + 4), side_kv)
    assert burst.hop_bytes(1280, 640, 128, native, carried, False) == (side_q + 10 * (4 + 2 * 128), side_kv)


def test_along_a_flat_ring_over_nodes_float32_sums_count() -> None:
    method = burst.Method()
    method.setup(Mesh(1, 1, 0, torch.device("cpu")), kernels.load("reference"), causal=True)
    method.blocks.inner.group = Group((0, 1), 0, None)  # the mesh has one rank a node
    q, k = (torch.empty(1, 64, count, 128, dtype=torch.bfloat16) for count in (10, 7))
    assert method.side(q, k) == "q"


@pytest.mark.parametrize(
    ("nodes", "gpus", "options", "mib", "ran"),
    [
        (1, 1, {}, 32, {"head_groups": 1, "tracks": 1, "abreast": 1}),
        (1, 4, {}, 32, {"head_groups": 2, "tracks": 2, "abreast": 3}),
        (1, 8, {}, 32, {"head_groups": 2, "tracks": 2, "abreast": 4}),
        (1, 8, {"abreast": 2}, 16, {"head_groups": 1, "tracks": 1, "abreast": 2}),
        (1, 8, {"hops": "ring"}, 32, {"head_groups": 1, "tracks": 1, "abreast": 1}),
        (2, 1, {}, 40, {"head_groups": 4, "tracks": 1, "abreast": 1}),
        (1, 1, {"head_groups": 8, "tracks": 2}, 1, {"head_groups": 8, "tracks": 2, "abreast": 1}),
    ],
)
def test_what_is_left_to_the_size_follows_it_the_nodes_and_the_gpus(
    nodes: int, gpus: int, options: Options, mib: int, ran: Options
) -> None:
    method = burst.Method(**options)
    method.setup(Mesh(1, 1, 0, torch.device("cpu")), kernels.load("reference"), causal=True)
    assert method.settings().items() >= {**method.options, "transport": "none"}.items()
    inner, outer = method.blocks.inner, method.blocks.outer
    inner.mesh = Mesh(nodes, gpus, 0, torch.device("cpu"))
    inner.group, outer.group = (Group(tuple(range(size)), 0, None) for size in (gpus, nodes))
    q = torch.empty(1, mib * 4096, 8, 16, dtype=torch.bfloat16, device="meta")
    method.weave(q, q, lambda track, groups: iter(()))
    assert method.settings().items() >= ran.items()


@pytest.mark.parametrize(
    ("layout", "causal", "calls"),
    [
        ("zigzag", True, [[0, 1], [3, 4]]),
        ("zigzag", False, [[0, 1, 3, 4]]),
        ("striped", True, [[0], [1], [3], [4]]),
    ],
)
def test_blocks_that_meet_the_same_rows_of_ours_are_met_in_one_call(
    layout: str, causal: bool, calls: list[list[int]]
) -> None:
    method = burst.Method(layout=layout)
    method.mesh, method.causal = Mesh(1, 5, 2, torch.device("cpu")), causal
    for travels in ("keys", "queries"):
        kind = method.alike(travels, torch.empty(1, 8, 1, 1))
        assert [list(party) for _, party in itertools.groupby([0, 1, 3, 4], kind)] == calls
