"""Answers of Gemini's API as JSON objects. A chunk of a stream has the same form as a whole answer."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from longturn.dialects.openai_logprobs import LEAST, TokenLogprob
from longturn.dialects.tool_calls import ToolCall

Json = dict[str, Any]

FINISH_REASONS = {"stop": "STOP", "length": "MAX_TOKENS"}


def part(said: str | ToolCall) -> Json:
    """A piece of an answer: a text, or a function call."""
    if isinstance(said, str):
        return {"text": said}
    return {"functionCall": {"id": said.id, "name": said.name, "args": json.loads(said.arguments)}}


def candidate(
    index: int, parts: Sequence[Json], finish_reason: str | None = None, logprobs: Sequence[TokenLogprob] = ()
) -> Json:
    """One answer, or what is new of it; finish_reason: the engine's, None where it goes on."""
    found: Json = {"content": {"role": "model", "parts": list(parts)}, "index": index}
    if finish_reason is not None:
        found["finishReason"] = FINISH_REASONS.get(finish_reason, "OTHER")
    if logprobs:
        found["avgLogprobs"] = sum(max(entry.logprob, LEAST) for entry in logprobs) / len(logprobs)
        found["logprobsResult"] = {
            "chosenCandidates": [_token(entry.token, entry.logprob) for entry in logprobs],
            "topCandidates": [{"candidates": [_token(*top) for top in entry.top]} for entry in logprobs],
        }
    return found


def answer(id: str, model: str, candidates: Sequence[Json], usage: Json) -> Json:
    """A whole answer or a chunk of one; `candidates` come from `candidate`."""
    return {"candidates": list(candidates), "usageMetadata": usage, "modelVersion": model, "responseId": id}


def counted(tokens: int, cached: int) -> Json:
    """How many tokens a prompt has, and how many of them a cached content holds."""
    return {
        "totalTokens": tokens,
        "cachedContentTokenCount": cached,
        "promptTokensDetails": [{"modality": "TEXT", "tokenCount": tokens}],
    }


def model_object(id: str, context: int) -> Json:
    """One served model with its context in tokens, which prompt and answer share."""
    return {
        "name": f"models/{id}",
        "version": "001",
        "displayName": id,
        "inputTokenLimit": context,
        "outputTokenLimit": context,
        "supportedGenerationMethods": ["generateContent", "countTokens", "createCachedContent"],
    }


def cached_content(
    name: str,
    model: str,
    tokens: int,
    *,
    created: datetime,
    updated: datetime,
    expires: datetime,
    display_name: str | None = None,
) -> Json:
    """A cached content, whose contents are never shown; times in UTC."""
    found: Json = {
        "name": name,
        "model": model,
        "createTime": _time(created),
        "updateTime": _time(updated),
        "expireTime": _time(expires),
        "usageMetadata": {"totalTokenCount": tokens},
    }
    return found if display_name is None else {**found, "displayName": display_name}


def _token(text: str, logprob: float) -> Json:
    return {"token": text, "logProbability": max(logprob, LEAST)}


def _time(moment: datetime) -> str:
    return moment.isoformat().replace("+00:00", "Z")
