"""API keys: who may ask, and whose cached KV an answer may use."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from longturn.errors import ConfigError, Refusal


class Keys:
    """The keys that this server accepts; none at all means that everybody may ask.

    Each key is a cache salt of its own, so that no client can tell by timing what another has sent, unless
    `shared_cache`. Raises ConfigError for an empty key.
    """

    def __init__(self, keys: Sequence[str] = (), *, shared_cache: bool = False) -> None:
        if not all(keys):
            raise ConfigError("an API key is empty: give each --api-key a value, or leave the option out")
        self._salts = {key.encode(): "" if shared_cache else _salt(key) for key in keys}

    def salt(self, given: str | None) -> str:
        """The cache salt of the client that sent this key. Raises Refusal if it may not ask."""
        if not self._salts:
            return ""
        # HTTP headers arrive as latin-1, whatever their bytes mean.
        key = (given or "").encode("latin-1", "replace")
        found = None
        # Every key is compared in full, so that the time it takes tells nothing.
        for known, salt in self._salts.items():
            if hmac.compare_digest(key, known):
                found = salt
        if found is None:
            message = (
                "No valid API key: send one that this server was started with, "
                "as `Authorization: Bearer KEY`, `x-api-key: KEY` or `x-goog-api-key: KEY`."
            )
            raise Refusal(401, message, "invalid_api_key")
        return found


def _salt(key: str) -> str:
    """The same after a restart, and not the key itself, because salts go into the names of stored pages."""
    return hashlib.blake2b(key.encode(), digest_size=16, person=b"longturn.salt").hexdigest()
