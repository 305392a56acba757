"""The public API, used as its docstring shows it."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import torch

import exact
import ringmark
from ringmark.comm.mesh import Mesh
from ringmark.errors import UserError
from world import run_world


def use(mesh: Mesh, problem: exact.Problem) -> float:
    made = ringmark.mesh(nodes=2)
    assert (made.rank, made.nodes, made.gpus) == (mesh.rank, 2, 2)
    attention = ringmark.method("burst", made, causal=True, side="q", head_groups=2)
    locals_ = [ringmark.shard(full, attention.layout, made) for full in (problem.q, problem.k, problem.v)]
    q, k, v = (local.requires_grad_() for local in locals_)
    out = attention(q, k, v)
    out.backward(ringmark.shard(problem.dout, attention.layout, made))
    assert q.grad is not None
    assert attention.settings() == {
        "head_groups": 2, "tracks": 1, "wire": "auto", "ctas": 0, "priority": "high", "transport": "gloo",
        "hops": "straight",
        "abreast": 1,
        "layout": "zigzag", "opt_bwd": True, "side": "q",
    }  # fmt: skip
    worst = 0.0
    for name, local in [("out", out), ("dq", q.grad), ("dk", k.grad), ("dv", v.grad)]:
        assert local is not None
        full = ringmark.unshard(local, attention.layout, made)
        worst = max(worst, float((full - problem.exact[name]).norm() / problem.exact[name].norm()))
    # Another shape through the same object, with fewer kv heads and another length.
    small = torch.randn(1, 8, 4, 16)
    assert attention(small, small[:, :, :2], small[:, :, :2]).shape == small.shape
    with pytest.raises(UserError, match="take 48 or 56"):
        ringmark.shard(torch.zeros(1, 50, 1), "zigzag", made)
    with pytest.raises(UserError, match="burst: seqlen_global 36 does not divide by 8"):
        attention(torch.zeros(1, 9, 4, 16), torch.zeros(1, 9, 4, 16), torch.zeros(1, 9, 4, 16))
    return worst


def test_the_example_of_the_docstring_on_four_ranks() -> None:
    assert max(run_world(4, use, exact.make(64), nodes=2)) <= 1e-5


@pytest.mark.parametrize("name", ["single", "ring", "zigzag", "stripe", "double_ring", "burst"])
def test_one_process_needs_no_launcher(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable in ("RANK", "WORLD_SIZE", "LOCAL_RANK"):
        monkeypatch.delenv(variable, raising=False)
    problem = exact.make(64, heads=(4, 2), causal=False)
    attention = ringmark.method(name, ringmark.mesh(), causal=False)
    out = attention(problem.q, problem.k, problem.v)
    assert float((out - problem.exact["out"]).norm() / problem.exact["out"].norm()) <= 1e-5


def test_mistakes_are_told_in_a_sentence() -> None:
    alone = Mesh(1, 1, 0, torch.device("cpu"))
    with pytest.raises(UserError, match="did you mean 'burst'"):
        ringmark.method("brust", alone)
    with pytest.raises(UserError, match="zigzag has no option 'layout'"):
        ringmark.method("zigzag", alone, layout="striped")
    with pytest.raises(UserError, match="num_heads_kv 3 does not divide num_heads_q 4"):
        ringmark.method("ring", alone)(*(torch.zeros(1, 8, heads, 16) for heads in (4, 3, 3)))
    with pytest.raises(UserError, match="ctas is abc: give a whole number"):
        ringmark.method("burst", alone, ctas="abc")
    with pytest.raises(UserError, match="teams of 3 do not divide 2 ranks"):
        ringmark.method("usp", Mesh(1, 2, 0, torch.device("cpu")), ulysses=3)
    for move in (ringmark.shard, ringmark.unshard):
        with pytest.raises(UserError, match="no layout 'zgzag': did you mean 'zigzag'"):
            move(torch.zeros(1, 8, 1), "zgzag", alone)
    with pytest.raises(UserError, match=r"torch.int64 is not computed"):
        ringmark.method("ring", alone)(*[torch.zeros(1, 8, 4, 16, dtype=torch.int64)] * 3)


def test_k_and_v_that_do_not_fit_are_told_before_anything_is_sent() -> None:
    alone = Mesh(1, 1, 0, torch.device("cpu"))
    q = torch.zeros(1, 8, 4, 16)
    for k, v, says in (
        (q, q[:, :, :2], "ring: k is (1, 8, 4, 16), v (1, 8, 2, 16): give them one shape"),
        (q, q[..., :8], "v (1, 8, 4, 8): give them one shape"),
        (q[:, :4], q[:, :4], "k and v (1, 4, 4, 16): only the number of heads may differ"),
        (q[..., :8], q[..., :8], "only the number of heads may differ"),
        (torch.cat([q, q]), torch.cat([q, q]), "only the number of heads may differ"),
        (q[0], q, "k has the shape (8, 4, 16): give (batch, rows, heads, head_dim)"),
        (q.double(), q, "more than one dtype (q torch.float32, k torch.float64, v torch.float32): give them"),
        (q.bfloat16(), q.bfloat16(), "more than one dtype"),
        (q, q.to("meta"), "more than one device (q cpu, k cpu, v meta): give them one"),
    ):
        for causal in (True, False):
            with pytest.raises(UserError, match=re.escape(says)):
                ringmark.method("ring", alone, causal=causal)(q, k, v)


def mistaken_then_right(mesh: Mesh, problem: exact.Problem) -> float:
    attention = ringmark.method("ring", mesh)
    q, k, v = (ringmark.shard(full, attention.layout, mesh) for full in (problem.q, problem.k, problem.v))
    attention(q, k, v)
    for wrong_k, wrong_v in ((k[:, :4], v[:, :4]), (k, v[..., :8]), (k.double(), v)):
        with pytest.raises(UserError):
            attention(q, wrong_k, wrong_v)
    out = ringmark.unshard(attention(q, k, v), attention.layout, mesh)
    return float((out - problem.exact["out"]).norm() / problem.exact["out"].norm())


def test_a_call_after_a_mistake_is_as_right_as_the_first() -> None:
    """What a call that failed half way had sent, the next would have received."""
    assert max(run_world(2, mistaken_then_right, exact.make(16), timeout_s=60.0)) <= 1e-5


def test_the_names_are_there_without_torch_until_one_is_used() -> None:
    code = "import sys, ringmark as r; assert {0} not in sys.modules; r.shard; assert {0} in sys.modules"
    code = code.format("'torch'")
    subprocess.run([sys.executable, "-c", code], check=True)
    assert "burst" in ringmark.methods.names()
    with pytest.raises(AttributeError, match="nothing"):
        _ = ringmark.nothing
