"""System prompts and tools that stand before a conversation and are in no log: only their length can be told."""

from __future__ import annotations

from longturn.lab.trace.form import Blocks
from longturn.lab.trace.text import opaque

SHARED_HEAD = 50_000
"""Tokens of system prompt and tools that sessions may share; what goes beyond is older history."""


def head(session: str, kind: str, n_tokens: int, shared: bool) -> Blocks:
    """What stands before the first entry; nothing for fewer than one token.

    `kind` tells a main conversation from sub-agents; `shared`: begins the same in all sessions, for heads of that kind.
    """
    if not shared:
        return opaque(f"{session} {kind}", n_tokens)
    return Blocks.join(opaque(kind, min(n_tokens, SHARED_HEAD)), opaque(f"{session} {kind}", n_tokens - SHARED_HEAD))


def head_note(shared: bool) -> str:
    """What a reader of agents' logs says about the system prompt and tools, which are not in them."""
    how = f"and the same in all sessions up to {SHARED_HEAD:,} tokens" if shared else "and shared with no other session"
    return (
        "System prompt and tools are not in the file: they are taken to be as long as the first reported prompt is "
        f"longer than the known content, {how}."
    )
