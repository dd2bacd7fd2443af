"""Answers of /v1/responses that can be fetched and continued: in memory, within bounds, gone with the process."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
from fastapi import Depends, Request

from longturn.dialects.responses import ResponsesRequest
from longturn.errors import Refusal, RequestError
from longturn.serve.openai.stored_conversations import StoredConversations

Json = dict[str, Any]

LIMIT = 256 << 20
"""Bytes of all answers and their inputs, as JSON."""


@dataclass(frozen=True)
class Stored:
    """One answer. owner: whose it is; input: the items of its request alone; previous: the answer that it continues."""

    owner: str
    response: Json
    input: Sequence[Json]
    previous: str | None = None


class StoredResponses:
    """The answers used last, of at most `limit` bytes, and as many bytes of conversations. Safe for several threads."""

    def __init__(self, limit: int = LIMIT) -> None:
        self._limit = limit
        self._stored: OrderedDict[str, tuple[Stored, int]] = OrderedDict()
        self._items: dict[tuple[str, str], Json] = {}
        self._bytes = 0
        self._lock = threading.Lock()
        self.conversations = StoredConversations(limit)

    def put(self, stored: Stored) -> None:
        """Keep an answer. One that is larger than all there may be is not kept."""
        size = len(msgspec.json.encode((stored.response, stored.input)))
        with self._lock:
            self._stored[stored.response["id"]] = (stored, size)
            self._items |= {(stored.owner, item["id"]): item for item in _items(stored)}
            self._bytes += size
            while self._bytes > self._limit:
                self._drop(next(iter(self._stored)))

    def get(self, id: str, owner: str) -> Stored:
        """An answer. Raises Refusal if there is none, or it is another client's."""
        with self._lock:
            found = self._find(id, owner)
        if found is None:
            raise Refusal(404, f"Response with id {id!r} not found.", "not_found")
        return found

    def delete(self, id: str, owner: str) -> None:
        """Forget an answer; what continues it can be fetched still, but no longer continued. Raises as `get` does."""
        self.get(id, owner)
        with self._lock:
            if id in self._stored:
                self._drop(id)

    def before(self, request: ResponsesRequest, owner: str) -> list[Json]:
        """The items of the conversation that a request goes on with. Raises RequestError if it is not there."""
        if request.conversation is not None:
            return list(self.conversations.get(request.conversation, owner).items)
        return self.history(request.previous_response_id, owner)

    def history(self, id: str | None, owner: str) -> list[Json]:
        """The items of the conversation up to the answer `id`, its output included; none for no answer.

        Raises RequestError if one of its answers is not there.
        """
        chain: list[Stored] = []
        with self._lock:
            while id is not None:
                found = self._find(id, owner)
                if found is None:
                    message = f"Previous response with id {id!r} not found: send its conversation as input."
                    raise RequestError(message, param="previous_response_id", code="previous_response_not_found")
                chain.append(found)
                id = found.previous
        return [item for stored in reversed(chain) for item in _items(stored)]

    def resolved(self, body: Mapping[str, Any], owner: str) -> Mapping[str, Any]:
        """The body of a request with the items that it only names. Raises RequestError for one that is not there."""
        given = body.get("input")
        if not isinstance(given, list) or not any(map(_is_reference, given)):
            return body
        return {**body, "input": [self._named(item, owner) if _is_reference(item) else item for item in given]}

    def _named(self, reference: Json, owner: str) -> Json:
        with self._lock:
            item = self._items.get((owner, reference["id"]))
        if item is None:
            raise RequestError(f"Item with id {reference['id']!r} not found: send the item itself.", param="input")
        return item

    def _find(self, id: str, owner: str) -> Stored | None:
        stored, _ = self._stored.get(id, (None, 0))
        if stored is None or stored.owner != owner:
            return None
        self._stored.move_to_end(id)
        return stored

    def _drop(self, id: str) -> None:
        stored, size = self._stored.pop(id)
        self._bytes -= size
        for item in _items(stored):
            # A later request may have sent the same item again.
            if self._items.get((stored.owner, item["id"])) is item:
                del self._items[stored.owner, item["id"]]


def _items(stored: Stored) -> list[Json]:
    return [*stored.input, *stored.response["output"]]


def _is_reference(item: Any) -> bool:
    return isinstance(item, dict) and item.get("type") == "item_reference" and isinstance(item.get("id"), str)


async def _of(request: Request) -> StoredResponses:
    stored: StoredResponses = request.app.state.stored
    return stored


StoredOf = Annotated[StoredResponses, Depends(_of)]
"""The answers that the server has stored."""
