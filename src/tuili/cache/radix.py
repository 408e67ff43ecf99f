"""What tokens the kept blocks hold: a tree whose edges are blocks of tokens.

Two prompts share a path as far as they share whole blocks. Every namespace has its own root, and nothing else tells users,
adapters or media apart: within one, equal tokens in front mean equal keys and values.
"""

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field

Tokens = tuple[int, ...]


def namespace(**parts: str | bytes | None) -> bytes:
    """A name that no other choice of ``parts`` has: SHA-256 over names, types, lengths and contents.

    A digest, so that whoever chooses one part (a salt) cannot imitate another (an adapter), nor guess the name.
    """
    digest = hashlib.sha256()
    for name in sorted(parts):
        value = parts[name]
        kind = "none" if value is None else type(value).__name__
        data = b"" if value is None else value.encode() if isinstance(value, str) else value
        for piece in (name.encode(), kind.encode(), data):
            digest.update(len(piece).to_bytes(8, "big") + piece)
    return digest.digest()


@dataclass(slots=True, eq=False)
class Node:
    """The keys and values of ``tokens`` after those of all its ancestors.

    ``blocks[g]``: where, in state group g; -1 where a window left it behind or it was evicted. A root holds no tokens, but the
    ``name`` of its namespace.
    """

    parent: "Node | None"
    tokens: Tokens
    blocks: list[int]
    children: dict[Tokens, "Node"] = field(default_factory=dict[Tokens, "Node"])
    name: bytes = b""


class RadixTree:
    """``block_size`` tokens an edge."""

    def __init__(self, num_groups: int, block_size: int) -> None:
        self._num_groups = num_groups
        self._block_size = block_size
        self._roots: dict[bytes, Node] = {}
        self._holders: list[dict[int, Node]] = [{} for _ in range(num_groups)]  # by group: block -> its node

    def find(self, name: bytes, token_ids: list[int], max_blocks: int) -> list[Node]:
        """The longest path along ``token_ids``, at most ``max_blocks`` nodes, the root left out."""
        path: list[Node] = []
        node = self._roots.get(name)
        while node is not None and len(path) < max_blocks:
            start = len(path) * self._block_size
            node = node.children.get(tuple(token_ids[start : start + self._block_size]))
            if node is not None:
                path.append(node)
        return path

    def root(self, name: bytes) -> Node:
        if name not in self._roots:
            self._roots[name] = Node(None, (), [-1] * self._num_groups, name=name)
        return self._roots[name]

    def add(self, parent: Node, tokens: Tokens, blocks: list[int]) -> Node:
        """A new child; ``parent`` has none with these tokens."""
        assert len(tokens) == self._block_size and tokens not in parent.children
        node = Node(parent, tokens, blocks)
        parent.children[tokens] = node
        for holders, block in zip(self._holders, blocks, strict=True):
            if block >= 0:
                holders[block] = node
        return node

    def has(self, node: Node) -> bool:
        """Whether a node is still part of the tree."""
        found = self._roots.get(node.name) if node.parent is None else node.parent.children.get(node.tokens)
        return found is node

    def holder(self, group: int, block: int) -> Node:
        return self._holders[group][block]

    def take(self, node: Node, group: int) -> int:
        """The node no longer holds a block of that group; returns the block, -1 if there was none."""
        block, node.blocks[group] = node.blocks[group], -1
        if block >= 0:
            del self._holders[group][block]
        return block

    def prune(self, node: Node) -> None:
        """Remove a node that has neither blocks nor children, and then its ancestors that are like that."""
        while not node.children and all(block < 0 for block in node.blocks):
            if node.parent is None:
                del self._roots[node.name]
                return
            del node.parent.children[node.tokens]
            node = node.parent

    def held(self, group: int) -> Iterator[int]:
        """Every block of a group that some node holds."""
        return iter(self._holders[group])
