"""Compaction of an Anthropic conversation on the server: a summary by the model itself takes the place of all messages.

The summary is asked for at the end of the conversation as it is, so that its prompt is a continuation of what the cache
already holds.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fastapi import Request
from starlette.responses import Response

from longturn.dialects import anthropic
from longturn.dialects.anthropic import Cached, MessagesRequest
from longturn.dialects.anthropic_edits import COMPACTION_TOKENS, LEAST_COMPACTION_TOKENS, Compact
from longturn.engine import SamplingParams
from longturn.errors import RequestError
from longturn.serve.anthropic.prompt import Prepared, prepare
from longturn.serve.bridge import Answers
from longturn.serve.caching.anthropic import CachedPrompt
from longturn.serve.caching.entries import Entries
from longturn.serve.front import Front
from longturn.serve.json_response import JsonResponse
from longturn.serve.limits import chat_length
from longturn.serve.respond import unless_gone
from longturn.serve.wires import ANTHROPIC

Json = dict[str, Any]
Parse = Callable[[Json], MessagesRequest]

SUMMARY_TOKENS = 4096
"""The longest summary; of a small context it may take an eighth."""
INSTRUCTIONS = (
    "The conversation is about to be replaced by a summary, after which you go on without its messages. Write that "
    "summary now. State what the user wants and every constraint they gave; what has been done and found, with names, "
    "paths, numbers and identifiers as they are; what is open, and the next step. Write nothing but the summary."
)


@dataclass(frozen=True)
class Compacted:
    """What came of a compaction. summary: None where the model wrote nothing; usage: its entry of `iterations`."""

    summary: str | None
    usage: Json


@dataclass(frozen=True)
class Compaction:
    """A compaction that is due. pauses: whether the answer ends with it; whole: whether its block is sent in one."""

    instructions: str
    pauses: bool
    whole: bool = False


def due(ready: Prepared[MessagesRequest], context: int) -> Compaction | None:
    """The compaction that a request asks for, if its prompt is long enough for it.

    Where the model's context is small, so are the trigger's default and its least value, which are 150,000 and 50,000
    tokens otherwise. Raises RequestError for a trigger below that.
    """
    request = ready.request
    if request.compaction:
        return Compaction(_instructions(request.compaction.instructions), pauses=True, whole=True)
    edits = request.context_management.edits if request.context_management else ()
    for edit in edits:
        if isinstance(edit, Compact):
            least, trigger = min(LEAST_COMPACTION_TOKENS, context // 4), min(COMPACTION_TOKENS, context * 3 // 4)
            if edit.trigger is not None:
                trigger = edit.trigger.value
                if edit.trigger.type != "input_tokens" or trigger < least:
                    raise RequestError(
                        f"compact_20260112: the trigger must be of at least {least} input_tokens.",
                        param="context_management",
                    )
            if request.max_tokens and len(ready.tokens) > trigger:
                return Compaction(_instructions(edit.instructions), edit.pause_after_compaction)
    return None


async def compact(
    http: Request,
    front: Front,
    entries: Entries,
    salt: str,
    ready: Prepared[MessagesRequest],
    compaction: Compaction,
    parse: Parse,
) -> Compacted:
    """Let the model summarise the conversation. Raises PromptTooLong where that leaves no room for the summary."""
    ask = {"role": "user", "content": compaction.instructions}
    body = {**ready.body, "messages": [*ready.body["messages"], ask]}
    asked = await asyncio.to_thread(prepare, front, body, parse)
    n = len(asked.tokens)
    context = front.service.model.context
    length = chat_length(min(SUMMARY_TOKENS, context // 8), n, context)
    params = SamplingParams(max_tokens=length, **{**asked.request.sampling(), "stop": ()})
    cached = CachedPrompt(asked.prompt, asked.tokens, asked.ends, entries, salt)
    answers = Answers(front.service, front.metrics.inter_token.observe)

    async def read() -> Compacted:
        text, counted, output_tokens = "", None, 0
        async for _, output in answers:
            counted = counted or cached.began(sum((output.cached or {}).values()))
            text += output.text
            output_tokens += len(output.token_ids)
        usage = anthropic.prompt_usage(n, counted or Cached(), output_tokens)
        return Compacted(text.strip() or None, anthropic.iteration("compaction", usage))

    try:
        answers.ask(anthropic.new_message_id(), asked.tokens, params, salt=salt)
        return await unless_gone(http, read())
    finally:
        answers.close()


def replaced(body: Json, compacted: Compacted) -> Json:
    """The request with its messages replaced by the compaction block."""
    block = anthropic.compaction_block(compacted.summary)
    return {**body, "messages": [{"role": "assistant", "content": [block]}]}


def paused(request: MessagesRequest, compaction: Compaction, compacted: Compacted, more: Json) -> Response:
    """The answer that ends with the compaction. more: further fields of the answer."""
    usage = {**anthropic.prompt_usage(0, Cached(), 0), "iterations": [compacted.usage]}
    block = anthropic.compaction_block(compacted.summary)
    message = anthropic.message(anthropic.new_message_id(), request.model, [block], usage)
    ending = {"stop_reason": "compaction", "stop_sequence": None}
    if not request.stream:
        return JsonResponse({**message, **ending, **more})
    events = [
        anthropic.message_start({**message, "content": []}),
        *anthropic.compaction(0, compacted.summary, whole=compaction.whole),
        anthropic.message_delta("compaction", None, usage, **more),
        anthropic.message_stop(),
    ]
    return Response(b"".join(map(ANTHROPIC.frame, events)), media_type=ANTHROPIC.media_type)


def _instructions(given: str | None) -> str:
    return given if given and given.strip() else INSTRUCTIONS
