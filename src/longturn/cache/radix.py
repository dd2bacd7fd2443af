"""A radix tree over token ids: which tokens lie in which slots of the device pool.

Edges hold runs of tokens of any length, so a prefix is found to the token. The tree decides nothing: policies lock,
evict and stamp its nodes.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from longturn.cache.eviction import Usage
from longturn.cache.slots import Runs
from longturn.errors import CacheCorruption

Tokens = npt.NDArray[np.int32]
NO_TOKENS: Tokens = np.empty(0, dtype=np.int32)


def common_prefix(a: Tokens, b: Tokens) -> int:
    """How many leading tokens two int32 arrays share."""
    n = min(len(a), len(b))
    if n == 0 or a[0] != b[0]:
        return 0
    differ = a[:n] != b[:n]
    first = int(differ.argmax())
    return first if differ[first] else n


class Node:
    """A run of tokens below its parent.

    tokens: int32 [n]; runs: their n slots; depth: tokens above the node; keys: keys of the pages whose last token lies
    in this node; locks: allocations that end in this node or below it.
    """

    __slots__ = ("children", "depth", "keys", "locks", "parent", "runs", "tokens", "usage")

    def __init__(
        self, parent: Node | None, depth: int, tokens: Tokens, runs: Runs, keys: list[bytes], usage: Usage
    ) -> None:
        self.parent = parent
        self.depth = depth
        self.tokens = tokens
        self.runs = runs
        self.keys = keys
        self.usage = usage
        self.children: dict[int, Node] = {}
        self.locks = 0

    @property
    def end(self) -> int:
        """Tokens from the root to the end of this node."""
        return self.depth + len(self.tokens)

    def path(self) -> list[Node]:
        """The nodes from below the root down to this one."""
        nodes: list[Node] = []
        node: Node | None = self
        while node is not None and node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]


class RadixTree:
    """The tree of one salt. `page_size` says where page keys fall; `first_key` is what the first page is chained to."""

    def __init__(self, page_size: int, first_key: bytes = b"") -> None:
        self.page_size = page_size
        self.root = Node(None, 0, NO_TOKENS, Runs(), [first_key], Usage(0))

    def match(self, tokens: Tokens) -> tuple[Node, int]:
        """The deepest node that `tokens` (int32 [n]) reach and how many tokens they match. Read only.

        When the match ends inside the node, the count is less than `node.end`.
        """
        node, matched = self.root, 0
        while matched < len(tokens):
            child = node.children.get(int(tokens[matched]))
            if child is None:
                break
            shared = common_prefix(child.tokens, tokens[matched:])
            node, matched = child, matched + shared
            if shared < len(child.tokens):
                break
        return node, matched

    def key_before(self, node: Node, tokens: int) -> bytes:
        """The key of the last whole page within the first `tokens` tokens, which end in `node`."""
        n_keys = tokens // self.page_size - node.depth // self.page_size
        while node.parent is not None:
            if n_keys > 0 and node.keys:
                return node.keys[n_keys - 1]
            node = node.parent
            n_keys = len(node.keys)
        return node.keys[0]

    def split(self, node: Node, at: int) -> Node:
        """Cut `node` after its first `at` tokens; returns the new upper part, `node` stays the lower one."""
        page = self.page_size
        n_keys = min((node.depth + at) // page - node.depth // page, len(node.keys))
        upper = Node(
            node.parent,
            node.depth,
            node.tokens[:at],
            node.runs.slice(0, at),
            node.keys[:n_keys],
            node.usage.copy(),
        )
        assert node.parent is not None
        upper.locks = node.locks
        node.parent.children[int(node.tokens[0])] = upper
        node.runs = node.runs.slice(at, len(node.tokens))
        node.tokens = node.tokens[at:]
        node.keys = node.keys[n_keys:]
        node.parent, node.depth = upper, node.depth + at
        upper.children[int(node.tokens[0])] = node
        return upper

    def add(self, parent: Node, tokens: Tokens, runs: Runs, keys: list[bytes], usage: Usage) -> Node:
        """Hang a new leaf below `parent`."""
        node = Node(parent, parent.end, tokens, runs, keys, usage)
        parent.children[int(tokens[0])] = node
        return node

    def remove(self, leaf: Node) -> None:
        """Take a leaf out."""
        assert leaf.parent is not None
        del leaf.parent.children[int(leaf.tokens[0])]

    def nodes(self, below: Node | None = None) -> Iterator[Node]:
        """All nodes below one (below the root when none is given), parents before children."""
        stack = list((below or self.root).children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def check(self) -> None:
        """Raises CacheCorruption when the structure is broken."""
        for node in self.nodes():
            parent, where = node.parent, f"node at depth {node.depth}"
            if parent is None or parent.children.get(int(node.tokens[0])) is not node:
                raise CacheCorruption(f"{where} is not the child that its parent knows")
            if not len(node.tokens) or len(node.tokens) != len(node.runs):
                raise CacheCorruption(f"{where} has {len(node.tokens)} tokens in {len(node.runs)} slots")
            if node.depth != parent.end:
                raise CacheCorruption(f"{where} hangs below a node that ends at {parent.end}")
            if node.locks < sum(child.locks for child in node.children.values()):
                raise CacheCorruption(f"{where} has fewer locks than its children")
