"""Blocks: taken, shared, given back; and the plan that shares a budget among state groups."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuili.cache.block_pool import BlockPool
from tuili.cache.plan import GroupShape, plan_kv, sequence_bytes, tokens_held
from tuili.errors import ConfigError


def test_blocks_are_distinct_and_come_back() -> None:
    pool = BlockPool(5)
    first, second = pool.allocate(2), pool.allocate(3)
    assert sorted(first + second) == [0, 1, 2, 3, 4]
    assert pool.num_available == 0
    pool.release(first)
    assert sorted(pool.allocate(2)) == sorted(first)
    pool.check([*first, *second])


def test_a_shared_block_is_free_only_without_owners() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    pool.share(blocks)
    pool.release(blocks)
    assert pool.num_available == 1
    pool.check(blocks)
    pool.release(blocks)
    assert pool.num_available == 2
    pool.check([])


def test_mistakes_are_caught() -> None:
    pool = BlockPool(2)
    blocks = pool.allocate(1)
    with pytest.raises(AssertionError, match="reference counts"):
        pool.check([])
    pool.release(blocks)
    with pytest.raises(AssertionError, match="freed twice"):
        pool.release(blocks)
    with pytest.raises(AssertionError, match="is free"):
        pool.share(blocks)


GROUPS = st.lists(
    st.builds(GroupShape, st.integers(1, 100_000), st.one_of(st.none(), st.integers(1, 4096))), min_size=1, max_size=3
)


@given(
    groups=GROUPS,
    budget=st.integers(0, 10**9),
    max_model_len=st.integers(1, 100_000),
    seqs=st.integers(1, 300),
    batched=st.integers(1, 4096),
)
def test_the_plan_never_exceeds_the_budget(
    groups: list[GroupShape], budget: int, max_model_len: int, seqs: int, batched: int
) -> None:
    smallest = sum(group.bytes_per_block for group in groups)

    def plan() -> tuple[int, ...]:
        return plan_kv(
            groups,
            budget_bytes=budget,
            max_model_len=max_model_len,
            max_num_seqs=seqs,
            max_num_batched_tokens=batched,
            block_size=16,
        )

    if budget < smallest:
        with pytest.raises(ConfigError, match=f"{budget}.*{smallest}"):
            plan()
        return
    blocks = plan()
    assert all(num >= 1 for num in blocks)
    assert sum(num * group.bytes_per_block for num, group in zip(blocks, groups, strict=True)) <= budget


def test_full_groups_share_the_budget_and_windows_take_what_they_need() -> None:
    groups = [GroupShape(100), GroupShape(500, window=32)]
    blocks = plan_kv(groups, budget_bytes=10_000, max_model_len=1600, max_num_seqs=1, max_num_batched_tokens=16, block_size=16)
    # One window of 32 touches at most 3 blocks, a step's 16 tokens one more: 4 blocks of 500, and 80 of 100 remain.
    assert blocks == (80, 4)
    plenty = plan_kv(groups, budget_bytes=10**9, max_model_len=1600, max_num_seqs=1, max_num_batched_tokens=16, block_size=16)
    assert plenty == (100, 4)


@given(groups=GROUPS, budget=st.integers(0, 10**8), limit=st.integers(1, 50_000), chunk=st.integers(1, 600))
def test_tokens_held_is_the_reverse_of_sequence_bytes(groups: list[GroupShape], budget: int, limit: int, chunk: int) -> None:
    held = tokens_held(groups, budget, limit=limit, chunk=chunk, block_size=16)
    assert 0 <= held <= limit
    if held:
        assert sequence_bytes(groups, held, chunk=chunk, block_size=16) <= budget
    if held < limit:
        assert sequence_bytes(groups, held + 16, chunk=chunk, block_size=16) > budget
