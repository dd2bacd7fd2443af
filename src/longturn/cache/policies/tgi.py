"""Hugging Face TGI v3: a radix trie of prompts, to the token or to the block, that all output room is taken from.

Follows huggingface/text-generation-inference @db931fcf (January 2026), `backends/v3/src/radix.rs` and
`block_allocator.rs`. Block size 1 is its default, flashinfer; flashdecoding has 256.

- A request takes all slots at once, for its prompt and the most that it may produce. Where they cannot be had it waits,
  and what was evicted for it stays evicted. One that never fits because the node in which its prefix ends is locked
  with all of its tail would wait for ever there: replays refuse it, and a real engine here does without the prefix.
- A prompt enters the trie when its request ends; answers never do. Of a prompt that is known to its end the last token
  is computed again, in place. A prompt that was cancelled enters as far as it was computed.
- Victims are the leaves used least recently, whole or from their tail, so that only what is missing goes. Nodes met on
  the way are as recent as the newest; of two equally recent ones the lower place in TGI's slot map goes first.

TGI reports no cached tokens; counted is what was reused. Left out: speculation, LoRA, VLMs, which it serves uncached.
"""

from __future__ import annotations

from dataclasses import dataclass

from longturn.cache.contract import Allocation, Hit
from longturn.cache.eviction import Usage
from longturn.cache.policies.base import Sizes
from longturn.cache.policies.finished import FinishedTrees, Place
from longturn.cache.policies.options import tokens
from longturn.cache.radix import Node, RadixTree, Tokens
from longturn.cache.slots import Runs
from longturn.errors import CacheCorruption, ConfigError


@dataclass(frozen=True)
class TgiOptions:
    """What a user can set, through the choice of the attention's kernels."""

    block_size: int = tokens(1, "tokens in a block: 1 with flashinfer, 256 with flashdecoding")


class TgiCache(FinishedTrees):
    """See the module's text. A node's `usage.created` is its place in TGI's slot map."""

    name = "tgi"

    def __init__(self, options: TgiOptions, sizes: Sizes) -> None:
        block = options.block_size
        if not 1 <= block <= sizes.device:
            raise ConfigError("tgi:block_size must be positive, and the device must have room for a block")
        self.longest = sizes.device // block * block
        super().__init__(sizes, self.longest, block, lambda usage: (usage.stamp, usage.created))
        self._time = 0
        # The root has the first place. Places that were given back are used again, the latest first.
        self._places, self._free_places = 1, list[int]()

    def lookup(self, tokens: Tokens, salt: str = "") -> Hit:
        place = self._find(tokens, salt)
        return Hit(tokens, salt, device=min(place.matched, max(len(tokens) - 1, 0)), where=place)

    def admit(self, hit: Hit, output: int) -> Allocation | None:
        if hit.where.version != self._version:
            hit = self.lookup(hit.tokens, hit.salt)
        place: Place = hit.where
        path = self._path(place, cut=False)
        self._time += 1
        for node in path:
            self._stamp(node)
        self._lock(path)
        missing = self._whole(len(hit.tokens) + max(output, 1) - 1 - place.matched + self._grain - 1)
        if missing > self._pool.free_count:
            self._evict(missing - self._pool.free_count, self._next_id + 1)
        room = self._pool.allocate(missing, path[-1].runs.end if path else None)
        if room is None:
            self._unlock(path)
            if path and self.sizes.real and not self._allocations:
                return self.admit(Hit(hit.tokens, hit.salt, where=Place(None, 0, self._version)), output)
            return None
        allocation = self._start(hit, path, {"device": hit.device}, output)
        allocation.runs.extend(room)
        return allocation

    def extend(self, allocation: Allocation, length: int) -> bool:
        return length <= len(allocation.runs)

    def _leaves(self, allocation: Allocation) -> int | None:
        prompt, shared = allocation.where.prompt, allocation.where.shared
        return self._whole(min(prompt, allocation.committed)) if prompt > shared else None

    def _insert(self, tree: RadixTree[Node], tokens: Tokens, runs: Runs) -> int:
        self._time += 1
        node, at = tree.root, 0
        while (found := tree.step(node, tokens, at)) is not None:
            node, shared = found
            at += shared
            self._stamp(node)
            if at < len(tokens) and shared < len(node.tokens):
                node = tree.split(node, shared)
                node.usage = self._usage()
        if at < len(tokens):
            self._add(tree, node, tokens[at:], runs.slice(at, len(tokens)), self._usage())
        return at

    def _whole(self, n: int) -> int:
        """`n` tokens, cut to whole blocks."""
        return n - n % self._grain

    def _usage(self) -> Usage:
        """The usage of a new node."""
        usage = Usage(self._time)
        if self._free_places:
            usage.created = self._free_places.pop()
        else:
            self._places += 1
            usage.created = self._places
        return usage

    def _stamp(self, node: Node) -> None:
        node.usage.stamp = self._time
        if node.usage.ticket:
            self._victims.offer(node)

    def _kept(self, leaf: Node, missing: int) -> int:
        return max(len(leaf.tokens) - missing, 0)

    def _removed(self, node: Node) -> None:
        self._free_places.append(node.usage.created)

    def check_integrity(self) -> None:
        super().check_integrity()
        used = [node.usage.created for tree in self._trees.values() for node in tree.nodes()]
        if sorted([1, *used, *self._free_places]) != list(range(1, self._places + 1)):
            raise CacheCorruption("a node has no place of its own")
