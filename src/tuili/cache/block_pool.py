"""Block numbers, free or owned, with reference counts. Integers only: the memory belongs to a backend."""

from collections.abc import Iterable


class BlockPool:
    """Blocks 0 .. num_blocks - 1 of one state group. A block may have several owners (a prompt shared by sequences)."""

    def __init__(self, num_blocks: int) -> None:
        assert num_blocks > 0
        self.num_blocks = num_blocks
        # Taken from the end: a block that was just freed is the one most likely still in a processor cache.
        self._free = list(range(num_blocks - 1, -1, -1))
        self._owners = [0] * num_blocks

    @property
    def num_free(self) -> int:
        return len(self._free)

    def allocate(self, num_blocks: int) -> list[int]:
        """Take ``num_blocks`` free blocks, each with one owner. The caller has looked at ``num_free``."""
        assert 0 <= num_blocks <= len(self._free)
        if num_blocks == 0:
            return []
        taken = self._free[: -num_blocks - 1 : -1]
        del self._free[-num_blocks:]
        for block in taken:
            self._owners[block] = 1
        return taken

    def share(self, blocks: Iterable[int]) -> None:
        """One more owner for each of ``blocks``."""
        for block in blocks:
            assert self._owners[block] > 0, f"block {block} is free"
            self._owners[block] += 1

    def release(self, blocks: Iterable[int]) -> None:
        """One owner less for each of ``blocks``; without an owner a block is free."""
        for block in blocks:
            assert self._owners[block] > 0, f"block {block} was freed twice"
            self._owners[block] -= 1
            if self._owners[block] == 0:
                self._free.append(block)

    def check(self, owned: Iterable[int]) -> None:
        """Assert the cache law for this pool; ``owned`` lists every block once for each of its owners."""
        counts = [0] * self.num_blocks
        for block in owned:
            counts[block] += 1
        assert counts == self._owners, "reference counts differ from the tables"
        assert len(set(self._free)) == len(self._free), "a block is in the free list twice"
        assert all(counts[block] == 0 for block in self._free), "a free block has an owner"
        assert len(self._free) + sum(count > 0 for count in counts) == self.num_blocks, "a block is neither free nor owned"
