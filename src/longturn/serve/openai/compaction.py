"""Compaction of a conversation of /v1/responses: a summary by the model itself, sealed into one item.

The summary is asked for at the end of the conversation as it is, so that its prompt is a continuation of what the cache
already holds.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fastapi import Request

from longturn.dialects import responses
from longturn.engine import SamplingParams
from longturn.errors import RequestError
from longturn.serve.anthropic.compaction import INSTRUCTIONS, SUMMARY_TOKENS
from longturn.serve.bridge import Answers
from longturn.serve.caching.openai import OpenAICache
from longturn.serve.front import Front
from longturn.serve.limits import chat_length
from longturn.serve.openai.prompt import Prompted, prompted
from longturn.serve.openai.stored import StoredResponses
from longturn.serve.respond import unless_gone

Json = dict[str, Any]

ASK = {"role": "user", "content": INSTRUCTIONS}
LEAST_TOKENS = 256
"""As long as this a summary may be, however short the conversation is."""
SETTINGS = ("model", "instructions", "tools", "chat_template_kwargs")
"""What shapes the beginning of the prompt, and so must be as it was."""
CACHING = ("prompt_cache_key", "prompt_cache_options", "prompt_cache_retention", "cache_salt")


@dataclass(frozen=True)
class Summary:
    """item: the summary as an item of the conversation; usage: what it took."""

    item: Json
    usage: Json


def due(prompt: Prompted) -> bool:
    """Whether the request wants its conversation compacted first: it is longer than that, and something can go."""
    thresholds = [edit.compact_threshold for edit in prompt.request.context_management or ()]
    long = any(threshold is not None and len(prompt.tokens) > threshold for threshold in thresholds)
    return long and responses.compactable(prompt.request.input)


def asking(front: Front, stored: StoredResponses, owner: str, body: Mapping[str, Any]) -> Prompted:
    """The prompt that asks for a summary of the conversation of `body`. Raises as `prompted` does."""
    if not body.get("input") and not body.get("previous_response_id"):
        raise RequestError("input is missing: send the conversation that shall be compacted.", param="input")
    kept = {name: body[name] for name in (*SETTINGS, *CACHING, "previous_response_id") if name in body}
    body = stored.resolved(body, owner)
    # Whatever is wrong with the conversation itself is said of it as it was sent.
    responses.parse(body)
    return prompted(front, stored, owner, {**kept, "input": [*responses.listed(body.get("input") or []), ASK]})


async def summarised(http: Request, front: Front, cache: OpenAICache, prompt: Prompted, owner: str) -> Summary:
    """Let the model write the summary. Raises RequestError where it writes none."""
    request, id = prompt.request, responses.new_id("compaction")
    plan = prompt.measured.plan(cache, request, owner)
    room = chat_length(None, len(prompt.tokens), front.service.model.context, param="input")
    # A summary that is longer than what it stands for would be no gain.
    params = SamplingParams(max_tokens=min(room, SUMMARY_TOKENS, max(LEAST_TOKENS, len(prompt.tokens))))
    salt = owner if request.cache_salt is None else f"{owner}/{request.cache_salt}"
    answers = Answers(front.service, front.metrics.inter_token.observe)

    async def read() -> str:
        text = ""
        async for index, output in answers:
            plan.see(index, output)
            text += output.text
        return text.strip()

    try:
        hints = [replace(hint, salt=salt) for hint in plan.hints]
        answers.ask(id, prompt.tokens, params, salt=salt, hints=hints)
        text = await unless_gone(http, read())
    finally:
        answers.close()
    if not text:
        raise RequestError("The model wrote no summary: send the conversation without compaction.", param="input")
    item = {"id": id, "type": "compaction", "encrypted_content": responses.sealed(text)}
    return Summary(item, responses.usage(answers.lines[0], plan.count))


def compacted(prompt: Prompted, summary: Summary) -> Json:
    """The answer of /v1/responses/compact: what the user has said, and the summary of the rest."""
    *items, _ = prompt.body["input"]
    said = [item for item in items if item["type"] == "message" and item["role"] == "user"]
    return {
        "id": summary.item["id"],
        "object": "response.compaction",
        "created_at": int(time.time()),
        "output": [*said, summary.item],
        "usage": summary.usage,
    }
