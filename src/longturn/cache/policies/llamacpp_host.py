"""The host prompt cache of llama.cpp's server: whole prompts in the order in which they were saved.

An entry holds a prompt's tokens and the KV of all of them. It is never used in place: loading moves it into a slot.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import overload

import numpy as np

from longturn.cache.events import EventLog
from longturn.cache.radix import Tokens, common_prefix
from longturn.cache.slots import Runs
from longturn.cache.transfers import Drop, Save, Transfer
from longturn.errors import CacheCorruption

# An entry that would keep less than this share of itself is left where it is.
_KEEP = np.float32(0.25)


def ratio(part: int, whole: int) -> np.float32:
    """A share as the server computes it, in 32 bits."""
    return np.float32(part) / np.float32(whole)


class Keys(Sequence[bytes]):
    """The keys of the tokens of one entry, made when asked: its number and the position."""

    def __init__(self, entry: int, positions: range) -> None:
        self.entry = entry
        self._positions = positions

    def __len__(self) -> int:
        return len(self._positions)

    @overload
    def __getitem__(self, at: int) -> bytes: ...
    @overload
    def __getitem__(self, at: slice) -> Keys: ...
    def __getitem__(self, at: int | slice) -> bytes | Keys:
        if isinstance(at, slice):
            return Keys(self.entry, self._positions[at])
        return self.entry.to_bytes(8, "little") + self._positions[at].to_bytes(8, "little")


@dataclass(frozen=True, eq=False)
class Entry:
    """One saved prompt: int32 [n] `tokens` under `salt`. `number` is never used again."""

    number: int
    tokens: Tokens
    salt: str

    @property
    def keys(self) -> Keys:
        """What its pages, one token each, are called in the host's store."""
        return Keys(self.number, range(len(self.tokens)))


class HostPrompts:
    """The entries, oldest first, and what they may take.

    most: what all may take together, in the unit of `size`, which says what a prompt of n tokens takes; ahead: room is
    made before a prompt is saved, not only after it. move: called with every move to be made.
    """

    def __init__(
        self,
        most: int,
        size: Callable[[int], int],
        ahead: bool,
        move: Callable[[Transfer], None],
        events: EventLog,
    ) -> None:
        self.entries: list[Entry] = []
        self._most, self._size, self._ahead = most, size, ahead
        self._numbers = 0
        self._move = move
        self._events = events

    @property
    def used(self) -> int:
        """Tokens of all entries."""
        return sum(len(entry.tokens) for entry in self.entries)

    def contains(self, tokens: Tokens, salt: str) -> bool:
        """Whether an entry begins with all of `tokens`. Read only."""
        return any(_begins(entry.tokens, tokens) for entry in self.entries if entry.salt == salt)

    def left_by(self, tokens: Tokens, salt: str) -> list[Entry] | None:
        """The entries that saving a prompt would leave, without itself; None when it would not be saved. Read only."""
        new = self._size(len(tokens))
        if not len(tokens) or (self._ahead and new > self._most) or self.contains(tokens, salt):
            return None
        left = [entry for entry in self.entries if entry.salt != salt or not _begins(tokens, entry.tokens)]
        return self._within(left, self._most - new) if self._ahead else left

    def save(self, tokens: Tokens, salt: str, runs: Runs, by: int) -> bool:
        """Copy the prompt that lies in `runs` for the request `by`, where that is worth it; True when it was saved."""
        left = self.left_by(tokens, salt)
        if left is None:
            return False
        staying = {entry.number for entry in left}
        for entry in self.entries:
            if entry.number not in staying:
                self._drop(entry, by)
        self._numbers += 1
        entry = Entry(self._numbers, tokens, salt)
        self.entries = [*left, entry]
        self._move(Save(entry.keys, runs, ("host",)))
        self._events.record("stored", "host", len(tokens), by)
        return True

    def trim(self, by: int | None = None) -> None:
        """Drop the oldest entries while all take too much."""
        left = self._within(self.entries, self._most)
        for entry in self.entries[: len(self.entries) - len(left)]:
            self._drop(entry, by)
        self.entries = left

    def take(self, entry: Entry) -> None:
        """Take an entry out for a load that the caller has listed."""
        self.entries = [other for other in self.entries if other is not entry]
        self._move(Drop(entry.keys))

    def lose(self, number: int) -> int:
        """Drop the entry of that number, if it is here; returns its tokens."""
        for entry in self.entries:
            if entry.number == number:
                self.take(entry)
                self._events.record("evicted", "host", len(entry.tokens))
                return len(entry.tokens)
        return 0

    def clear(self) -> int:
        """Drop all entries; returns their tokens."""
        return sum(self.lose(entry.number) for entry in self.entries)

    def check(self) -> None:
        """Raises CacheCorruption when there is more than may be, or an entry within another."""
        if self._within(self.entries, self._most) != self.entries:
            raise CacheCorruption(f"the host's prompts take more than {self._most}")
        for entry in self.entries:
            if any(
                other is not entry and other.salt == entry.salt and _begins(other.tokens, entry.tokens)
                for other in self.entries
            ):
                raise CacheCorruption(f"the host's prompt {entry.number} is kept within another as well")

    def _within(self, entries: list[Entry], room: int) -> list[Entry]:
        """What is left of `entries` when the oldest make way until all fit into `room`."""
        over, n = sum(self._size(len(entry.tokens)) for entry in entries) - room, 0
        while over > 0 and n < len(entries):
            over -= self._size(len(entries[n].tokens))
            n += 1
        return entries[n:]

    def _drop(self, entry: Entry, by: int | None) -> None:
        self._move(Drop(entry.keys))
        self._events.record("evicted", "host", len(entry.tokens), by)


def best(entries: list[Entry], tokens: Tokens, salt: str, base: tuple[float, float]) -> tuple[Entry | None, int]:
    """The entry to load for a prompt (int32 [P]) and the tokens that they share, None when none is better than `base`.

    base: of what the slot has, the share that would be kept and its share of the prompt. An entry must beat both.
    """
    keep, of_prompt = np.float32(base[0]), np.float32(base[1])
    found, most = None, 0
    for entry in entries:
        if entry.salt != salt:
            continue
        shared = common_prefix(entry.tokens, tokens)
        kept = ratio(shared, len(entry.tokens))
        if kept >= _KEEP and kept > keep and ratio(shared, len(tokens)) > of_prompt:
            keep, of_prompt = kept, ratio(shared, len(tokens))
            found, most = entry, shared
    return found, most


def _begins(long: Tokens, short: Tokens) -> bool:
    n = len(short)
    return len(long) >= n and (n == 0 or long[n - 1] == short[-1]) and np.array_equal(long[:n], short)
