"""Layouts are permutations with inverses, and their block pairs cover every causal pair exactly once."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from ringmark import heads, layout
from ringmark.geometry import meeting

names = st.sampled_from(layout.LAYOUTS)
world_sizes = st.integers(1, 12)
multiples = st.integers(1, 4)


@given(names, world_sizes, multiples)
def test_a_layout_deals_every_token_once_and_can_be_undone(name: str, world_size: int, times: int) -> None:
    seqlen_global = times * layout.divisor(name, world_size)
    order = layout.permutation(name, seqlen_global, world_size)
    assert sorted(order.tolist()) == list(range(seqlen_global))
    assert order[layout.inverse(order)].tolist() == list(range(seqlen_global))
    full = torch.arange(2 * seqlen_global).view(2, seqlen_global)
    together = torch.cat([layout.shard(full, name, rank, world_size) for rank in range(world_size)], 1)
    assert torch.equal(together[:, layout.inverse(order)], full)


@given(names, world_sizes, multiples)
def test_positions_grow_along_a_ranks_rows(name: str, world_size: int, times: int) -> None:
    for rank in range(world_size):
        rows = layout.tokens(name, times * layout.divisor(name, world_size), rank, world_size)
        assert bool((rows.diff() > 0).all())


@given(names, world_sizes, multiples, st.booleans())
def test_every_pair_that_the_mask_allows_is_met_exactly_once(
    name: str, world_size: int, times: int, causal: bool
) -> None:
    seqlen_global = times * layout.divisor(name, world_size)
    seqlen_local = seqlen_global // world_size
    rows = [layout.tokens(name, seqlen_global, rank, world_size) for rank in range(world_size)]
    met = torch.zeros(seqlen_global, seqlen_global, dtype=torch.int64)
    for rank_q in range(world_size):
        for rank_k in range(world_size):
            pair = meeting(name, rank_q, rank_k, seqlen_local, causal)
            if pair is None:
                continue
            queries, keys = rows[rank_q][pair.queries], rows[rank_k][pair.keys]
            seen = torch.ones(len(queries), len(keys), dtype=torch.int64)
            if pair.causal:
                assert len(queries) == len(keys), "a causal mask is square"
                seen = seen.tril()
            met[queries[:, None], keys[None, :]] += seen
    allowed = torch.ones_like(met).tril() if causal else torch.ones_like(met)
    assert torch.equal(met, allowed)


@pytest.mark.parametrize("world_size", [2, 3, 8])
@pytest.mark.parametrize("name", ["zigzag", "striped"])
def test_the_balanced_layouts_balance(name: str, world_size: int) -> None:
    """Causal work of every rank, in pairs of tokens; the contiguous deal is off by up to 2N - 1 times."""

    def work(name: str, rank: int, seqlen_local: int) -> int:
        total = 0
        for other in range(world_size):
            pair = meeting(name, rank, other, seqlen_local, True)
            if pair is not None:
                num_queries = pair.queries.stop - pair.queries.start
                num_keys = pair.keys.stop - pair.keys.start
                total += num_queries * (num_queries + 1) // 2 if pair.causal else num_queries * num_keys
        return total

    balanced = [work(name, rank, 64) for rank in range(world_size)]
    uneven = [work("contiguous", rank, 64) for rank in range(world_size)]
    assert max(balanced) <= 1.04 * min(balanced)
    assert max(uneven) > 2 * min(uneven)


def test_a_length_that_does_not_divide_is_refused_with_lengths_that_do() -> None:
    reason = layout.reason_not("zigzag", 100, 8)
    assert reason is not None
    assert "96 or 112" in reason
    assert layout.reason_not("zigzag", 96, 8) is None
    with pytest.raises(ValueError, match="96 or 112"):
        layout.tokens("zigzag", 100, 0, 8)
    with pytest.raises(ValueError, match="no layout named 'spiral'"):
        meeting("spiral", 0, 1, 8, True)


@given(st.integers(1, 8), st.integers(1, 12), st.integers(1, 12))
def test_head_groups_keep_query_heads_with_their_kv_heads(ratio: int, num_heads_kv: int, wanted: int) -> None:
    num_heads_q = ratio * num_heads_kv
    if num_heads_kv % wanted:
        with pytest.raises(ValueError, match="do not divide"):
            heads.head_groups(num_heads_q, num_heads_kv, wanted)
        assert heads.reason_not(wanted, num_heads_kv)
        return
    groups = heads.head_groups(num_heads_q, num_heads_kv, wanted)
    assert [h for group in groups for h in range(*group.q.indices(num_heads_q))] == list(range(num_heads_q))
    for group in groups:
        kv_of_q = {h // ratio for h in range(*group.q.indices(num_heads_q))}
        assert kv_of_q == set(range(*group.kv.indices(num_heads_kv)))


@given(st.integers(1, 4 << 30), st.integers(1, 64), st.integers(1, 4))
def test_the_automatic_number_of_groups_divides_and_follows_the_size(
    block_bytes: int, num_heads_kv: int, nodes: int
) -> None:
    count = heads.automatic(block_bytes, num_heads_kv, nodes)
    assert num_heads_kv % count == 0
    assert count == num_heads_kv or block_bytes <= count * heads.PIECE_BYTES
    assert heads.automatic(2 * block_bytes, num_heads_kv, nodes) >= count


def test_the_automatic_number_of_groups_at_the_sizes_of_the_tables() -> None:
    """One local tensor of 8 ranks, 40 heads of 128, at 131072, 262144, 524288 and 1048576 tokens."""
    sizes = [160 << 20, 320 << 20, 640 << 20, 1280 << 20]
    assert [heads.automatic(size, 40, 1) for size in sizes] == [4, 8, 10, 20]
    assert [heads.automatic(size, 8, 1) for size in sizes] == [4, 8, 8, 8]
    assert [heads.automatic(size, 5, 1) for size in sizes] == [5, 5, 5, 5]
    assert [heads.automatic(size, 40, 2) for size in sizes] == [4, 8, 10, 20]
    assert [heads.automatic(size, 40, 1, abreast=4) for size in sizes] == [8, 10, 20, 40]
    assert [heads.automatic(size, 40, 1, abreast=3) for size in sizes] == [8, 10, 20, 40], "on 4 ranks"
    assert [heads.automatic(size, 40, 1, abreast=2) for size in sizes] == [8, 10, 20, 40]
    assert heads.automatic(1 << 20, 40, 2) == 1
    assert [heads.automatic(size << 20, 12, 2) for size in (19, 29, 30, 40, 60)] == [1, 2, 3, 4, 4]
    assert heads.automatic(100 << 20, 9, 1) == 3, "no even number of groups divides 9"
    assert [heads.automatic(64 << 20, 40, 1, tracks) for tracks in (0, 1, 2)] == [2, 1, 2]
    assert [heads.automatic(32 << 20, 40, 1, tracks) for tracks in (0, 1, 2)] == [1, 1, 2]


def test_a_plan_of_groups_and_tracks_at_the_sizes_where_it_turns() -> None:
    """On a device of no memory: what is asked for stands, else two tracks where pieces are large enough."""

    def planned(
        mib: int, count: int = 0, tracks: int = 0, nodes: int = 1, abreast: int = 1
    ) -> tuple[int, int]:
        q = torch.empty(1, mib * 4096, 8, 16, dtype=torch.bfloat16, device="meta")
        assert q.nbytes == mib << 20
        groups, used = heads.plan_for(q, q[:, :, ::2], count, tracks, nodes, abreast)
        assert [group.q.stop - group.q.start for group in groups] == [8 // len(groups)] * len(groups)
        assert [group.kv.stop - group.kv.start for group in groups] == [4 // len(groups)] * len(groups)
        return len(groups), used

    assert [planned(mib) for mib in (63, 64, 128, 129)] == [(1, 1), (2, 2), (2, 2), (4, 2)]
    assert [planned(mib, abreast=3) for mib in (8, 32, 64, 65)] == [(1, 1), (2, 2), (2, 2), (4, 2)]
    assert [planned(mib, nodes=2) for mib in (9, 19, 20, 30, 40)] == [(1, 1), (1, 1), (2, 1), (4, 1), (4, 1)]
    assert [planned(64, count) for count in (1, 2, 4)] == [(1, 1), (2, 2), (4, 1)]
    assert [planned(128, count) for count in (2, 4)] == [(2, 2), (4, 2)]
    assert [planned(8, 2, tracks) for tracks in (1, 2)] == [(2, 1), (2, 2)]
    assert planned(8, 1, 2) == (1, 1), "no more tracks than groups"
    assert [planned(64, 0, tracks) for tracks in (1, 2)] == [(1, 1), (2, 2)]
    q = torch.empty(1, 1 << 18, 3, 128, dtype=torch.bfloat16, device="meta")
    assert heads.plan_for(q, q, 3, 0, 1)[1] == 1, "two tracks would not get as many groups each"
