"""`clear-tools`: Anthropic's context editing, `clear_tool_uses_20250919`, with its defaults.

Rules from platform.claude.com (context editing) and the types of Anthropic's SDK: beyond `trigger` input tokens all
tool results but those of the newest `keep` calls become a placeholder, oldest first, unless that clears fewer than
`clear_at_least` tokens or the tool is excluded; the calls stay.

The provider does it with every request anew; whether it counts the tokens before or after what it cleared the last
time is not documented. Here it counts after, which clears less often. Not modelled: `clear_tool_inputs`, a trigger in
tool uses, and the clearing of thinking.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from longturn.cache.policies.options import choice, tokens
from longturn.conversation.edits.contract import Decision, Edit
from longturn.conversation.edits.prune import PLACEHOLDER_TOKENS, Prune
from longturn.conversation.item import Item
from longturn.conversation.window import Window


@dataclass(frozen=True, slots=True)
class ClearToolsOptions:
    """As the API names them."""

    trigger: int = tokens(100_000, "input tokens beyond which results are cleared", least=1)
    keep: int = choice(3, "results of the newest calls that stay")
    clear_at_least: int = tokens(0, "tokens that clearing must free, or it is left alone", least=0)
    exclude_tools: str = choice("", "tools whose results stay, with + between them")


class ClearToolsPolicy:
    """Clears old tool results beyond a fixed size."""

    name = "clear-tools"

    def __init__(self, options: ClearToolsOptions | None = None) -> None:
        self.options = options or ClearToolsOptions()
        self._excluded = frozenset(filter(None, self.options.exclude_tools.split("+")))

    def born(self, items: Sequence[Item], new: Sequence[Item], window: Window) -> Sequence[Edit]:
        return ()

    def due(
        self, items: Sequence[Item], expected: int, reported: int | None, window: Window, cold: bool = False
    ) -> Decision:
        if expected <= self.options.trigger:
            return Decision()
        results = [item for item in items if item.kind == "result"]
        old = [
            item
            for item in results[: len(results) - self.options.keep]
            if item.shape != "placeholder" and item.tool not in self._excluded
        ]
        freed = sum(item.tokens - PLACEHOLDER_TOKENS for item in old)
        if not old or freed < self.options.clear_at_least:
            return Decision()
        return Decision(
            (Prune(tuple(item.at for item in old)),),
            reason=f"{expected:,} tokens are beyond {self.options.trigger:,}: {len(old)} results are cleared",
        )
