"""A request of OpenAI's two dialects as a prompt: its tokens, its segments, and where those end that matter."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from longturn.cache import Tokens
from longturn.dialects import segments
from longturn.dialects.openai import ChatRequest
from longturn.dialects.openai_caching import Caching
from longturn.dialects.responses import ResponsesRequest
from longturn.dialects.segments import Prompt
from longturn.dialects.talk import Talk
from longturn.serve.caching.boundaries import measured
from longturn.serve.caching.openai import Boundary, OpenAICache, Plan, checked
from longturn.serve.chat_prompt import chat_text
from longturn.serve.front import Front


@dataclass(frozen=True)
class Measured:
    """tokens: int32 [n]; ends: boundary of the provider's cache -> tokens of the prefix that ends there."""

    tokens: Tokens
    prompt: Prompt
    ends: Mapping[Boundary, int] = field(default_factory=dict)

    def plan(self, cache: OpenAICache, request: ChatRequest | ResponsesRequest, salt: str) -> Plan:
        """What becomes of it in the provider's cache. salt: the client's."""
        scope, retention = f"{salt}/{request.cache_salt}", request.prompt_cache_retention
        return cache.plan(self.prompt, self.tokens, self.ends, scope=scope, retention=retention)


def measure(
    front: Front,
    provider: str,
    body: Mapping[str, Any],
    request: Caching,
    talk: Callable[[Mapping[str, Any]], Talk],
    param: str,
) -> Measured:
    """The prompt of a request. talk: a body as a conversation; param: the field to blame if it is too long.

    Raises RequestError for caching that the served model does not know.
    """
    prompt = segments.parse(provider, body)
    limits = checked(prompt, request.prompt_cache_options)
    tokenizer = front.service.tokenizer
    if limits:
        tokens, ends = measured(front.encoding, tokenizer, body, prompt, [limit.index for limit in limits], talk)
        return Measured(tokens, prompt, {limit: ends[limit.index] for limit in limits if limit.index in ends})
    # The template has written all special tokens itself.
    tokens = front.encoding.text(chat_text(tokenizer, talk(body)), param=param, add_special_tokens=False)
    return Measured(tokens, prompt)
