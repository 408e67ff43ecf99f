"""Which blocks hold which tokens: one block table a sequence and state group.

A state group is a set of layers that share a table. Groups of kind ``full`` keep every token; a sliding-window group needs only
the last ``window`` tokens of a query, so blocks left of that are freed and their table entries become -1.

Blocks that are full and computed are kept for later sequences that begin alike, as long as nobody else needs the memory. A
match reaches as far as every group still holds what the next query sees.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from tuili.cache.block_pool import BlockPool
from tuili.cache.radix import Node, RadixTree


@dataclass(frozen=True, slots=True)
class GroupSpec:
    """One state group's share of the cache. ``window``: how many last positions a query sees, itself included; None: all."""

    num_blocks: int
    window: int | None = None


@dataclass(slots=True, eq=False)
class SequenceBlocks:
    """The blocks of one sequence. ``tables[g][i]`` holds positions [16 i, 16 i + 16) in group g; all tables are equally long.

    ``first[g]``: entries before it were left behind by the window and are -1. ``capacity``: positions there is room for.
    ``changed``: set when a table changes, cleared by whoever copies the tables into a step's arrays. ``name``: the namespace in
    which its blocks are kept, None when they are not (any more); ``node``: the last of the ``num_kept`` that are.
    """

    tables: list[list[int]]
    first: list[int]
    capacity: int = 0
    changed: bool = False
    name: bytes | None = None
    node: Node | None = None
    num_kept: int = 0


@dataclass(frozen=True, slots=True)
class Prefix:
    """The kept blocks that a new sequence can begin with. ``path``: their nodes, as far as every group reaches."""

    name: bytes
    path: Sequence[Node]
    num_tokens: int


def blocks_for(num_tokens: int, block_size: int) -> int:
    return -(-num_tokens // block_size)


def window_blocks(window: int, num_queries: int, block_size: int) -> int:
    """Most blocks that ``num_queries`` positions in a row and their windows can touch, wherever in a block they begin."""
    return blocks_for(window - 1 + num_queries + block_size - 1, block_size)


class KVManager:
    """What the scheduler sees of the KV cache. Every method either does all it says or changes nothing."""

    def __init__(self, groups: Sequence[GroupSpec], block_size: int) -> None:
        self.groups = tuple(groups)
        self.block_size = block_size
        self._pools = [BlockPool(group.num_blocks, partial(self._evict, g)) for g, group in enumerate(groups)]
        self._tree = RadixTree(len(groups), block_size)
        self._windows = [(g, group.window) for g, group in enumerate(groups) if group.window is not None]
        self._live: set[SequenceBlocks] = set()

    @property
    def num_free(self) -> tuple[int, ...]:
        """Blocks of each group that a sequence could get: what nobody owns, kept or not."""
        return tuple(pool.num_available for pool in self._pools)

    @property
    def num_kept(self) -> tuple[int, ...]:
        """Blocks of each group that only the prefix cache holds."""
        return tuple(pool.num_idle for pool in self._pools)

    @property
    def usage(self) -> float:
        """Fraction of the fullest group that sequences own, 0 to 1."""
        return max((1.0 - pool.num_available / pool.num_blocks for pool in self._pools), default=0.0)

    @property
    def max_tokens_alone(self) -> int:
        """Positions that one sequence can reach when it has the whole cache for itself."""
        limits = [2**31 - 1]
        for group in self.groups:
            if group.window is None or group.num_blocks < window_blocks(group.window, 1, self.block_size):
                limits.append(group.num_blocks * self.block_size)
        return min(limits)

    def new(self) -> SequenceBlocks:
        """Tables of a new sequence, without any block yet."""
        blocks = SequenceBlocks(tables=[[] for _ in self.groups], first=[0] * len(self.groups))
        self._live.add(blocks)
        return blocks

    def grow(self, blocks: SequenceBlocks, num_computed: int, num_tokens: int) -> bool:
        """Make room for positions up to ``num_tokens``, the next query being at ``num_computed``; False when blocks are short."""
        if num_tokens <= blocks.capacity:
            return True
        self._leave_behind(blocks, num_computed)
        num_new = blocks_for(num_tokens, self.block_size) - blocks.capacity // self.block_size
        if any(pool.num_available < num_new for pool in self._pools):
            return False
        for table, pool in zip(blocks.tables, self._pools, strict=True):
            table.extend(pool.allocate(num_new))
        blocks.capacity += num_new * self.block_size
        blocks.changed = True
        return True

    def room(self, blocks: SequenceBlocks, num_computed: int) -> int:
        """The largest ``num_tokens`` that ``grow`` would accept now."""
        self._leave_behind(blocks, num_computed)
        return blocks.capacity + min(self.num_free, default=2**31) * self.block_size

    def has_room(self, num_tokens: int, *, chunk: int, shared: int = 0, prefix: Prefix | None = None, spare: int = 0) -> bool:
        """Whether a new sequence of ``num_tokens`` would fit now, computed ``chunk`` at a time, its first ``shared`` positions
        being shared with another sequence or those of ``prefix`` kept, and ``spare`` blocks of each group would be left."""
        given = max(shared, prefix.num_tokens if prefix else 0) // self.block_size
        total = blocks_for(num_tokens, self.block_size)
        for g, (group, pool) in enumerate(zip(self.groups, self._pools, strict=True)):
            need = total - given
            if group.window is not None:
                need = min(need, window_blocks(group.window, chunk, self.block_size), group.num_blocks)
            if prefix:
                need += sum(pool.is_idle(node.blocks[g]) for node in self._visible(prefix, g))
            if need + spare > pool.num_available:
                return False
        return True

    def match(self, name: bytes, token_ids: list[int], max_tokens: int) -> Prefix | None:
        """The longest kept beginning of ``token_ids``, at most ``max_tokens`` of them, in that namespace."""
        path = self._tree.find(name, token_ids, max_tokens // self.block_size)
        while path and not self._reaches(path):
            path.pop()
        return Prefix(name, path, len(path) * self.block_size) if path else None

    def is_at_end(self, blocks: SequenceBlocks, name: bytes, prefix: Prefix | None) -> bool:
        """Whether what is kept of a running sequence is ``prefix`` and no more."""
        return blocks.name == name and blocks.node is (prefix.path[-1] if prefix else None)

    def start(self, name: bytes, prefix: Prefix | None) -> SequenceBlocks:
        """Tables of a new sequence whose first blocks are those of ``prefix``; its own will be kept in namespace ``name``."""
        blocks = self.new()
        blocks.name = name
        if prefix is None:
            return blocks
        for g, (group, pool) in enumerate(zip(self.groups, self._pools, strict=True)):
            shared = [node.blocks[g] for node in self._visible(prefix, g)]
            pool.share(shared)
            blocks.first[g] = self._first_visible(group.window, prefix.num_tokens)
            blocks.tables[g] = [-1] * blocks.first[g] + shared
        blocks.node, blocks.num_kept = prefix.path[-1], len(prefix.path)
        blocks.capacity, blocks.changed = prefix.num_tokens, True
        return blocks

    def keep(self, blocks: SequenceBlocks, token_ids: list[int], num_computed: int) -> None:
        """Let the prefix cache know the blocks that are full and computed.

        It stops for good where another sequence was first with the same tokens, so that a path belongs to one sequence as a
        whole: then no node is evicted before those below it.
        """
        size = self.block_size
        while blocks.name is not None and (blocks.num_kept + 1) * size <= num_computed:
            parent = blocks.node or self._tree.root(blocks.name)
            tokens = tuple(token_ids[blocks.num_kept * size : (blocks.num_kept + 1) * size])
            if tokens in parent.children or not self._tree.has(parent):
                blocks.name = None
                return
            here = [table[blocks.num_kept] for table in blocks.tables]
            for pool, block in zip(self._pools, here, strict=True):
                if block >= 0:
                    pool.keep(block)
            blocks.node = self._tree.add(parent, tokens, here)
            blocks.num_kept += 1

    def clear(self) -> None:
        """Forget every kept block that no sequence owns."""
        for pool in self._pools:
            while pool.num_idle:
                pool.evict_oldest()

    def fork(self, parent: SequenceBlocks, num_tokens: int) -> SequenceBlocks | None:
        """Tables of a sequence that shares the parent's first ``num_tokens`` (whole blocks); None when the parent has already
        left behind a block that the next query would see."""
        num_blocks, rest = divmod(num_tokens, self.block_size)
        assert rest == 0 and num_tokens <= parent.capacity
        first = [self._first_visible(group.window, num_tokens) for group in self.groups]
        if any(have > need for have, need in zip(parent.first, first, strict=True)):
            return None
        child = self.new()
        for g, pool in enumerate(self._pools):
            shared = parent.tables[g][first[g] : num_blocks]
            pool.share(shared)
            child.tables[g] = [-1] * first[g] + shared
        child.first, child.capacity, child.changed = first, num_tokens, True
        return child

    def free(self, blocks: SequenceBlocks) -> None:
        """Give up every block of a sequence, the last ones first: they are the first to be evicted."""
        self._live.remove(blocks)
        for table, first, pool in zip(blocks.tables, blocks.first, self._pools, strict=True):
            pool.release(reversed(table[first:]))

    def check(self) -> None:
        """Assert the cache law: free + owned = all, and reference counts equal the tables."""
        for g, pool in enumerate(self._pools):
            pool.check((block for blocks in self._live for block in blocks.tables[g][blocks.first[g] :]), self._tree.held(g))
        for blocks in self._live:
            for table, first in zip(blocks.tables, blocks.first, strict=True):
                assert len(table) * self.block_size == blocks.capacity
                assert all(entry == -1 for entry in table[:first]) and all(entry >= 0 for entry in table[first:])

    def _first_visible(self, window: int | None, position: int) -> int:
        """Index of the first block that a query at ``position`` can see."""
        return 0 if window is None else max(position - window + 1, 0) // self.block_size

    def _visible(self, prefix: Prefix, group: int) -> Sequence[Node]:
        """The nodes whose blocks of a group the first query after ``prefix`` sees."""
        return prefix.path[self._first_visible(self.groups[group].window, prefix.num_tokens) :]

    def _reaches(self, path: list[Node]) -> bool:
        """Whether every window group still holds what a query behind ``path`` sees."""
        position = len(path) * self.block_size
        return all(node.blocks[g] >= 0 for g, window in self._windows for node in path[self._first_visible(window, position) :])

    def _evict(self, group: int, block: int) -> None:
        """An idle block is needed elsewhere. Without its keys and values of a full group a node is worth nothing."""
        node = self._tree.holder(group, block)
        gone = [group] if self.groups[group].window is not None else range(len(self.groups))
        for g in gone:
            held = self._tree.take(node, g)
            if held >= 0:
                self._pools[g].forget(held)
        self._tree.prune(node)

    def _leave_behind(self, blocks: SequenceBlocks, num_computed: int) -> None:
        """Free what no query from ``num_computed`` on can see."""
        for g, window in self._windows:
            old, new = blocks.first[g], min(self._first_visible(window, num_computed), len(blocks.tables[g]))
            if new > old:
                table = blocks.tables[g]
                self._pools[g].release(table[old:new])
                table[old:new] = [-1] * (new - old)
                blocks.first[g] = new
                blocks.changed = True
