"""What HiCache's trees are made of: nodes that may lie in two places, and the names of their pages in host memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import overload

from longturn.cache.eviction import Usage
from longturn.cache.radix import Node, Tokens
from longturn.cache.slots import Runs
from longturn.store.contract import KEY_BYTES


class HostNode(Node):
    """A node whose tokens have slots on the device (`runs`), in host memory (`host`), or both.

    below: children on the device; held: loads and fetches that need the copy in host memory; fetched: it came from the
    storage and was not used since.
    """

    __slots__ = ("below", "fetched", "held", "host")

    def __init__(
        self, parent: HostNode | None, depth: int, tokens: Tokens, runs: Runs, keys: list[bytes], usage: Usage
    ) -> None:
        super().__init__(parent, depth, tokens, runs, keys, usage)
        self.host = Runs()
        self.below = self.held = 0
        self.fetched = False

    def sound(self) -> bool:
        places = {len(self.runs), len(self.host)}
        return len(self.tokens) > 0 and places in ({len(self.tokens)}, {0, len(self.tokens)})


class PageNames(Sequence[bytes]):
    """Keys of the pages that lie at `runs`, addresses of host memory which are never used twice."""

    def __init__(self, runs: Runs, page_size: int) -> None:
        self.runs = runs
        self._page_size = page_size

    def addresses(self) -> Iterator[int]:
        """Where each page begins."""
        for run in self.runs:
            yield from range(run.start, run.stop, self._page_size)

    def __len__(self) -> int:
        return len(self.runs) // self._page_size

    def __iter__(self) -> Iterator[bytes]:
        return (address.to_bytes(KEY_BYTES, "big") for address in self.addresses())

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> PageNames: ...
    def __getitem__(self, at: int | slice) -> bytes | PageNames:
        if isinstance(at, int):
            page = range(len(self))[at]
            return next(iter(self[page : page + 1]))
        start, stop, _ = at.indices(len(self))
        return PageNames(self.runs.slice(start * self._page_size, stop * self._page_size), self._page_size)
