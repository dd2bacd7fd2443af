"""LMDeploy's three caches, an object per block and every block stamped whenever the engine stamps it.

What the quick policies are compared with, for requests one after the other. Each model holds `capacity` blocks of
`size` tokens; `serve(prompt, output)` is a whole request and returns the tokens that were cached.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field


@dataclass(eq=False)
class Block:
    """A block of KV. `key`: every token from the first to its end, None while it is not indexed."""

    key: tuple[int, ...] | None = None
    valid: bool = False
    allocated: bool = False
    stamp: int = 0
    children: set[Block] = field(default_factory=set)
    parent: Block | None = None
    refs: int = 0


def blocks(n_tokens: int, size: int) -> int:
    return -(-n_tokens // size)


class NaiveTurboMind:
    """TurboMind since 0.15: a pass stamps all blocks of a request, the last first, and evicts what is stamped lower."""

    def __init__(self, capacity: int, size: int, generation: str = "auto", prompt: str = "auto") -> None:
        self.capacity, self.size, self.generation, self.prompt = capacity, size, generation, prompt
        self.index: dict[tuple[int, ...], Block] = {}
        self.allocated: set[Block] = set()
        self.counter = self.began = 0

    def serve(self, prompt: list[int], output: list[int]) -> int:
        size, n_prompt = self.size, len(prompt)
        whole = tuple(prompt + output)
        mine: list[Block] = []
        for i in range(n_prompt // size):
            block = self.index.get(whole[: (i + 1) * size])
            if block is None:
                break
            mine.append(block)
        missed = len(mine)
        fits = blocks(n_prompt, size) < self.capacity
        source = self.partial(whole[:n_prompt], missed) if fits else None
        for i in range(missed, blocks(n_prompt, size)):
            mine.append(Block())
            if (i + 1) * size <= n_prompt:
                self.publish(mine[i], whole[: (i + 1) * size])
        ends = itertools.takewhile(lambda i: mine[i].valid and mine[i].allocated, range(len(mine)))
        valid = min(size * len(list(ends)), n_prompt)
        cached = min(valid, n_prompt - 1)
        if source is not None and source.key is not None and valid == missed * size:
            cached = len(source.key)
        else:
            source = None
        cuts = [n_prompt]
        boundary = n_prompt - 1
        tail = boundary // size
        extra = None
        if (
            self.prompt == "all"
            and boundary % size
            and tail >= 1
            and tail > missed
            and whole[:boundary] not in self.index
        ):
            extra = Block()
            self.publish(extra, whole[:boundary])
            cuts = [boundary, n_prompt]
        for done in cuts:
            self.make(mine, blocks(done, size), protect=source if done == cuts[0] else None)
            for i in range(done // size):
                mine[i].valid = True
            if extra is not None and done == boundary:
                self.place(extra)
        for length in range(n_prompt + 1, len(whole) + 1):
            self.make(mine, blocks(length, size))
        filled = n_prompt + len(output) - 1
        for i, block in enumerate(mine):
            if block.key is not None:
                continue
            end = min((i + 1) * size, filled)
            short = end - i * size < size
            if self.generation == "none" or (short and self.generation != "all") or end <= i * size:
                break
            if whole[:end] in self.index:
                break
            block.valid = True
            self.publish(block, whole[:end])
            if short:
                break
        for block in mine:
            if block.key is None:
                self.allocated.discard(block)
        return cached

    def partial(self, prompt: tuple[int, ...], missed: int) -> Block | None:
        start = missed * self.size
        for length in range(min(self.size - 1, len(prompt) - 1 - start), 0, -1):
            block = self.index.get(prompt[: start + length])
            if block is not None:
                return block if block.valid and block.allocated else None
        return None

    def publish(self, block: Block, key: tuple[int, ...]) -> None:
        block.key = key
        self.index[key] = block

    def next(self) -> int:
        self.counter += 1
        return self.counter

    def make(self, mine: list[Block], n: int, protect: Block | None = None) -> None:
        """One pass: stamp, then allocate in order."""
        cutoff = self.began = self.counter
        if protect is not None:
            protect.stamp = self.next()
        mine += [Block() for _ in range(n - len(mine))]
        for block in reversed(mine):
            block.stamp = self.next()
        for block in mine:
            if not block.allocated:
                assert self.room(cutoff)
                block.allocated = True
                self.allocated.add(block)

    def place(self, extra: Block) -> None:
        if self.room(self.began):
            extra.allocated = extra.valid = True
            extra.stamp = self.next()
            self.allocated.add(extra)
        else:
            assert extra.key is not None
            del self.index[extra.key]

    def room(self, cutoff: int) -> bool:
        if len(self.allocated) < self.capacity:
            return True
        victim = min(self.allocated, key=lambda block: block.stamp)
        if victim.stamp > cutoff:
            return False
        victim.valid = victim.allocated = False
        self.allocated.discard(victim)
        assert victim.key is not None
        del self.index[victim.key]
        return True


class NaiveClassic:
    """TurboMind up to 0.14: ended requests leave all their blocks in a queue; the index follows the newest copy."""

    def __init__(self, capacity: int, size: int) -> None:
        self.capacity, self.size = capacity, size
        self.trie: dict[tuple[int, ...], Block] = {}
        self.cached: list[Block] = []

    def serve(self, prompt: list[int], output: list[int]) -> int:
        size, n_prompt = self.size, len(prompt)
        whole = tuple(prompt + output)
        mine: list[Block] = []
        while (len(mine) + 1) * size < n_prompt and (found := self.trie.get(whole[: (len(mine) + 1) * size])):
            mine.append(found)
        matched = len(mine)
        for block in mine:
            self.cached.remove(block)
        for length in range(n_prompt, len(whole) + 1):
            self.make(mine, blocks(length, size))
            if length == n_prompt:
                self.insert(mine, whole, n_prompt // size)
        self.insert(mine, whole, (len(whole) - 1) // size)
        self.cached += reversed(mine)
        return matched * size

    def make(self, mine: list[Block], n: int) -> None:
        for _ in range(n - len(mine)):
            if len(self.cached) + len(mine) == self.capacity:
                gone = self.cached.pop(0)
                for key in [key for key, block in self.trie.items() if block is gone]:
                    self.forget(key)
            mine.append(Block())

    def forget(self, prefix: tuple[int, ...]) -> None:
        for key in [key for key in self.trie if key[: len(prefix)] == prefix]:
            del self.trie[key]

    def insert(self, mine: list[Block], whole: tuple[int, ...], n: int) -> None:
        for i in range(n):
            self.trie[whole[: (i + 1) * self.size]] = mine[i]


class NaivePyTorch:
    """The PyTorch engine: leaves go first, and output is indexed only when new blocks are taken."""

    def __init__(self, capacity: int, size: int, ahead: int = 16) -> None:
        self.size, self.ahead = size, ahead
        self.free = capacity
        self.trie: dict[tuple[int, ...], Block] = {}
        self.clock = itertools.count(1)

    def serve(self, prompt: list[int], output: list[int]) -> int:
        size, n_prompt = self.size, len(prompt)
        whole = tuple(prompt + output)
        mine: list[Block] = []
        while (len(mine) + 1) * size < n_prompt and (found := self.trie.get(whole[: (len(mine) + 1) * size])):
            mine.append(found)
        matched = len(mine)
        self.stamp(mine)
        for block in mine:
            block.refs += 1
        self.make(mine, blocks(n_prompt + self.ahead, size))
        done = self.insert(mine, whole, matched, n_prompt // size)
        for i in range(len(output)):
            if blocks(n_prompt + i + 1, size) > len(mine):
                self.make(mine, blocks(n_prompt + i + self.ahead, size))
                done = self.insert(mine, whole, done, (n_prompt + i) // size)
        for block in mine:
            block.refs -= 1
            self.free += block.refs == 0
        self.stamp(mine)
        return matched * size

    def stamp(self, mine: list[Block]) -> None:
        now = next(self.clock)
        for block in mine:
            block.stamp = now

    def make(self, mine: list[Block], n: int) -> None:
        for _ in range(n - len(mine) - self.free):
            leaves = [key for key, block in self.trie.items() if block.refs == 1 and not block.children]
            victim = min(leaves, key=lambda key: self.trie[key].stamp)
            block = self.trie.pop(victim)
            if block.parent is not None:
                block.parent.children.discard(block)
            self.free += 1
        fresh = [Block(refs=1) for _ in range(n - len(mine))]
        self.free -= len(fresh)
        assert self.free >= 0
        self.stamp(fresh)
        mine += fresh

    def insert(self, mine: list[Block], whole: tuple[int, ...], start: int, stop: int) -> int:
        for i in range(start, stop):
            key = whole[: (i + 1) * self.size]
            found = self.trie.get(key)
            if found is not None:
                found.refs += 1
                mine[i] = found
                self.free += 1
                continue
            mine[i].refs += 1
            self.trie[key] = mine[i]
            if i:
                mine[i].parent = mine[i - 1]
                mine[i - 1].children.add(mine[i])
        return max(start, stop)
