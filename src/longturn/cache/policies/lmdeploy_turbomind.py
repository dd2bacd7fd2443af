"""LMDeploy's TurboMind since 0.15: blocks of 64 tokens, resumed at the token, optionally with blocks filled in part.

Follows src/turbomind/engine of InternLM/lmdeploy 0.16.0 (scheduler, prefix trie, object allocator; its README is the
contract), for models that are text-only and not recurrent:

- The whole blocks of a prompt are reused up to the first that is missing; the last token of a prompt is always
  computed, in the block that it shares with others.
- Output is indexed at the end (`cache_generation`): its full blocks (auto), also the last one that is not full (all),
  or nothing (none). Where such a block is there already the copies are dropped.
- With `cache_prompt=all` the prompt's last block is kept up to the token before the last, too, in memory that nobody
  uses, if there is any. Only image prompts are with `auto`, so never here.
- Of the blocks filled in part, the longest that a prompt continues behind its whole blocks is copied into a block of
  its own. It takes the room of a whole block.
- Recency is the last time a request ran, its first block being the newest; what is not indexed is freed at once.

Left out: recurrent state and its checkpoints, images. In the engine a cancelled request is not indexed beyond its
prompt. Where all memory is needed, a request is admitted without the copy; the engine would fail it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from longturn.cache.contract import Allocation, Hit
from longturn.cache.eviction import Usage
from longturn.cache.policies.base import Sizes
from longturn.cache.policies.lmdeploy import BLOCK, Block, BlockTree, Place
from longturn.cache.policies.options import choice, tokens
from longturn.cache.radix import Tokens
from longturn.cache.transfers import Copy


@dataclass(frozen=True)
class TurboMindOptions:
    """What a user can set."""

    block_size: int = tokens(BLOCK, "tokens in a block (cache_block_seq_len)")
    cache_generation: Literal["auto", "all", "none"] = choice("auto", "output that is kept: full blocks, all, none")
    cache_prompt: Literal["auto", "all"] = choice("auto", "all: keep the prompt's last block filled in part, too")


class TurboMindCache(BlockTree):
    """TurboMind 0.15 and 0.16."""

    def __init__(self, options: TurboMindOptions, sizes: Sizes) -> None:
        super().__init__("lmdeploy-turbomind", options.block_size, sizes)
        self._options = options

    def _matchable(self, prompt: int) -> int:
        return prompt // self.page_size * self.page_size

    def lookup(self, tokens: Tokens, salt: str = "") -> Hit:
        hit, part = super().lookup(tokens, salt), self._part(tokens, salt)
        return hit if part is None else replace(hit, device=part.end)

    def admit(self, hit: Hit, output: int) -> Allocation | None:
        part = self._part(hit.tokens, hit.salt)
        if part is not None:
            part.usage.stamp = self._next_stamp()
            self._lock(part)
        allocation = super().admit(hit, output)
        if allocation is None and part is not None:
            self._unlock(part)
            part, allocation = None, super().admit(hit, output)
        if allocation is None:
            return None
        place: Place = allocation.where
        if part is not None:
            place.source = part
            allocation.cached["device"] = part.end
            self._transfers.append(Copy(part.runs, allocation.runs.slice(part.depth, part.end)))
            self._events.record("hit", "device", len(part.tokens), allocation.id, part.depth)
        last = place.prompt - 1
        block = last - last % self.page_size
        if self._options.cache_prompt == "all" and block < last and block > allocation.committed:
            place.boundary = last
        return allocation

    def commit(self, allocation: Allocation, tokens: Tokens) -> None:
        super().commit(allocation, tokens)
        place: Place = allocation.where
        if place.boundary and len(tokens) >= place.boundary:
            self._keep_boundary(allocation, place, place.boundary)
            place.boundary = 0
        self._let_go(place)

    def release(self, allocation: Allocation) -> None:
        self._let_go(allocation.where)
        super().release(allocation)

    def _let_go(self, place: Place) -> None:
        """The block that was copied need not be held any more."""
        if place.source is not None:
            self._unlock(place.source)
            place.source = None

    def _keep_boundary(self, allocation: Allocation, place: Place, stop: int) -> None:
        """Keep a copy of the prompt's last block up to `stop`, if there is memory that nobody uses."""
        start = stop - stop % self.page_size
        tokens, node = place.tokens[start:stop], place.node
        while node.depth >= start:
            assert node.parent is not None
            node = node.parent
        if node.end > start:
            node = self._split(place.tree, node, start - node.depth)
        if place.tree.edge(tokens) in node.children:
            return
        room = self._room(self.page_size)
        if room is None:
            return
        part = place.tree.add(node, tokens.copy(), room, [], Usage(self._next_stamp()))
        self._idle += self.page_size
        self._settle(part)
        whole = allocation.runs.slice(start, start + self.page_size)
        self._transfers.append(Copy(whole, room.slice(0, stop - start)))

    def _finish(self, allocation: Allocation) -> None:
        place, known = allocation.where, self._options.cache_generation
        tree, tokens = place.tree, place.tokens[: self._kept(allocation)]
        # The first of its blocks that is there already ends what is indexed; behind a new one none can be.
        if known == "none" or len(tokens) < place.prompt or tree.step(place.node, tokens, allocation.committed):
            return
        self._index(allocation, len(tokens))
        start = allocation.committed
        part = tokens[start:]
        if known == "all" and len(part) and tree.edge(part) not in place.node.children:
            runs = allocation.runs.slice(start, start + self.page_size)
            place.node = tree.add(place.node, part.copy(), runs, [], Usage(0))
            place.node.locks, allocation.committed = 1, len(tokens)

    def _part(self, tokens: Tokens, salt: str) -> Block | None:
        """The longest block filled in part that `tokens` continue behind their whole cached blocks."""
        if "all" not in (self._options.cache_generation, self._options.cache_prompt) or salt not in self._trees:
            return None
        tree = self._trees[salt]
        node, matched = tree.match(tokens[: self._matchable(len(tokens))])
        if matched < node.end:
            return None
        lengths = range(min(self.page_size, len(tokens) - matched) - 1, 0, -1)
        found = (node.children.get(tree.edge(tokens[matched : matched + n])) for n in lengths)
        return next((part for part in found if part is not None), None)

    def _next_stamp(self) -> int:
        self._stamp += 1
        return self._stamp
