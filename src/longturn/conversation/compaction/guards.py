"""What keeps compaction from being asked for in vain."""

from __future__ import annotations

from collections.abc import Sequence

from longturn.conversation.edits.contract import NeedsSummary
from longturn.conversation.item import Item
from longturn.conversation.window import Window
from longturn.errors import ConfigError, ContextOverflow

_SHARE = 0.1
_LEAST, _MOST = 400, 2_000


def summary_tokens(window: Window) -> int:
    """How long a model's own words in a summary may be, in tokens. With what is added, it has up to twice that."""
    return max(_LEAST, min(_MOST, round(window.usable * _SHARE)))


def check_fixed(items: Sequence[Item], window: Window) -> None:
    """Raise ContextOverflow where system text and tools leave no room for a conversation: no edit helps then."""
    tokens = {kind: sum(item.tokens for item in items if item.kind == kind) for kind in ("system", "tools")}
    if sum(tokens.values()) >= window.usable:
        raise ContextOverflow(
            f"system text (about {tokens['system']:,} tokens) and tools ({tokens['tools']:,}) alone fill the usable "
            f"window of {window.usable:,}: offer fewer tools, shorten the instructions, reserve less output, or use a "
            "larger window"
        )


def check_whole(items: Sequence[Item], need: NeedsSummary) -> None:
    """Raise ConfigError where `need` sums up a call and leaves its result, or the other way round."""
    calls = {item.call: item.message <= need.last for item in items if item.kind == "call"}
    torn = [item.call for item in items if item.kind == "result" and calls[item.call] != (item.message <= need.last)]
    if torn:
        raise ConfigError(
            f"a summary up to message {need.last} would part the call {torn[0]} from its result: end it before the call"
        )


def worthwhile(items: Sequence[Item], need: NeedsSummary, window: Window) -> bool:
    """Whether the summary that `need` asks for would shrink the view enough.

    What counts is what has not been summed up before. So a compaction that has not made enough room is not repeated on
    its own summary, in this process or another, until there is more to sum up than another summary takes.
    """
    stay = {*need.keep, need.opening}
    dropped = sum(
        item.tokens
        for item in items
        if need.first <= item.message <= need.last and not item.fixed and item.part >= 0 and item.message not in stay
    )
    return dropped >= 2 * summary_tokens(window)
