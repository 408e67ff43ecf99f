"""Block numbers: free, owned, or kept. Integers only: the memory belongs to a backend."""

from collections import OrderedDict
from collections.abc import Callable, Iterable


class BlockPool:
    """Blocks 0 .. num_blocks - 1 of one state group.

    A block may have several owners (a prompt shared by sequences), and the prefix cache may keep it beside them. Kept blocks
    without an owner are idle: available like free ones, but what they hold is still good. ``evict(block)`` is told when an idle
    block is about to be used for something else, the one that has been idle longest first.
    """

    def __init__(self, num_blocks: int, evict: Callable[[int], None] | None = None) -> None:
        assert num_blocks > 0
        self.num_blocks = num_blocks
        # Taken from the end: a block that was just freed is the one most likely still in a processor cache.
        self._free = list(range(num_blocks - 1, -1, -1))
        self._owners = [0] * num_blocks
        self._kept = [False] * num_blocks
        self._idle: OrderedDict[int, None] = OrderedDict()
        self._evict = evict

    @property
    def num_available(self) -> int:
        """Blocks that ``allocate`` can give: free and idle ones."""
        return len(self._free) + len(self._idle)

    @property
    def num_idle(self) -> int:
        return len(self._idle)

    def is_idle(self, block: int) -> bool:
        return block in self._idle

    def allocate(self, num_blocks: int) -> list[int]:
        """Take ``num_blocks`` blocks, each with one owner. The caller has looked at ``num_available``."""
        assert 0 <= num_blocks <= self.num_available
        while len(self._free) < num_blocks:
            self.evict_oldest()
        if num_blocks == 0:
            return []
        taken = self._free[: -num_blocks - 1 : -1]
        del self._free[-num_blocks:]
        for block in taken:
            self._owners[block] = 1
        return taken

    def evict_oldest(self) -> None:
        """Free the block that has been idle longest."""
        assert self._evict is not None
        self._evict(next(iter(self._idle)))

    def share(self, blocks: Iterable[int]) -> None:
        """One more owner for each of ``blocks``, which have owners or are idle."""
        for block in blocks:
            assert self._owners[block] > 0 or self._kept[block], f"block {block} is free"
            if self._owners[block] == 0:
                del self._idle[block]
            self._owners[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """One owner less for each of ``blocks``, in that order; without an owner a block is idle if kept, else free."""
        for block in blocks:
            assert self._owners[block] > 0, f"block {block} was freed twice"
            self._owners[block] -= 1
            if self._owners[block] > 0:
                continue
            if self._kept[block]:
                self._idle[block] = None
            else:
                self._free.append(block)

    def keep(self, block: int) -> None:
        """What an owned block holds is worth keeping when its owners are gone."""
        assert self._owners[block] > 0 and not self._kept[block]
        self._kept[block] = True

    def forget(self, block: int) -> None:
        """A kept block is not kept any more; an idle one is free."""
        assert self._kept[block], f"block {block} is not kept"
        self._kept[block] = False
        if self._owners[block] == 0:
            del self._idle[block]
            self._free.append(block)

    def check(self, owned: Iterable[int], kept: Iterable[int] = ()) -> None:
        """Assert the cache law for this pool; ``owned`` lists every block once for each of its owners, ``kept`` those kept."""
        counts = [0] * self.num_blocks
        for block in owned:
            counts[block] += 1
        assert counts == self._owners, "reference counts differ from the tables"
        kept = list(kept)
        assert len(set(kept)) == len(kept) and set(kept) == {b for b, k in enumerate(self._kept) if k}, "kept blocks differ"
        assert set(self._idle) == {b for b in kept if counts[b] == 0}, "idle blocks are not those kept without an owner"
        assert len(set(self._free)) == len(self._free), "a block is in the free list twice"
        assert all(counts[b] == 0 and not self._kept[b] for b in self._free), "a free block has an owner"
        in_use = sum(count > 0 for count in counts)
        assert len(self._free) + len(self._idle) + in_use == self.num_blocks, "a block is neither free, idle nor owned"
