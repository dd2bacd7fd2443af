"""What headers a proxy passes on, and what they say about who asks."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from urllib.parse import parse_qs

HOP = frozenset(
    ("connection", "keep-alive", "proxy-connection", "proxy-authenticate", "proxy-authorization", "te", "trailer")
) | {"transfer-encoding", "upgrade"}
"""About one connection, not about the message (RFC 9110, 7.6.1)."""

KEYS = ("x-api-key", "x-goog-api-key", "api-key", "authorization")
BETAS = "anthropic-beta"
"""The only header that is part of what a provider caches."""


def passed(raw: Iterable[tuple[bytes, bytes]], drop: Iterable[str] = ()) -> list[tuple[str, str]]:
    """The headers that travel on, in their order and spelling: all but those of the connection, and `drop`."""
    pairs = [(name.decode("latin-1"), value.decode("utf-8", "surrogateescape")) for name, value in raw]
    named = {
        token.strip().lower() for name, value in pairs if name.lower() == "connection" for token in value.split(",")
    }
    out = HOP | named | set(drop)
    return [(name, value) for name, value in pairs if name.lower() not in out]


def key_hash(headers: Mapping[str, str], query: str = "") -> str | None:
    """A name for the API key of a request, from which the key cannot be told; None without one."""
    key = next((headers[name] for name in KEYS if headers.get(name)), None)
    if key is None:
        # Google's older way.
        key = next(iter(parse_qs(query).get("key", [])), None)
    if key is None:
        return None
    secret = key.removeprefix("Bearer ").removeprefix("bearer ").strip()
    return hashlib.sha256(secret.encode("utf-8", "surrogateescape")).hexdigest()[:16]
