"""Conversations that answers are added to: in memory, within bounds, gone with the process."""

from __future__ import annotations

import threading
import time
import uuid
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from longturn.errors import Refusal

Json = dict[str, Any]

LEAST = 1024
"""Bytes that a conversation counts for even when it is empty."""


@dataclass(frozen=True)
class Conversation:
    """Items in the order in which they came. created: Unix seconds; size: bytes that it counts for."""

    id: str
    created: int
    metadata: Mapping[str, str]
    items: tuple[Json, ...] = ()
    size: int = LEAST

    def added(self, items: Sequence[Json]) -> Conversation:
        """The same with more items."""
        return replace(self, items=(*self.items, *items), size=self.size + len(msgspec.json.encode(items)))


class StoredConversations:
    """The conversations used last, of at most `limit` bytes. Safe for several threads.

    Whatever names a conversation raises Refusal where there is none, or it is another client's.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._stored: OrderedDict[tuple[str, str], Conversation] = OrderedDict()
        self._bytes = 0
        self._lock = threading.Lock()

    def create(self, owner: str, items: Sequence[Json], metadata: Mapping[str, str]) -> Conversation:
        """Begin a conversation."""
        made = Conversation(f"conv_{uuid.uuid4().hex}", int(time.time()), metadata).added(items)
        with self._lock:
            self._put(owner, made)
        return made

    def get(self, id: str, owner: str) -> Conversation:
        """A conversation as it is now."""
        with self._lock:
            return self._get(id, owner)

    def add(self, id: str, owner: str, items: Sequence[Json]) -> Conversation:
        """Add items at the end."""
        with self._lock:
            return self._put(owner, self._get(id, owner).added(items))

    def name(self, id: str, owner: str, metadata: Mapping[str, str]) -> Conversation:
        """Replace what is noted about it."""
        with self._lock:
            return self._put(owner, replace(self._get(id, owner), metadata=metadata))

    def remove(self, id: str, owner: str, item: str) -> Conversation:
        """Take one item out. Raises Refusal if it is not in there."""
        with self._lock:
            found = self._get(id, owner)
            left = tuple(each for each in found.items if each["id"] != item)
            if len(left) == len(found.items):
                raise no_item(item)
            return self._put(owner, replace(found, items=(), size=LEAST).added(left))

    def delete(self, id: str, owner: str) -> None:
        """Forget it."""
        with self._lock:
            self._get(id, owner)
            self._bytes -= self._stored.pop((owner, id)).size

    def _get(self, id: str, owner: str) -> Conversation:
        found = self._stored.get((owner, id))
        if found is None:
            raise Refusal(404, f"Conversation with id {id!r} not found.", "not_found")
        self._stored.move_to_end((owner, id))
        return found

    def _put(self, owner: str, conversation: Conversation) -> Conversation:
        key = owner, conversation.id
        old = self._stored.pop(key, None)
        self._stored[key] = conversation
        self._bytes += conversation.size - (old.size if old else 0)
        while self._bytes > self._limit:
            _, dropped = self._stored.popitem(last=False)
            self._bytes -= dropped.size
        return conversation


def no_item(id: str) -> Refusal:
    """What is said of an item that is not there."""
    return Refusal(404, f"Item with id {id!r} not found.", "not_found")
