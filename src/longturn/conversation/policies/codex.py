"""`codex`: the local compaction of OpenAI's Codex CLI.

Rule from openai/codex, codex-rs/core/src/compact.rs: when the limit is reached everything is summed up, and what is
sent from then on is the initial context, the newest user messages verbatim up to 20,000 tokens, and the summary. No
answer and no tool result is kept. The original cuts the user message that no longer fits; here it is left out. The
limit is `model_auto_compact_token_limit`, by default nine tenths of the window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from longturn.cache.policies.options import tokens
from longturn.conversation.edits.contract import Decision, Edit, NeedsSummary
from longturn.conversation.item import Item
from longturn.conversation.policies.steps import steps
from longturn.conversation.window import Window


@dataclass(frozen=True, slots=True)
class CodexOptions:
    """limit None: nine tenths of the window, and never more than is usable."""

    limit: int | None = tokens(None, "tokens at which it compacts", least=1)
    user_messages: int = tokens(20_000, "tokens of user messages that are kept verbatim", least=0)


class CodexPolicy:
    """Keeps the user's words and a summary, nothing else."""

    name = "codex"

    def __init__(self, options: CodexOptions | None = None) -> None:
        self.options = options or CodexOptions()

    def born(self, items: Sequence[Item], new: Sequence[Item], window: Window) -> Sequence[Edit]:
        return ()

    def due(
        self, items: Sequence[Item], expected: int, reported: int | None, window: Window, cold: bool = False
    ) -> Decision:
        limit = self.options.limit or min(window.context * 9 // 10, window.usable)
        if expected < limit:
            return Decision()
        all_steps = steps(items)
        # A user message that has no answer yet is what comes next, not history.
        pending = len(all_steps) > 1 and all_steps[-1].user
        old = all_steps[:-1] if pending else all_steps
        if not any(not step.user and not step.summary for step in old):
            return Decision()
        left, keep = self.options.user_messages, []
        for step in reversed(old):
            if step.user:
                left -= step.tokens
                if left < 0:
                    break
                keep.append(step.message)
        last = max(step.last for step in old)
        need = NeedsSummary(
            first=min(step.message for step in old),
            last=last,
            tail=all_steps[-1].message if pending else last + 1,
            reason=f"{expected:,} tokens reach the limit of {limit:,}",
            keep=tuple(sorted(keep)),
        )
        return Decision(summary=need, reason=need.reason)
