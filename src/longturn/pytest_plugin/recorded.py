"""A request to a language model, told by its address and its body."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cached_property

from longturn.explain import Exchange

ENDPOINTS = (
    ("openai-chat", "messages", re.compile(r"/chat/completions$")),
    ("openai", "input", re.compile(r"/responses$")),
    ("anthropic", "messages", re.compile(r"/messages$")),
    ("anthropic", "messages", re.compile(r"/anthropic/models/(?P<model>[^/:]+):(stream)?[rR]awPredict$")),
    ("anthropic", "messages", re.compile(r"/model/(?P<model>[^/]+)/invoke(-with-response-stream)?$")),
    ("gemini", "contents", re.compile(r"/models/(?P<model>[^/:]+):(stream)?[gG]enerateContent$")),
)
"""Dialect, a key that its bodies have, and how its addresses end. Two of Anthropic's are on other clouds."""
ELSEWHERE = ("previous_response_id", "conversation")
"""Keys of a body that brings only what is new: the provider has the rest, and what it sends then is not known here."""


@dataclass(frozen=True, eq=False)
class Recorded:
    """The `number`-th request that was recorded, from 1 on."""

    number: int
    exchange: Exchange

    @classmethod
    def read(cls, number: int, path: str, content: bytes) -> Recorded | None:
        """From the path of the address and the body as it is sent; None if it asks no language model for an answer."""
        for provider, key, pattern in ENDPOINTS:
            if (found := pattern.search(path)) is None:
                continue
            try:
                body = json.loads(content)
            except (ValueError, RecursionError):
                return None
            if not isinstance(body, dict) or key not in body or any(body.get(name) for name in ELSEWHERE):
                return None
            # A body may have a key called `request` or `usage`: it must not be taken for a file of `longturn explain`.
            return cls(number, Exchange.read({"request": {**found.groupdict(), **body}}, provider))
        return None

    @property
    def provider(self) -> str:
        """Whose dialect it is in."""
        return self.exchange.prompt.provider

    @cached_property
    def system(self) -> str:
        """The system prompt as one text."""
        return "\n".join(s.text for s in self.exchange.prompt.segments if s.level == "system")

    @cached_property
    def parts(self) -> dict[tuple[str, str, str, str], None]:
        """What its messages consist of, in their order and without repetition."""
        return {s.rendered: None for s in self.exchange.prompt.segments if s.level == "messages"}

    @cached_property
    def tools(self) -> set[str]:
        """Its tools, independent of how they are written."""
        return {s.canonical for s in self.exchange.prompt.segments if s.level == "tools"}

    def __str__(self) -> str:
        return f"request {self.number} ({self.provider}, {self.exchange.prompt.model or 'unknown model'})"
