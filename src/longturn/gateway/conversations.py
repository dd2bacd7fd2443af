"""`Conversations`: which earlier request a new one continues, from a memory of bounded size."""

from __future__ import annotations

import zlib
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import xxhash

from longturn.dialects.segments import Prompt, Segment
from longturn.dialects.segments.form import as_dict

MEMORY = 256 << 20
"""Bytes of earlier requests, compressed, that are kept."""
PER_SEGMENT = 400
"""Bytes that the hashes of one segment take, indexes included; about."""
THREADS = 8
"""Requests of one named session that are kept to be compared with: agents run several conversations under one name."""
CANDIDATES = 16
START = 64
"""Characters at the beginning of a text by which it is known again after its end has changed."""
ALIKE = 0.5
"""Share of the smaller request's messages that both must have, where no name says that they belong together."""

Realm = tuple[str, str, str | None]
"""Upstream, dialect and key: nothing is compared, and no cache shared, across these."""


@dataclass(frozen=True, slots=True)
class Shape:
    """A prompt as hashes.

    chain: of all segments up to each end. head: how many segments come before the messages. messages: (hash, hash of
    the beginning, size) of each segment of a message. tools: of their names.
    """

    chain: tuple[int, ...]
    head: int
    messages: tuple[tuple[int, int, int], ...]
    tools: int

    @property
    def size(self) -> int:
        """Characters in the messages."""
        return sum(size for _, _, size in self.messages)

    @property
    def opening(self) -> int:
        """The chain up to the first segment of a message: the same for all requests of a conversation."""
        return self.chain[min(self.head, len(self.chain) - 1)] if self.chain else 0


@dataclass(frozen=True, slots=True)
class Past:
    """An earlier request as it is kept. body: compressed; time: unix seconds of its start; betas: see `Asked`."""

    number: int
    realm: Realm
    session: str
    named: bool
    shape: Shape
    body: bytes
    usage: Any
    time: float
    betas: str

    @property
    def weight(self) -> int:
        """Bytes of memory, about."""
        return len(self.body) + PER_SEGMENT * len(self.shape.chain)

    def request(self) -> bytes:
        """The body as it was sent."""
        return zlib.decompress(self.body)


@dataclass(slots=True)
class Conversations:
    """The latest requests, by what they contain. memory: bytes for all of them together."""

    memory: int = MEMORY
    _pasts: OrderedDict[int, Past] = field(default_factory=OrderedDict)
    _index: dict[tuple[Realm, int], int] = field(default_factory=dict)
    _sessions: dict[tuple[Realm, str], list[int]] = field(default_factory=dict)
    _weight: int = 0
    _count: int = 0

    def find(self, realm: Realm, session: str | None, shape: Shape) -> Past | None:
        """The request that one of `shape` continues, or repeats with a change; None where it begins something new."""
        best: tuple[float, float, int] | None = None
        found = None
        for past in self._candidates(realm, session, shape):
            common = _common(past.shape, shape)
            if common <= 0 or (session is None and common < ALIKE * min(past.shape.size, shape.size)):
                continue
            if session is not None and _beside(past.shape, shape):
                continue
            rank = (common, common / max(1, past.shape.size), past.number)
            if best is None or rank > best:
                best, found = rank, past
        if found is None and session is not None:
            found = self._latest_with_head(realm, session, shape)
        return found

    def keep(
        self,
        realm: Realm,
        session: str,
        named: bool,
        shape: Shape,
        body: bytes,
        usage: Any,
        time: float,
        betas: str,
    ) -> None:
        """Remember a request that was answered. What it continues word for word is forgotten, then the oldest."""
        self._count += 1
        past = Past(self._count, realm, session, named, shape, zlib.compress(body, 1), usage, time, betas)
        if shape.chain and (number := self._superseded(realm, session, shape)) is not None:
            self._forget(number)
        self._pasts[past.number] = past
        self._weight += past.weight
        for key in _keys(shape):
            self._index[realm, key] = past.number
        if named:
            latest = self._sessions.setdefault((realm, session), [])
            latest.append(past.number)
            if len(latest) > THREADS:
                self._forget(latest[0])
        while self._weight > self.memory and len(self._pasts) > 1:
            self._forget(next(iter(self._pasts)))

    def _candidates(self, realm: Realm, session: str | None, shape: Shape) -> Iterable[Past]:
        if session is not None:
            return [self._pasts[number] for number in self._sessions.get((realm, session), ())]
        numbers: dict[int, None] = {}
        # The latest segments say most; the longest chain is among them.
        for key in (*reversed(shape.chain[shape.head :]), *_contents(reversed(shape.messages))):
            number = self._index.get((realm, key))
            if number is not None and not self._pasts[number].named:
                numbers[number] = None
            if len(numbers) == CANDIDATES:
                break
        return [self._pasts[number] for number in numbers]

    def _latest_with_head(self, realm: Realm, session: str, shape: Shape) -> Past | None:
        """The session's latest request with the same tools or the same first segment: all messages were replaced."""
        for number in reversed(self._sessions.get((realm, session), ())):
            past = self._pasts[number]
            same_tools = shape.tools and past.shape.tools == shape.tools
            same_start = shape.head and past.shape.head and past.shape.chain[0] == shape.chain[0]
            if same_tools or same_start:
                return past
        return None

    def _superseded(self, realm: Realm, session: str, shape: Shape) -> int | None:
        """The request of the same conversation that is the beginning of this one."""
        for key in reversed(shape.chain):
            number = self._index.get((realm, key))
            if number is not None:
                past = self._pasts[number]
                if past.session == session and past.shape.chain[-1] == key:
                    return number
        return None

    def _forget(self, number: int) -> None:
        past = self._pasts.pop(number)
        self._weight -= past.weight
        for key in _keys(past.shape):
            if self._index.get((past.realm, key)) == number:
                del self._index[past.realm, key]
        if past.named:
            latest = self._sessions[past.realm, past.session]
            latest.remove(number)
            if not latest:
                del self._sessions[past.realm, past.session]


def shape_of(prompt: Prompt) -> Shape:
    """The hashes of a prompt."""
    chain: list[int] = []
    messages = []
    before = 0
    for segment in prompt.segments:
        own = _hash("\0".join(segment.rendered))
        before = xxhash.xxh3_64_intdigest(own.to_bytes(8, "little"), before)
        chain.append(before)
        if segment.level == "messages":
            messages.append((own, _hash(f"{segment.role}\0{segment.text[:START]}"), len(segment.text)))
    tools = sorted(_name(segment) for segment in prompt.segments if segment.level == "tools")
    head = len(prompt.segments) - len(messages)
    return Shape(tuple(chain), head, tuple(messages), _hash("\0".join(tools)) if tools else 0)


def session_in(body: dict[str, Any]) -> str | None:
    """The conversation's name, where a client writes it into the body."""
    user = as_dict(body.get("metadata")).get("user_id")
    if isinstance(user, str) and "session" in user:
        # Claude Code's: `user_..._session_ID`, or an object written as a string.
        named = user.rpartition('"session_id":"')[2].partition('"')[0] if user.startswith("{") else ""
        named = named or user.rpartition("_session_")[2]
        if 0 < len(named) < len(user):
            return named
    for field_name in ("session", "session_id"):
        if isinstance(name := body.get(field_name), str) and name:
            return name
    return None


def _common(a: Shape, b: Shape) -> float:
    """Characters of messages that both have, wherever they stand; half of what only begins alike."""
    whole = Counter(own for own, _, _ in a.messages)
    starts = Counter(start for _, start, _ in a.messages)
    sizes = {start: size for _, start, size in a.messages}
    common = 0.0
    for own, start, size in b.messages:
        if whole[own] > 0:
            whole[own] -= 1
            common += max(1, size)
        elif starts[start] > 0:
            common += max(1, min(size, sizes[start])) / 2
        starts[start] -= 1
    return common


def _beside(a: Shape, b: Shape) -> bool:
    """Whether one only quotes the other: a request for a title has another head, and of the talk a single message."""
    same_start = a.head and b.head and a.chain[0] == b.chain[0]
    if a.tools == b.tools or same_start:
        return False
    both = Counter(own for own, _, _ in a.messages) & Counter(own for own, _, _ in b.messages)
    return both.total() <= 1


def _keys(shape: Shape) -> Iterable[int]:
    return (*shape.chain, *_contents(shape.messages))


def _contents(messages: Iterable[tuple[int, int, int]]) -> Iterable[int]:
    return (key for own, start, _ in messages for key in (own, start))


def _name(segment: Segment) -> str:
    value = as_dict(segment.value)
    return str(value.get("name") or as_dict(value.get("function")).get("name") or value.get("type"))


def _hash(text: str) -> int:
    return xxhash.xxh3_64_intdigest(text.encode("utf-8", "surrogatepass"))
