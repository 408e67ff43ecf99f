"""The prefix cache over random traces: what is kept is what was computed, in its own namespace, and nothing is lost."""

import random

import pytest

from tuili.cache.manager import GroupSpec, KVManager, SequenceBlocks
from tuili.cache.radix import namespace

SIZE = 16
HOME = namespace(tenant=None, cache_salt=None)


def manager(*groups: tuple[int, int | None]) -> KVManager:
    return KVManager([GroupSpec(num_blocks, window) for num_blocks, window in groups], SIZE)


def compute(kv: KVManager, token_ids: list[int], name: bytes = HOME, chunk: int = 40) -> tuple[SequenceBlocks, int]:
    """A sequence that starts with what is kept and computes the rest; returns it and how many tokens were found."""
    prefix = kv.match(name, token_ids, len(token_ids) - 1)
    found = prefix.num_tokens if prefix else 0
    blocks = kv.start(name, prefix)
    for start in range(found, len(token_ids), chunk):
        end = min(start + chunk, len(token_ids))
        assert kv.grow(blocks, start, end)
        kv.keep(blocks, token_ids, end)
        kv.check()
    return blocks, found


def test_names_differ_unless_every_part_is_equal() -> None:
    """D-PFX-2: the same words as adapter or as salt, joined or apart, present or absent, give different names."""
    names = [
        namespace(tenant=None, cache_salt=None),
        namespace(tenant="", cache_salt=None),
        namespace(tenant="x", cache_salt=None),
        namespace(tenant=None, cache_salt="x"),
        namespace(tenant=b"x", cache_salt=None),
        namespace(tenant="xy", cache_salt=""),
        namespace(tenant="x", cache_salt="y"),
        namespace(tenant="", cache_salt="xy"),
        namespace(tenant="x", salt="y"),
    ]
    assert len(set(names)) == len(names)
    assert namespace(tenant="x", cache_salt="y") == namespace(cache_salt="y", tenant="x")


@pytest.mark.parametrize("num_prompt", [1, 15, 16, 17, 31, 32, 33, 200])
def test_a_second_time_all_whole_blocks_but_the_last_token_are_there(num_prompt: int) -> None:
    """D-PFX-1: a multiple of the block size, below the prompt's length."""
    kv = manager((40, None))
    prompt = list(range(num_prompt))
    blocks, found = compute(kv, prompt)
    assert found == 0
    kv.free(blocks)
    again, found = compute(kv, prompt)
    assert found == (num_prompt - 1) // SIZE * SIZE
    kv.free(again)
    assert kv.num_free == (40,)


def test_running_sequences_share_their_beginning_and_diverge() -> None:
    kv = manager((40, None))
    first, _ = compute(kv, [*range(48), 1, 2, 3])
    second, found = compute(kv, [*range(48), 7, 8])
    assert found == 48
    assert first.tables[0][:3] == second.tables[0][:3] and first.tables[0][3] != second.tables[0][3]
    assert kv.num_free == (35,)
    kv.free(first)
    kv.free(second)


def test_namespaces_never_meet() -> None:
    kv = manager((40, None))
    blocks, _ = compute(kv, list(range(64)), HOME)
    other, found = compute(kv, list(range(64)), namespace(tenant="a", cache_salt=None))
    assert found == 0 and not set(blocks.tables[0]) & set(other.tables[0])


def test_only_computed_blocks_are_kept() -> None:
    """D-PFX-1: blocks of an aborted request are never half-trusted."""
    kv = manager((40, None))
    prompt = list(range(100))
    blocks = kv.start(HOME, None)
    assert kv.grow(blocks, 0, 100)
    kv.keep(blocks, prompt, 40)
    kv.free(blocks)
    prefix = kv.match(HOME, prompt, 99)
    assert prefix is not None and prefix.num_tokens == 32


def test_the_oldest_leaves_go_first_and_those_in_use_stay() -> None:
    kv = manager((8, None))
    a, b = [*range(48)], [*range(100, 148)]
    running, _ = compute(kv, a)
    done, _ = compute(kv, b)
    kv.free(done)
    assert kv.num_kept == (3,)
    more, _ = compute(kv, [*range(200, 264)])  # 4 blocks: 2 were free, 2 of b's are evicted, from its end
    left = kv.match(HOME, b, 48)
    assert left is not None and left.num_tokens == 16
    whole = kv.match(HOME, a, 48)
    assert whole is not None and whole.num_tokens == 48
    kv.free(running)
    kv.free(more)
    kv.check()


def test_has_room_counts_idle_blocks_once() -> None:
    kv = manager((6, None))
    blocks, _ = compute(kv, list(range(64)))
    kv.free(blocks)
    prefix = kv.match(HOME, list(range(96)), 95)
    assert prefix is not None and prefix.num_tokens == 64
    assert kv.has_room(96, chunk=16, prefix=prefix)
    assert not kv.has_room(97, chunk=16, prefix=prefix)


def test_a_match_reaches_as_far_as_every_window() -> None:
    kv = manager((40, None), (12, 24))
    prompt = list(range(160))
    blocks, _ = compute(kv, prompt, chunk=16)
    kv.free(blocks)
    prefix = kv.match(HOME, prompt, 159)
    assert prefix is not None and prefix.num_tokens == 144
    # Others' windows push the early blocks out of the small group; the full group still has them.
    for number in range(3):
        other, _ = compute(kv, [1000 + number] * 64, chunk=16)
        kv.free(other)
    prefix = kv.match(HOME, prompt, 159)
    again = kv.start(HOME, prefix)
    for position in range(prefix.num_tokens if prefix else 0, 160, 16):
        assert kv.grow(again, position, position + 16)
        kv.check()
    kv.free(again)
    kv.check()


def test_who_comes_second_with_the_same_tokens_keeps_nothing() -> None:
    kv = manager((40, None))
    prompt = list(range(64))
    first, second = kv.start(HOME, None), kv.start(HOME, None)
    for blocks in (first, second):
        assert kv.grow(blocks, 0, 64)
    kv.keep(first, prompt, 64)
    kv.keep(second, prompt, 64)
    kv.check()
    kv.free(first)
    kv.free(second)
    assert kv.num_kept == (4,) and kv.num_free == (40,)


def test_clear_forgets_what_nobody_owns() -> None:
    kv = manager((40, None), (20, 24))
    running, _ = compute(kv, list(range(64)))
    done, _ = compute(kv, list(range(100, 164)))
    kv.free(done)
    kv.clear()
    assert kv.match(HOME, list(range(100, 164)), 64) is None
    prefix = kv.match(HOME, list(range(64)), 64)
    assert prefix is not None and prefix.num_tokens == 64
    kv.free(running)
    kv.check()


GROUPS = {
    "full": ((60, None),),
    "full and window": ((60, None), (24, 40)),
    "two windows": ((50, None), (16, 24), (30, 100)),
    "windows only": ((24, 30),),
    "narrow": ((40, None), (20, 1)),
}


@pytest.mark.parametrize("groups", GROUPS.values(), ids=GROUPS.keys())
def test_random_traces_keep_the_cache_law_and_the_contents(groups: tuple[tuple[int, int | None], ...]) -> None:
    """Each block remembers the namespace and all tokens up to its end that were written to it: whatever is matched has to be
    what was written, whoever was evicted, aborted or left behind meanwhile."""
    rng = random.Random(str(groups))
    kv = manager(*groups)
    names = [HOME, namespace(tenant="a", cache_salt=None)]
    stems = [[rng.randrange(3) for _ in range(rng.randrange(1, 150))] for _ in range(4)]
    written: list[dict[int, tuple[bytes, tuple[int, ...]]]] = [{} for _ in groups]
    live: list[tuple[SequenceBlocks, bytes, list[int], int]] = []
    num_found = 0
    for _ in range(1500):
        action = rng.random()
        if action < 0.3 and len(live) < 6:
            name = rng.choice(names)
            tokens = [*rng.choice(stems), *(rng.randrange(3) for _ in range(rng.randrange(40)))]
            prefix = kv.match(name, tokens, len(tokens) - 1)
            found = prefix.num_tokens if prefix else 0
            if not kv.has_room(len(tokens), chunk=32, prefix=prefix, spare=len(live)):
                continue
            blocks = kv.start(name, prefix)
            for g, table in enumerate(blocks.tables):
                for i in range(blocks.first[g], len(table)):
                    assert written[g][table[i]] == (name, tuple(tokens[: (i + 1) * SIZE]))
            num_found += found
            live.append((blocks, name, tokens, found))
        elif action < 0.8 and live:
            i = rng.randrange(len(live))
            blocks, name, tokens, computed = live[i]
            end = min(computed + rng.choice((1, 7, 16, 32)), len(tokens))
            if end == computed:
                tokens.append(rng.randrange(3))
                end += 1
            if kv.grow(blocks, computed, end):
                for g, table in enumerate(blocks.tables):
                    for i_block in range(computed // SIZE, -(-end // SIZE)):
                        if table[i_block] >= 0:
                            written[g][table[i_block]] = (name, tuple(tokens[: (i_block + 1) * SIZE]))
                kv.keep(blocks, tokens, end)
                live[i] = (blocks, name, tokens, end)
            else:
                kv.free(blocks)
                del live[i]
        elif live:
            blocks, *_ = live.pop(rng.randrange(len(live)))
            kv.free(blocks)
        kv.check()
    assert num_found > 500
    for blocks, *_ in live:
        kv.free(blocks)
    assert kv.num_free == tuple(num_blocks for num_blocks, _ in groups)
    kv.clear()
    kv.check()
    assert kv.num_kept == tuple(0 for _ in groups)
