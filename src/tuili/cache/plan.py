"""How many blocks each state group gets out of a memory budget. Integers only."""

from collections.abc import Sequence
from dataclasses import dataclass

from tuili.cache.manager import blocks_for, window_blocks
from tuili.errors import ConfigError


@dataclass(frozen=True, slots=True)
class GroupShape:
    """What a block of a state group costs over all its layers. ``window``: as in GroupSpec."""

    bytes_per_block: int
    window: int | None = None


def sequence_bytes(groups: Sequence[GroupShape], num_tokens: int, *, chunk: int, block_size: int) -> int:
    """Bytes that one sequence of ``num_tokens`` needs at most, computed ``chunk`` tokens at a time."""
    total = blocks_for(num_tokens, block_size)
    return sum(
        group.bytes_per_block
        * (total if group.window is None else min(total, window_blocks(group.window, min(chunk, num_tokens), block_size)))
        for group in groups
    )


def tokens_held(groups: Sequence[GroupShape], budget_bytes: int, *, limit: int, chunk: int, block_size: int) -> int:
    """The longest single sequence, at most ``limit`` tokens, that ``budget_bytes`` can hold; 0 when not even a block fits."""
    low, high = 0, blocks_for(limit, block_size)
    while low < high:
        middle = (low + high + 1) // 2
        if sequence_bytes(groups, middle * block_size, chunk=chunk, block_size=block_size) <= budget_bytes:
            low = middle
        else:
            high = middle - 1
    return min(low * block_size, limit)


def plan_kv(
    groups: Sequence[GroupShape],
    *,
    budget_bytes: int,
    max_model_len: int,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    block_size: int,
) -> tuple[int, ...]:
    """Blocks of each group, in order. The total never exceeds ``budget_bytes``.

    Full groups share what there is, up to ``max_num_seqs`` whole contexts. A window group gets as many blocks as a full one,
    or what ``max_num_seqs`` windows and one step's tokens need, whichever is less.

    Raises ConfigError with both numbers when not even one block of each group fits.
    """
    per_sequence = blocks_for(max_model_len, block_size)

    def blocks(group: GroupShape, run: int) -> int:
        if group.window is None:
            return run
        windows = max_num_seqs * window_blocks(group.window, 1, block_size)
        return min(run, windows + blocks_for(max_num_batched_tokens, block_size))

    def total_bytes(run: int) -> int:
        return sum(group.bytes_per_block * blocks(group, run) for group in groups)

    if total_bytes(1) > budget_bytes:
        raise ConfigError(
            f"the KV cache may take {budget_bytes} bytes, but its smallest unit ({block_size} tokens) takes {total_bytes(1)}; "
            f"raise kv_cache_memory_bytes"
        )
    low, high = 1, per_sequence * max_num_seqs
    while low < high:
        middle = (low + high + 1) // 2
        if total_bytes(middle) <= budget_bytes:
            low = middle
        else:
            high = middle - 1
    return tuple(blocks(group, low) for group in groups)
