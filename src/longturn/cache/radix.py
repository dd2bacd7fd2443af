"""A radix tree over token ids: which tokens lie in which slots of the device pool.

Edges hold runs of tokens of any length, so a prefix is found to the token, or to the page for engines that know only
whole pages. The tree decides nothing: policies lock, evict and stamp its nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic, Self, TypeVar

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
        self, parent: Self | None, depth: int, tokens: Tokens, runs: Runs, keys: list[bytes], usage: Usage
    ) -> None:
        self.parent = parent
        self.depth = depth
        self.tokens = tokens
        self.runs = runs
        self.keys = keys
        self.usage = usage
        self.children: dict[int | bytes, Self] = {}
        self.locks = 0

    def sound(self) -> bool:
        """Whether every token has its place."""
        return 0 < len(self.tokens) == len(self.runs)

    @property
    def end(self) -> int:
        """Tokens from the root to the end of this node."""
        return self.depth + len(self.tokens)

    def path(self) -> list[Self]:
        """The nodes from below the root down to this one."""
        nodes: list[Self] = []
        node: Self | None = self
        while node is not None and node.parent is not None:
            nodes.append(node)
            node = node.parent
        return nodes[::-1]


N = TypeVar("N", bound=Node)


class RadixTree(Generic[N]):
    """The tree of one salt.

    `page_size` says where page keys fall; `first_key` is what the first page is chained to. Nodes begin and end at
    multiples of `grain` tokens, and the tokens of its first grain tell a node from its siblings. `kind` makes nodes.
    A leaf may be shorter than a grain: `edge` of all its tokens leads to it, `step` and `match` do not.
    """

    def __init__(
        self,
        page_size: int,
        first_key: bytes = b"",
        grain: int = 1,
        kind: type[N] = Node,  # type: ignore[assignment]
    ) -> None:
        self.page_size = page_size
        self.grain = grain
        self._kind = kind
        self.root = kind(None, 0, NO_TOKENS, Runs(), [first_key], Usage(0))

    def edge(self, tokens: Tokens, at: int = 0) -> int | bytes:
        """What tells a node whose tokens begin at `at` from its siblings."""
        return int(tokens[at]) if self.grain == 1 else tokens[at : at + self.grain].tobytes()

    def step(self, node: N, tokens: Tokens, at: int) -> tuple[N, int] | None:
        """The child of `node` that begins like `tokens` (int32 [n]) do at `at`, and how many tokens they share there.

        The count is a multiple of the grain. None where there is no such child. Read only.
        """
        child = node.children.get(self.edge(tokens, at)) if at + self.grain <= len(tokens) else None
        if child is None:
            return None
        shared = common_prefix(child.tokens, tokens[at:])
        return child, shared - shared % self.grain

    def match(self, tokens: Tokens) -> tuple[N, int]:
        """The deepest node that `tokens` (int32 [n]) reach and how many tokens they match. Read only.

        When the match ends inside the node, the count is less than `node.end`.
        """
        node, matched = self.root, 0
        while (found := self.step(node, tokens, matched)) is not None:
            node, shared = found
            matched += shared
            if shared < len(node.tokens):
                break
        return node, matched

    def key_before(self, node: N, tokens: int) -> bytes:
        """The key of the last whole page within the first `tokens` tokens, which end in `node`."""
        n_keys = tokens // self.page_size - node.depth // self.page_size
        while node.parent is not None:
            if n_keys > 0 and node.keys:
                return node.keys[n_keys - 1]
            node = node.parent
            n_keys = len(node.keys)
        return node.keys[0]

    def split(self, node: N, at: int) -> N:
        """Cut `node` after its first `at` tokens; returns the new upper part, `node` stays the lower one."""
        page = self.page_size
        n_keys = min((node.depth + at) // page - node.depth // page, len(node.keys))
        upper = self._kind(
            node.parent,
            node.depth,
            node.tokens[:at],
            node.runs.slice(0, at),
            node.keys[:n_keys],
            node.usage.copy(),
        )
        assert node.parent is not None
        upper.locks = node.locks
        node.parent.children[self.edge(node.tokens)] = upper
        node.runs = node.runs.slice(at, len(node.tokens))
        node.tokens = node.tokens[at:]
        node.keys = node.keys[n_keys:]
        node.parent, node.depth = upper, node.depth + at
        upper.children[self.edge(node.tokens)] = node
        return upper

    def add(self, parent: N, tokens: Tokens, runs: Runs, keys: list[bytes], usage: Usage) -> N:
        """Hang a new leaf below `parent`."""
        node = self._kind(parent, parent.end, tokens, runs, keys, usage)
        parent.children[self.edge(tokens)] = node
        return node

    def remove(self, leaf: N) -> None:
        """Take a leaf out."""
        assert leaf.parent is not None
        del leaf.parent.children[self.edge(leaf.tokens)]

    def nodes(self, below: N | None = None) -> Iterator[N]:
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
            if parent is None or parent.children.get(self.edge(node.tokens)) is not node:
                raise CacheCorruption(f"{where} is not the child that its parent knows")
            if not node.sound():
                raise CacheCorruption(f"{where} has {len(node.tokens)} tokens in {len(node.runs)} slots")
            if len(node.tokens) % self.grain and (node.children or len(node.tokens) > self.grain):
                raise CacheCorruption(f"{where} has {len(node.tokens)} tokens, no multiple of {self.grain}")
            if node.depth != parent.end:
                raise CacheCorruption(f"{where} hangs below a node that ends at {parent.end}")
            if node.locks < sum(child.locks for child in node.children.values()):
                raise CacheCorruption(f"{where} has fewer locks than its children")
