"""What requests of OpenAI's two dialects say about the prompt cache, beside the breakpoints in their content."""

from __future__ import annotations

from typing import Literal

from longturn.dialects.openai_messages import Wire

Life = Literal["30m", "12h"]


class CacheOptions(Wire):
    """mode: whether the provider adds a breakpoint of its own; ttl: how long at least what is written is kept.

    comparison_response_id: the answer with which to compare, where a miss shall be explained; prewarm: only write.
    """

    mode: Literal["implicit", "explicit"] | None = None
    ttl: Life | None = None
    comparison_response_id: str | None = None
    prewarm: bool | None = None


class Caching(Wire):
    """The fields of a request."""

    prompt_cache_key: str | None = None
    prompt_cache_retention: Literal["in_memory", "in-memory", "24h"] | None = None
    prompt_cache_options: CacheOptions | None = None
