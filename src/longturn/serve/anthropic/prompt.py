"""From the body of an Anthropic request to its prompt: context edited, tokens counted, ends of its segments known."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, Generic, TypeVar

from longturn.cache import Tokens
from longturn.dialects import anthropic, segments
from longturn.dialects.anthropic import CountRequest
from longturn.dialects.anthropic_edits import ClearThinking, ClearToolUses, clear_thinking, clear_tool_uses, tool_uses
from longturn.dialects.segments import Prompt
from longturn.serve.caching.anthropic import check_marks
from longturn.serve.caching.parts import tokens_and_ends
from longturn.serve.chat_prompt import chat_text
from longturn.serve.front import Front

Json = dict[str, Any]
R = TypeVar("R", bound=CountRequest)


@dataclass(frozen=True)
class Prepared(Generic[R]):
    """A request that is ready to be computed.

    body: after its edits; tokens: of the prompt, int32 [n]; ends: for each segment the tokens up to its end, ascending;
    applied: what the edits did, as the answer says it; original: tokens before the edits.
    """

    request: R
    body: Json
    prompt: Prompt
    tokens: Tokens
    ends: Sequence[int]
    original: int
    applied: Sequence[Json] = ()


def prepare(front: Front, body: Mapping[str, Any], parse: Callable[[Json], R]) -> Prepared[R]:
    """Check a request, edit its context as it asks, and write its prompt. Raises RequestError."""
    body = _plain(body)
    request, prompt = parse(body), segments.parse("anthropic", body)
    front.check_model(request.model)
    control = request.cache_control
    check_marks(prompt, (control.ttl or "5m") if control else None)
    ready = _written(front, request, body, prompt)
    original, applied = len(ready.tokens), []
    for edit in request.context_management.edits if request.context_management else ():
        if isinstance(edit, ClearThinking):
            changed, cleared = clear_thinking(ready.body, edit)
            least, count = 0, "cleared_thinking_turns"
        elif isinstance(edit, ClearToolUses) and _due(edit, ready):
            changed, cleared = clear_tool_uses(ready.body, edit)
            least, count = edit.clear_at_least.value if edit.clear_at_least else 0, "cleared_tool_uses"
        else:
            continue
        if cleared:
            shorter = _written(front, parse(changed), changed, segments.parse("anthropic", changed))
            saved = len(ready.tokens) - len(shorter.tokens)
            if saved >= least:
                ready = shorter
                applied.append({"type": edit.type, count: cleared, "cleared_input_tokens": max(saved, 0)})
    return replace(ready, original=original, applied=applied)


def _plain(body: Mapping[str, Any]) -> Json:
    """The body without fields that say nothing."""
    plain = {name: value for name, value in body.items() if value is not None and (name, value) != ("system", "")}
    messages = plain.get("messages")
    if isinstance(messages, list) and messages and isinstance(last := messages[-1], dict) and last.get("content") == "":
        plain["messages"] = [*messages[:-1], {**last, "content": []}]
    return plain


def _due(edit: ClearToolUses, ready: Prepared[R]) -> bool:
    size = len(ready.tokens) if edit.trigger.type == "input_tokens" else len(tool_uses(ready.body))
    return size > edit.trigger.value


def _written(front: Front, request: R, body: Json, prompt: Prompt) -> Prepared[R]:
    """The prompt's tokens and where its segments end. A segment that the template leaves out ends with the one before.

    Without marks nothing of the prompt is cached by the rules, and no end is needed.
    """
    tokenizer = front.service.tokenizer
    if not prompt.marks:
        text = chat_text(tokenizer, anthropic.talk(request))
        tokens = front.encoding.text(text, param="messages", add_special_tokens=False)
        return Prepared(request, body, prompt, tokens, [len(tokens)] * len(prompt.segments), len(tokens))
    parts = anthropic.Parts(request)
    tokens, found = tokens_and_ends(front.encoding, tokenizer, lambda mark: anthropic.talk(request, mark), parts.count)
    ends = list(accumulate((found[part] or 0 for part in parts.of), max))
    return Prepared(request, body, prompt, tokens, ends, len(tokens))
