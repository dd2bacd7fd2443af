"""Requests of every provider as ordered segments, with what the provider's prompt cache makes of them. No I/O."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longturn.dialects.segments import anthropic, gemini, openai_chat, responses
from longturn.dialects.segments.form import LEVELS, Level, Mark, Prompt, Segment, Setting

__all__ = ["LEVELS", "PROVIDERS", "Level", "Mark", "Prompt", "Segment", "Setting", "parse", "recognised"]

PROVIDERS = {
    "openai": responses.parse,
    "anthropic": anthropic.parse,
    "gemini": gemini.parse,
    "openai-chat": openai_chat.parse,
}
"""Name of the dialect -> its parser."""


def parse(provider: str, body: Mapping[str, Any]) -> Prompt:
    """The request `body` as a prompt. Pieces of a wrong type are passed over: this explains, and does not validate.

    Raises KeyError where `provider` is none of PROVIDERS.
    """
    return PROVIDERS[provider](body)


def recognised(body: Mapping[str, Any]) -> str:
    """The dialect that a request body is most likely written in."""
    if "contents" in body:
        return "gemini"
    if "input" in body or "instructions" in body:
        return "openai"
    claude = str(body.get("model")).startswith(("claude", "anthropic"))
    if claude or "system" in body or "cache_control" in body or "anthropic_version" in body:
        return "anthropic"
    return "openai-chat"
