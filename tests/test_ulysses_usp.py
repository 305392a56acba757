"""Ulysses and USP on gloo worlds: exact to the last gradient, moving no more than they say."""

from __future__ import annotations

import pytest
import torch

import ringmark
from ringmark import layout
from ringmark.cell import Cell, MeshShape, Shape
from ringmark.comm import all_to_all
from ringmark.comm.all_to_all import HeadExchange
from ringmark.comm.line import line
from ringmark.comm.mesh import Mesh
from ringmark.errors import UserError
from ringmark.methods import ulysses, usp
from world import run_world

NAMES = ("out", "dq", "dk", "dv")


def exact(q, k, v, dout, causal):
    """out, dq, dk, dv by autograd over the whole score matrix, in the dtype of q."""
    q, k, v = (t.clone().requires_grad_() for t in (q, k, v))
    group = q.shape[2] // k.shape[2]
    keys, values = k.repeat_interleave(group, 2), v.repeat_interleave(group, 2)
    scores = torch.einsum("bqhd,bkhd->bhqk", q, keys) * q.shape[-1] ** -0.5
    if causal:
        scores = scores.masked_fill(torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1), float("-inf"))
    out = torch.einsum("bhqk,bkhd->bqhd", scores.softmax(-1), values)
    return out.detach(), *torch.autograd.grad(out, (q, k, v), dout)


def inputs(batch, seqlen_global, heads_q, heads_kv, head_dim=16):
    torch.manual_seed(heads_q * 100 + heads_kv)
    made = [torch.randn(batch, seqlen_global, h, head_dim) for h in (heads_q, heads_kv, heads_kv, heads_q)]
    return [t.double() for t in made]


def compare(mesh, name, options, problem, causal, dtype=torch.float32):
    """Relative errors of (out, dq, dk, dv) on this rank's rows, and what this rank sent."""
    full = inputs(*problem)
    attention = ringmark.method(name, mesh, causal=causal, kernel="reference", **options)
    q, k, v, dout = (ringmark.shard(t, attention.layout, mesh).to(dtype) for t in full)
    for t in (q, k, v):
        t.requires_grad_()
    mesh.traffic.reset()
    out = attention(q, k, v)
    forward = (mesh.traffic.intra, mesh.traffic.inter)
    mesh.traffic.reset()
    out.backward(dout)
    backward = (mesh.traffic.intra, mesh.traffic.inter)
    want = [ringmark.shard(t, attention.layout, mesh) for t in exact(*full, causal)]
    got = (out.detach(), q.grad, k.grad, v.grad)
    errors = [((g - w).norm() / w.norm()).item() for g, w in zip(got, want)]
    return dict(zip(NAMES, errors)), forward, backward, attention.settings()


def check_many(mesh, cases):
    return [compare(mesh, *case) for case in cases]


def assert_exact(answers, cases, limit=1e-5):
    for rank, answer in enumerate(answers):
        for (errors, *_), case in zip(answer, cases):
            assert max(errors.values()) < limit, f"rank {rank}, {case}: {errors}"


ULYSSES_4 = [
    ("ulysses", {}, (2, 32, 8, 8), True),
    ("ulysses", {}, (1, 32, 4, 4), False),
    ("ulysses", {}, (2, 32, 8, 2), True),  # two ranks share each kv head
    ("ulysses", {}, (1, 28, 4, 1), False),  # all share the one
    ("ulysses", {"head_groups": 2}, (2, 32, 16, 8), True),
    ("ulysses", {"head_groups": 3}, (1, 32, 20, 20), True),  # groups of 1, 2 and 2 heads
]
HEAD_FIRST, RING_FIRST = {"placement": "head_first"}, {"placement": "ring_first"}
USP_4 = [
    ("usp", HEAD_FIRST, (2, 32, 4, 4), True),
    ("usp", RING_FIRST, (2, 32, 4, 4), True),
    ("usp", HEAD_FIRST, (1, 32, 4, 2), False),
    ("usp", RING_FIRST, (1, 32, 8, 1), True),
    ("usp", {**HEAD_FIRST, "ulysses": 4}, (1, 32, 4, 4), True),  # one team: Ulysses
    ("usp", {**RING_FIRST, "ulysses": 1}, (1, 32, 3, 3), True),  # teams of one: the ring
    ("usp", {**HEAD_FIRST, "head_groups": 2, "wire": "native"}, (2, 32, 8, 4), True),
]
BF16_4 = [(*case, torch.bfloat16) for case in (ULYSSES_4[0], ULYSSES_4[2], USP_4[0], USP_4[1])]


def test_four_ranks_are_exact_and_move_what_they_say():
    cases = ULYSSES_4 + USP_4
    answers = run_world(4, check_many, cases + BF16_4, nodes=2)
    assert_exact([answer[: len(cases)] for answer in answers], cases)
    assert_exact([answer[len(cases) :] for answer in answers], BF16_4, limit=1.2e-2)
    # T is one local tensor: batch 2, 8 rows, 8 heads of 16, float32. Three quarters of each tensor leave,
    # a quarter to the neighbour in the node, two quarters to the other node; there are 4 tensors each way.
    tensor = 2 * 8 * 8 * 16 * 4
    for answer in answers:
        _, forward, backward, _ = answer[0]
        assert forward == backward == (4 * tensor // 4, 4 * tensor // 2)
    # With 2 kv heads each still sends a head to each of 3 ranks: K and V are half a tensor of q's size / 2.
    _, forward, backward, _ = answers[0][2]
    head = tensor // 8
    assert sum(forward) == 3 * (2 * head + 2 * head + head + head)
    assert sum(backward) == sum(forward)
    # USP: the placement decides which of the two crosses the nodes. Batch 2, 8 rows, 4 heads: half of each of
    # four tensors in the all-to-all; the ring of 2 carries a team's K and V with half of the heads: 2 T.
    tensor //= 2
    exchange, ring = 4 * tensor // 2, 2 * tensor
    assert answers[0][len(ULYSSES_4)][1] == (exchange, ring), "head_first: the ring between the nodes"
    assert answers[0][len(ULYSSES_4) + 1][1] == (ring, exchange), "ring_first: the all-to-all between them"
    settings = answers[0][len(ULYSSES_4)][3]
    assert (settings["ulysses_degree"], settings["ring_degree"]) == (2, 2)
    assert answers[0][4][3]["head_groups"] == 2


SIX = [
    ("ulysses", {}, (1, 36, 6, 6), True),
    ("ulysses", {}, (1, 36, 12, 2), True),  # three ranks share a kv head
    ("usp", HEAD_FIRST, (1, 36, 4, 4), True),  # 3 nodes of 2: teams of 2, a ring of 3
    ("usp", RING_FIRST, (1, 36, 3, 3), True),  # teams of 3 across the nodes, rings of 2 inside
    ("usp", {**HEAD_FIRST, "ulysses": 3}, (2, 36, 3, 1), True),  # teams that reach over a node
    ("usp", {**RING_FIRST, "ulysses": 2}, (1, 36, 4, 2), False),
]


def test_three_by_two_ranks_are_exact():
    assert_exact(run_world(6, check_many, SIX, nodes=3), SIX)


EIGHT = [
    ("ulysses", {}, (1, 64, 8, 8), True),
    ("usp", HEAD_FIRST, (1, 64, 4, 4), True),
    ("usp", RING_FIRST, (1, 64, 4, 2), True),
    ("usp", {**HEAD_FIRST, "ulysses": 2}, (1, 64, 2, 2), True),  # a double ring of 2 x 2
    ("usp", {**RING_FIRST, "ulysses": 4}, (1, 64, 4, 4), True),
]


def test_two_by_four_ranks_are_exact():
    assert_exact(run_world(8, check_many, EIGHT, nodes=2), EIGHT)


def test_one_rank_is_plain_attention():
    mesh = Mesh(1, 1, 0, torch.device("cpu"))
    for name in ("ulysses", "usp"):
        errors, forward, backward, settings = compare(mesh, name, {}, (2, 16, 4, 2), True)
        assert max(errors.values()) < 1e-6, (name, errors)
        assert forward == backward == (0, 0)
        assert settings["transport"] == "none"


LINES = [
    # (nodes, gpus) of the world, of the view, axis, shape of a line, line of rank 0
    ((2, 4), (2, 4), "intra", (1, 4), (0, 1, 2, 3)),
    ((2, 4), (2, 4), "inter", (2, 1), (0, 4)),
    ((2, 4), (4, 2), "inter", (2, 2), (0, 2, 4, 6)),  # two ranks on each of two nodes
    ((2, 4), (1, 8), "intra", (2, 4), (0, 1, 2, 3, 4, 5, 6, 7)),
    ((2, 4), (8, 1), "intra", (1, 1), (0,)),
    ((3, 2), (2, 3), "intra", (1, 3), (0, 1, 2)),  # two ranks on one node, one on the next: flat
    ((4, 8), (8, 4), "inter", (4, 2), tuple(range(0, 32, 4))),
]


@pytest.mark.parametrize(("world", "seen", "axis", "shape", "members"), LINES)
def test_a_line_has_the_shape_of_its_nodes(world, seen, axis, shape, members):
    for rank in range(world[0] * world[1]):
        mesh = Mesh(*world, rank, torch.device("cpu"))
        found = line(mesh.view(*seen), axis)
        assert (found.nodes, found.gpus) == shape
        assert found.view(*shape) is found
        with pytest.raises(ValueError, match="it has no 64x1 view"):
            found.view(64, 1)
        assert found is line(mesh.view(*seen), axis), "one of each: communicators are shared"
        own = found.members("flat")
        assert own[found.rank] == rank, "a rank is known by its position"
        if rank == 0:
            assert own == members
        inner = found.members("intra")
        assert shape[0] == 1 or len({other // world[1] for other in inner}) == 1, "inner rings stay in a node"
        assert [found.same_node(other) for other in own] == [
            other // world[1] == rank // world[1] for other in own
        ]


def there_and_back(mesh):
    """Every rank labels its rows and heads; what arrives where is then known exactly."""
    exchange = HeadExchange(mesh, "flat", "heads")
    batch, seqlen, heads, seen = 2, 3, 8, []
    row = torch.arange(seqlen) + mesh.rank * seqlen
    labels = (
        torch.arange(batch)[:, None, None] * 1000 + row[None, :, None] * 10 + torch.arange(heads)
    ).float()
    tensor = labels[..., None].expand(-1, -1, -1, 4)  # stride 0: packing must cope with any strides
    for span in (slice(0, 1), slice(1, 2), slice(0, 2)):
        (by_heads,) = exchange.to_heads([tensor], [span]).wait()
        seen.append(by_heads[..., 0].clone())
        back = torch.full((batch, seqlen, heads, 4), -1.0)
        (back,) = exchange.to_sequence([by_heads], [span], [back]).wait()
        moved = back >= 0
        assert torch.equal(back[moved], tensor.contiguous()[moved])
        assert moved.sum() == batch * seqlen * 4 * 4 * (span.stop - span.start)
    return seen


def test_every_row_of_every_head_arrives_where_it_belongs():
    for rank, seen in enumerate(run_world(4, there_and_back)):
        for span, got in zip(([0], [1], [0, 1]), seen):
            rows = torch.arange(12)[None, :, None] * 10
            heads = torch.tensor([2 * rank + head for head in span])
            want = torch.arange(2)[:, None, None] * 1000 + rows + heads
            assert torch.equal(got, want.float()), f"rank {rank}, heads {span}"


def sum_of_copies(mesh):
    """Four ranks share two kv heads; bf16 parts of 256 and 1 sum to 257, which bf16 rounds to 256."""
    exchange = HeadExchange(mesh, "flat", "heads")
    part = torch.full((1, 4, 1, 8), 256.0 if mesh.rank % 2 else 1.0, dtype=torch.bfloat16)
    target = torch.empty(1, 1, 2, 8)
    return exchange.to_sequence([part], [slice(0, 1)], [target]).wait()[0]


def test_copies_of_a_kv_head_are_summed_in_float32():
    for total in run_world(4, sum_of_copies):
        assert torch.equal(total, torch.full((1, 1, 2, 8), 257.0))


@pytest.mark.parametrize(
    ("heads_q", "heads_kv", "ranks", "words"),
    [
        (40, 40, 16, "the number of ranks can be one of 1, 2, 4, 5, 8, 10, 20, 40"),
        (12, 4, 6, "4 kv heads and 6"),
    ],
)
def test_heads_that_cannot_be_dealt_are_refused(heads_q, heads_kv, ranks, words):
    shape = Shape(num_heads_q=heads_q, num_heads_kv=heads_kv)
    cell = Cell("ulysses", 1 << 16, shape, mesh=MeshShape(1, ranks))
    assert words in ulysses.Method().unsupported(cell)
    assert words in all_to_all.reason_not(heads_q, heads_kv, ranks)


def test_usp_says_what_cannot_be():
    cell = Cell("usp", 1 << 16, mesh=MeshShape(4, 8))
    assert usp.Method().unsupported(cell) is None
    assert usp.Method(placement="ring_first").unsupported(cell) is None
    assert usp.Method().settings()["transport"] == "auto", "it has not been set up"
    assert "must divide the 32 ranks" in usp.Method(ulysses=5).unsupported(cell)
    assert "ulysses can be one of 1, 2, 4" in usp.Method(ulysses=16).unsupported(cell)
    assert "take" in usp.Method().unsupported(Cell("usp", 1000, mesh=MeshShape(4, 8)))
    with pytest.raises(UserError, match="wire is slow"):
        usp.Method(wire="slow")
    with pytest.raises(UserError, match="choose one of head_first, ring_first"):
        usp.Method(placement="sideways")


@pytest.mark.parametrize("neighbours", [True, False])
@pytest.mark.parametrize(("world_size", "team"), [(4, 2), (6, 2), (6, 3), (8, 2), (8, 4), (4, 1), (4, 4)])
def test_a_team_holds_the_rows_of_one_zigzag_rank(world_size, team, neighbours):
    """An all-to-all in a team lines its members' rows up; that must be a rank of zigzag over the teams."""
    name, teams, seqlen_global = layout.shared("zigzag", team, world_size, neighbours), world_size // team, 48
    rows = [layout.tokens(name, seqlen_global, rank, world_size) for rank in range(world_size)]
    assert torch.equal(torch.cat(rows).sort().values, torch.arange(seqlen_global))
    for ring_rank in range(teams):
        members = [r for r in range(world_size) if (r // team if neighbours else r % teams) == ring_rank]
        want = layout.tokens("zigzag" if teams > 1 else "contiguous", seqlen_global, ring_rank, teams)
        assert torch.equal(torch.cat([rows[r] for r in members]), want)
