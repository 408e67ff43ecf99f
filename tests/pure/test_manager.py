"""KVManager: tables grow, windows leave blocks behind, forks share, and the cache law holds after every step."""

import random

import pytest

from tuili.cache.manager import GroupSpec, KVManager, SequenceBlocks, window_blocks


def manager(*groups: tuple[int, int | None]) -> KVManager:
    return KVManager([GroupSpec(num_blocks, window) for num_blocks, window in groups], 16)


def test_tables_grow_by_whole_blocks_and_all_or_nothing() -> None:
    kv = manager((4, None), (2, None))
    blocks = kv.new()
    assert kv.grow(blocks, 0, 17)
    assert [len(table) for table in blocks.tables] == [2, 2]
    assert kv.num_free == (2, 0)
    assert not kv.grow(blocks, 17, 33)  # the second group has nothing left
    assert kv.num_free == (2, 0)
    assert kv.room(blocks, 17) == 32
    kv.check()
    kv.free(blocks)
    assert kv.num_free == (4, 2)
    kv.check()


def test_a_window_leaves_blocks_behind() -> None:
    kv = manager((100, None), (100, 20))
    blocks = kv.new()
    assert kv.grow(blocks, 0, 64)
    assert kv.grow(blocks, 64, 65)
    # A query at 64 sees positions 45 to 64, so the blocks of 0 to 31 are gone from the window's table only.
    assert blocks.tables[1][:2] == [-1, -1] and blocks.tables[1][2] >= 0
    assert -1 not in blocks.tables[0]
    assert kv.num_free == (95, 97)
    kv.check()


@pytest.mark.parametrize("window", [1, 15, 16, 17, 40])
@pytest.mark.parametrize("chunk", [1, 7, 16, 33])
def test_a_window_never_needs_more_than_window_blocks(window: int, chunk: int) -> None:
    most = window_blocks(window, chunk, 16)
    kv = manager((most, window))
    blocks = kv.new()
    for start in range(0, 640, chunk):
        assert kv.grow(blocks, start, start + chunk), f"at {start}"
        kv.check()


def test_max_tokens_alone() -> None:
    assert manager((20, None)).max_tokens_alone == 320
    assert manager((20, None), (3, 32)).max_tokens_alone == 320
    assert manager((20, None), (2, 32)).max_tokens_alone == 32


def test_a_fork_shares_whole_blocks() -> None:
    kv = manager((10, None), (10, 24))
    parent = kv.new()
    assert kv.grow(parent, 0, 50)
    child = kv.fork(parent, 48)
    assert child is not None
    assert child.tables[0] == parent.tables[0][:3]
    assert child.tables[1] == [-1, *parent.tables[1][1:3]]  # a query at 48 sees positions from 25 on
    assert kv.num_free == (6, 6)
    kv.check()
    kv.free(parent)
    assert kv.num_free == (7, 8)
    kv.check()
    kv.free(child)
    assert kv.num_free == (10, 10)


def test_no_fork_when_the_parent_has_left_a_needed_block_behind() -> None:
    kv = manager((20, None), (20, 16))
    parent = kv.new()
    assert kv.grow(parent, 0, 64) and kv.grow(parent, 64, 65)
    assert kv.fork(parent, 16) is None
    kv.check()


def test_random_use_keeps_the_cache_law() -> None:
    rng = random.Random(7)
    kv = manager((40, None), (24, 50), (30, 7))
    live: list[tuple[SequenceBlocks, int]] = []
    for _ in range(2000):
        action = rng.random() if len(live) < 12 else 0.95
        if action < 0.2 or not live:
            live.append((kv.new(), 0))
        elif action < 0.8:
            i = rng.randrange(len(live))
            blocks, computed = live[i]
            chunk = rng.choice((1, 1, 1, 5, 40))
            before = kv.num_free
            if kv.grow(blocks, computed, computed + chunk):
                live[i] = blocks, computed + chunk
            else:
                assert kv.room(blocks, computed) < computed + chunk
                assert all(now >= then for now, then in zip(kv.num_free, before, strict=True))
        elif action < 0.9:
            blocks, computed = rng.choice(live)
            if child := kv.fork(blocks, computed // 16 * 16):
                live.append((child, computed // 16 * 16))
        else:
            blocks, _ = live.pop(rng.randrange(len(live)))
            kv.free(blocks)
        kv.check()
    for blocks, _ in live:
        kv.free(blocks)
    assert kv.num_free == (40, 24, 30)
    assert kv.usage == 0
