"""Traces of our own, and caches written block by block, without a thought for speed, to hold the quick ones against."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import combinations

import numpy as np
from hypothesis import strategies as st

from longturn.lab.trace import Blocks, TraceRequest

Path = Sequence[Hashable]
"""A request's blocks, each named by all that stands before it."""

Request = tuple[str, list[int]] | tuple[str, list[int], list[int]]
"""Salt, block ids, and those of the answer."""

_salts, _ids = st.sampled_from(["", "a"]), st.integers(0, 2)
requests = st.lists(st.tuples(_salts, st.lists(_ids, max_size=6)), max_size=14)
answered = st.lists(st.tuples(_salts, st.lists(_ids, max_size=4), st.lists(_ids, max_size=3)), max_size=14)


class Listed:
    """A trace in memory."""

    def __init__(self, requests: Iterable[Request], unit: int = 1) -> None:
        self.name, self.unit = "listed", unit
        self.notes: list[str] = []
        self.requests = [_request(place, *request) for place, request in enumerate(requests)]

    def __iter__(self) -> Iterator[TraceRequest]:
        return iter(self.requests)

    def paths(self) -> list[Path]:
        return [_path(request.salt, request.prompt.ids().tolist()) for request in self]

    def paths_with_answers(self) -> list[Path]:
        """Of requests that all have answers: each prompt with its answer behind it."""
        return [
            _path(request.salt, request.prompt.ids().tolist() + request.output.ids().tolist())
            for request in self
            if request.output is not None
        ]


def _request(place: int, salt: str, ids: list[int], answer: list[int] | None = None) -> TraceRequest:
    output = None if answer is None else Blocks.of(answer)
    return TraceRequest(str(place), "s", float(place), Blocks.of(ids), len(ids), 0, output, salt=salt)


def _path(salt: str, ids: list[int]) -> Path:
    return [(salt, *ids[: n + 1]) for n in range(len(ids))]


def chats(n: int, seed: int = 0) -> Listed:
    """`n` requests of conversations that share heads, grow, branch, come back and end; some ids mean several things."""
    random = np.random.default_rng(seed)
    heads = [random.integers(0, 50, size) for size in (3, 30, 80)]
    open_chats: list[np.ndarray] = []
    made: list[Request] = []
    for _ in range(n):
        if len(open_chats) < 5 or random.random() < 0.2:
            open_chats.append(heads[random.integers(len(heads))])
        chosen = int(random.integers(len(open_chats)))
        history = open_chats[chosen]
        if random.random() < 0.1:
            history = history[: random.integers(1, len(history) + 1)]
        start = int(random.integers(1_000_000))
        open_chats[chosen] = np.concatenate((history, np.arange(start, start + random.integers(1, 40))))
        made.append(("", open_chats[chosen].tolist()))
        if random.random() < 0.15:
            open_chats.pop(chosen)
    return Listed(made)


def hits_of_lru(paths: Iterable[Path], capacity: int, answered: Iterable[Path] | None = None) -> int:
    """Leading cached blocks hit; then all blocks are stamped, deeper ones older; then the oldest go.

    answered: the paths with their answers, which are stamped in the same way when they are there.
    """
    cached: OrderedDict[Hashable, None] = OrderedDict()
    hits = 0
    for prompt, *rest in zip(paths, *([] if answered is None else [answered]), strict=True):
        for block in prompt:
            if block not in cached:
                break
            hits += 1
        for path in (prompt, *rest):
            for block in reversed(path):
                cached[block] = None
                cached.move_to_end(block)
            while len(cached) > capacity:
                cached.popitem(last=False)
    return hits


def most_hits(paths: Iterable[Path], capacity: int, answered: Iterable[Path] | None = None) -> int:
    """The most hits of all caches: after each request, every choice of at most `capacity` blocks is tried.

    The choice is among what was cached and the request's blocks (those of `answered`, if given); it need not be a tree
    and may leave out the request.
    """
    best: dict[frozenset[Hashable], int] = {frozenset(): 0}
    for path, *rest in zip(paths, *([] if answered is None else [answered]), strict=True):
        after: dict[frozenset[Hashable], int] = {}
        for cached, so_far in best.items():
            hits = so_far
            for block in path:
                if block not in cached:
                    break
                hits += 1
            at_hand = cached.union(path, *rest)
            for size in range(min(capacity, len(at_hand)) + 1):
                for choice in combinations(sorted(at_hand, key=repr), size):
                    kept = frozenset(choice)
                    after[kept] = max(after.get(kept, 0), hits)
        best = after
    return max(best.values())
