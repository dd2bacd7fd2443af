"""vLLM's rules once more, block by block and token by token, for requests that run one after the other."""

from __future__ import annotations

from collections import OrderedDict

Key = tuple[int, ...]


class NaiveVllm:
    """`blocks` usable blocks of `size` tokens, `chunks` on the host (0: no such tier)."""

    def __init__(
        self, blocks: int, size: int, chunks: int = 0, order: str = "lru", prompt_only: bool = True, threshold: int = 0
    ) -> None:
        self.size, self.usable = size, blocks * size
        self.queue = list(range(blocks))
        self.name: dict[int, Key] = {}
        self.index: dict[Key, list[int]] = {}
        host = NaiveArc if order == "arc" else NaiveLru
        self.host = host(chunks, threshold)
        self.prompt_only = prompt_only

    def serve(self, prompt: list[int], output: list[int]) -> int | None:
        """The cached tokens that the engine would report, None where it refuses."""
        size, p, n = self.size, len(prompt), len(output)
        if p + n > self.usable:
            return None
        whole = prompt + output
        keys = [tuple(whole[: (i + 1) * size]) for i in range((p + n) // size)]
        blocks: list[int] = []
        while len(blocks) < (p - 1) // size and self.index.get(keys[len(blocks)]):
            blocks.append(self.index[keys[len(blocks)]][0])
        for block in blocks:
            self.queue.remove(block)
        hits = len(blocks)
        loaded = 0
        while hits + loaded < p // size and self.host.has(keys[hits + loaded]):
            loaded += 1
        self.host.begin()
        for i in range(hits, hits + loaded):
            self.host.used(keys[i], i)
        offered = hits + loaded if loaded else 0
        registered = hits
        for covered in [p, *range(p + 1, p + n)]:
            while len(blocks) * size < covered:
                block = self.queue.pop(0)
                if block in self.name:
                    self.index[self.name.pop(block)].remove(block)
                blocks.append(block)
            for i in range(registered, covered // size):
                self.name[blocks[i]] = keys[i]
                self.index.setdefault(keys[i], []).append(blocks[i])
            registered = max(registered, covered // size)
            stop = min(covered, p) // size if self.prompt_only else covered // size
            if stop > offered:
                self.host.offer(list(enumerate(keys))[offered:stop])
                offered = stop
        front = []
        for block in reversed(blocks):
            if block in self.name:
                self.queue.append(block)
            else:
                front.append(block)
        self.queue = front + self.queue
        self.host.end()
        return (hits + loaded) * size


class NaiveLru:
    """Each chunk's rank is (request, -depth): the lowest goes first."""

    def __init__(self, chunks: int, threshold: int) -> None:
        self.chunks, self.threshold = chunks, threshold
        self.rank: dict[Key, tuple[int, int]] = {}
        self.offers: dict[Key, int] = {}
        self.request = 0

    def has(self, key: Key) -> bool:
        return key in self.rank

    def begin(self) -> None:
        self.request += 1

    def used(self, key: Key, depth: int) -> None:
        self.rank[key] = self.request, -depth

    def wanted(self, offer: list[tuple[int, Key]]) -> list[tuple[int, Key]]:
        """The missing chunks of an offer that have been offered often enough."""
        missing = [(i, key) for i, key in offer if not self.has(key)]
        for _, key in missing:
            self.offers[key] = self.offers.get(key, 0) + 1
        return [(i, key) for i, key in missing if self.offers[key] >= self.threshold]

    def offer(self, offer: list[tuple[int, Key]]) -> None:
        wanted = self.wanted(offer)
        keys = [key for _, key in offer]
        there = [(i, key) for i, key in offer if self.has(key)]
        idle = sorted((key for key in self.rank if key not in keys), key=self.rank.__getitem__)
        short = len(self.rank) + len(wanted) - self.chunks
        if short <= len(idle):
            for key in idle[: max(short, 0)]:
                del self.rank[key]
            there += wanted
        for i, key in there:
            self.used(key, i)

    def end(self) -> None:
        pass


class NaiveArc(NaiveLru):
    """Lists T1 and T2, oldest first, their ghosts B1 and B2, and T1's target."""

    def __init__(self, chunks: int, threshold: int) -> None:
        super().__init__(chunks, threshold)
        self.t1, self.t2, self.b1, self.b2 = (OrderedDict[Key, None]() for _ in range(4))
        self.target = 0.0
        self.seen: list[tuple[int, Key, bool]] = []

    def has(self, key: Key) -> bool:
        return key in self.t1 or key in self.t2

    def begin(self) -> None:
        self.seen = []

    def used(self, key: Key, depth: int) -> None:
        self.seen.append((depth, key, False))

    def offer(self, offer: list[tuple[int, Key]]) -> None:
        for i, key in offer:
            if self.has(key):
                self.seen.append((i, key, False))
        wanted = self.wanted(offer)
        for _, key in reversed(wanted):
            if key in self.b1:
                self.target = min(self.chunks, self.target + max(1, len(self.b2) / len(self.b1)))
                self.b1.move_to_end(key)
            elif key in self.b2:
                self.target = max(0, self.target - max(1, len(self.b1) / len(self.b2)))
                self.b2.move_to_end(key)
        protected = {key for _, key in offer}
        picked: list[tuple[Key, int]] = []
        for _ in range(len(self.t1) + len(self.t2) + len(wanted) - self.chunks):
            gone = {key for key, _ in picked}
            t1, t2 = ([key for key in t if key not in protected and key not in gone] for t in (self.t1, self.t2))
            from_t1 = len(self.t1) - sum(which == 1 for _, which in picked) >= int(self.target)
            if not t1 and not t2:
                return
            picked.append((t1[0], 1) if t1 and (from_t1 or not t2) else (t2[0], 2))
        for key, which in picked:
            t, b = (self.t1, self.b1) if which == 1 else (self.t2, self.b2)
            del t[key]
            b[key] = None
        for b in (self.b1, self.b2):
            while len(b) > self.chunks:
                b.popitem(last=False)
        for i, key in wanted:
            self.t1[key] = None
            self.b1.pop(key, None)
            self.b2.pop(key, None)
            self.seen.append((i, key, True))

    def end(self) -> None:
        for _, key, new in sorted(self.seen, reverse=True):
            if not self.has(key):
                continue
            t = self.t1 if new and key in self.t1 else self.t2
            self.t1.pop(key, None)
            self.t2.pop(key, None)
            t[key] = None
