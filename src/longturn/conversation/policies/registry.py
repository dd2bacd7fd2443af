"""Every context policy by name. A new one is a file beside this and a line in `CONTEXT_POLICIES`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from longturn.cache.policies.options import read, split
from longturn.conversation.edits.contract import ContextPolicy
from longturn.conversation.policies.clear_tools import ClearToolsOptions, ClearToolsPolicy
from longturn.conversation.policies.codex import CodexOptions, CodexPolicy
from longturn.conversation.policies.longturn import LongturnOptions, LongturnPolicy
from longturn.conversation.policies.none import NoContextPolicy
from longturn.conversation.policies.opencode import OpencodeOptions, OpencodePolicy
from longturn.conversation.policies.slide import SlideOptions, SlidePolicy
from longturn.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Choice:
    """options: a policy's dataclass; build: makes the policy from it; models: what it is, in a line."""

    options: type[Any]
    build: Callable[[Any], ContextPolicy]
    models: str


@dataclass(frozen=True, slots=True)
class NoChoices:
    """A policy without options."""


CONTEXT_POLICIES: dict[str, Choice] = {
    "clear-tools": Choice(ClearToolsOptions, ClearToolsPolicy, "Anthropic's context editing: old tool results go"),
    "codex": Choice(CodexOptions, CodexPolicy, "Codex CLI: the user's words and a summary, nothing else"),
    "longturn": Choice(LongturnOptions, LongturnPolicy, "small at birth, edits that pay, a summary as the last resort"),
    "opencode": Choice(OpencodeOptions, OpencodePolicy, "opencode 1.18: a summary and a short tail, after the fact"),
    "slide": Choice(SlideOptions, SlidePolicy, "the older half goes when the window is full"),
    "none": Choice(NoChoices, lambda options: NoContextPolicy(), "everything is sent, for as long as it fits"),
}


def context_policy(text: str) -> ContextPolicy:
    """The policy that `NAME` or `NAME:option=value,...` says. Raises ConfigError, naming what would do."""
    name, given = split(text)
    if name not in CONTEXT_POLICIES:
        raise ConfigError(f"no context policy is called {name!r}: choose one of {', '.join(CONTEXT_POLICIES)}")
    choice = CONTEXT_POLICIES[name]
    return choice.build(read(choice.options, given, name))
