"""Where a request goes, and whose dialect it is in: told by its path and headers, never by its body."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from longturn.errors import ConfigError

Family = Literal["openai", "anthropic", "gemini"]
"""Whose API it is, which also decides how errors look."""

PUBLIC: dict[Family, str] = {
    "openai": "https://api.openai.com",
    "anthropic": "https://api.anthropic.com",
    "gemini": "https://generativelanguage.googleapis.com",
}
METERED: tuple[tuple[str, str, Family], ...] = (
    (r"/chat/completions$", "openai-chat", "openai"),
    (r"(?<!/chat)/completions$", "openai-chat", "openai"),
    (r"/responses$", "openai", "openai"),
    (r"/v1/messages$|:(stream)?RawPredict$", "anthropic", "anthropic"),
    (r":(stream)?generateContent$", "gemini", "gemini"),
)
"""(end of the path, dialect, family) of the requests that a model answers; all else is passed on and not counted."""


@dataclass(frozen=True, slots=True)
class Route:
    """Where one request goes.

    url: complete, the path and query as the client wrote them. upstream: its scheme, host and path prefix.
    dialect: one of `longturn.dialects.segments.PROVIDERS`, or None where no model is asked.
    """

    url: str
    upstream: str
    family: Family
    dialect: str | None


class Upstreams:
    """The servers behind the gateway, one for each family.

    A family that is not given goes to `default`, or to the provider's public API. Raises ConfigError for what is no
    URL of a server.
    """

    def __init__(
        self,
        default: str | None = None,
        *,
        openai: str | None = None,
        anthropic: str | None = None,
        gemini: str | None = None,
    ) -> None:
        given: dict[Family, str | None] = {"openai": openai, "anthropic": anthropic, "gemini": gemini}
        self._urls = {family: _checked(url or default or PUBLIC[family]) for family, url in given.items()}

    @property
    def urls(self) -> tuple[str, ...]:
        """All of them, each once."""
        return tuple(dict.fromkeys(self._urls.values()))

    def route(self, method: str, target: str, headers: Mapping[str, str]) -> Route:
        """Where a request for `target` (path and query) goes. headers: case-insensitive."""
        path = target.partition("?")[0]
        dialect, family = _told(path, headers)
        upstream = self._urls[family]
        return Route(_joined(upstream, target), upstream, family, dialect if method == "POST" else None)


def _told(path: str, headers: Mapping[str, str]) -> tuple[str | None, Family]:
    for pattern, dialect, family in METERED:
        if re.search(pattern, path, re.IGNORECASE):
            return dialect, family
    # The same path lists the models of all three.
    if "anthropic-version" in headers or "/v1/messages/" in path:
        return None, "anthropic"
    if "x-goog-api-key" in headers or "x-goog-api-client" in headers or path.startswith(("/v1beta", "/upload/")):
        return None, "gemini"
    return None, "openai"


def _joined(upstream: str, target: str) -> str:
    # Base URLs are given with and without their `/v1`; clients write it in the path as well.
    last = upstream.rpartition("/")[2]
    if re.fullmatch(r"v\d\w*", last) and target.startswith(f"/{last}/"):
        return upstream.removesuffix(f"/{last}") + target
    return upstream + target


def _checked(url: str) -> str:
    try:
        parts = urlsplit(url)
        sound = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:
        sound = False
    if not sound or parts.query or parts.fragment:
        raise ConfigError(f"{url!r} is no server: give a URL such as http://127.0.0.1:8000 or https://api.openai.com")
    return url.rstrip("/")
