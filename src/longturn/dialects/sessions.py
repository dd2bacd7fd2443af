"""How clients name a conversation: headers of agents, and our own."""

from __future__ import annotations

from collections.abc import Mapping

OURS = "x-longturn-session"
SESSIONS = (
    OURS,
    "x-claude-code-session-id",
    "x-session-id",
    "x-session-affinity",
    "session-id",
    "session_id",
    "thread-id",
    "conversation_id",
    "x-grok-conv-id",
)
"""Headers by which Claude Code, opencode, Codex and xAI's clients name a conversation, after ours."""
LONGEST_NAME = 256


def session_name(headers: Mapping[str, str]) -> str | None:
    """The conversation's name, where the client sends one in a header; the keys of `headers` are in lower case."""
    for name in SESSIONS:
        value = headers.get(name)
        if value and len(value) <= LONGEST_NAME and value.isprintable():
            return value
    return None
