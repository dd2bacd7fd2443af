"""Gemini's two ways of caching: any prefix, found without asking; and contents that a client keeps under a name."""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from longturn.cache import Hint, Tokens
from longturn.dialects.gemini import Prompted
from longturn.errors import Refusal

MOST = 1000
"""Cached contents that a server keeps at once."""


def counted(found: int, minimum: int, named: CachedContent | None) -> int:
    """How many of the `found` tokens that the engine took from its cache count as cached for Gemini's clients.

    With a named cache its own tokens; else all, from the shortest prefix on that Gemini caches for the model.
    """
    if named is not None:
        return min(found, len(named.tokens))
    return found if found >= minimum else 0


@dataclass(frozen=True, eq=False)
class CachedContent:
    """The beginning of prompts, which one client keeps for a while.

    tokens: int32 [n], what all prompts that begin with it have in common; salt: the client's; model: as the client
    wrote it; times in UTC.
    """

    id: str
    salt: str
    model: str
    display_name: str | None
    prompted: Prompted
    tokens: Tokens
    created: datetime
    updated: datetime
    expires: datetime


def _now() -> datetime:
    return datetime.now(UTC)


class CachedContents:
    """All that are kept, of all clients. Safe for several threads. clock: now, in UTC."""

    def __init__(self, limit: int = MOST, clock: Callable[[], datetime] = _now) -> None:
        self._kept: dict[str, CachedContent] = {}
        self._limit = limit
        self._lock = threading.Lock()
        self.clock = clock

    def add(
        self,
        salt: str,
        model: str,
        display_name: str | None,
        prompted: Prompted,
        tokens: Tokens,
        expires: datetime,
    ) -> CachedContent:
        """Keep one more. Raises Refusal when there are too many."""
        now = self.clock()
        content = CachedContent(
            secrets.token_hex(12),
            salt,
            model,
            display_name,
            prompted,
            tokens,
            created=now,
            updated=now,
            expires=expires,
        )
        with self._lock:
            self._expire()
            if len(self._kept) >= self._limit:
                message = f"{self._limit} cached contents are kept already: delete one, or wait until one expires."
                raise Refusal(429, message, "too_many_cached_contents")
            self._kept[content.id] = content
        return content

    def get(self, salt: str, id: str) -> CachedContent:
        """The client's content of that id. Raises Refusal where there is none, or none any more."""
        with self._lock:
            self._expire()
            content = self._kept.get(id)
        if content is None or content.salt != salt:
            message = f"CachedContent {id!r} not found (or permission denied): it has expired or never was, create it."
            # As Google says it, whose clients look for this status to make another.
            raise Refusal(403, message, "cached_content_not_found")
        return content

    def of(self, salt: str) -> list[CachedContent]:
        """All of a client's, oldest first."""
        with self._lock:
            self._expire()
            return [content for content in self._kept.values() if content.salt == salt]

    def extend(self, salt: str, id: str, expires: datetime) -> CachedContent:
        """Let it expire at another time. Raises Refusal as `get`."""
        content = replace(self.get(salt, id), expires=expires, updated=self.clock())
        with self._lock:
            if id in self._kept:
                self._kept[id] = content
        return content

    def delete(self, salt: str, id: str) -> CachedContent:
        """Forget it. Raises Refusal as `get`."""
        content = self.get(salt, id)
        with self._lock:
            self._kept.pop(id, None)
        return content

    def pins(self, salt: str) -> list[Hint]:
        """What keeps a client's contents in the engine's cache, each until it expires."""
        now = self.clock()
        return [
            Hint("pin", content.tokens, seconds=(content.expires - now).total_seconds(), salt=salt)
            for content in self.of(salt)
        ]

    def _expire(self) -> None:
        now = self.clock()
        for id in [id for id, content in self._kept.items() if content.expires <= now]:
            del self._kept[id]
