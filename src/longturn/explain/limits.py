"""What the providers' documentation says in numbers: shortest prefix, length of life, how far marks look back."""

from __future__ import annotations

import re

MINIMUMS: dict[str, tuple[tuple[str, int], ...]] = {
    "anthropic": (
        (r"opus-4-[56]|haiku-4-5", 4096),
        (r"opus-4-7|3-5-haiku|haiku-3-5", 2048),
        (r"(opus|haiku|fable|mythos)-5|sonnet-5-[5-9]", 512),
        (r"", 1024),
    ),
    "openai": ((r"", 1024),),
    "openai-chat": ((r"", 1024),),
    "gemini": ((r"2\.5-flash|3-flash", 1024), (r"2\.5-pro|gemini-[34]|3\.\d", 4096), (r"", 1024)),
}
"""Provider -> (pattern in the model's name, tokens of the shortest prefix that is cached), first match counts."""
MARKS = 4
"""Explicit and automatic marks in one request of Anthropic's."""
LOOKBACK = 20
"""Positions that a mark of Anthropic's looks back, itself included; earlier message ends that OpenAI looks up."""
LIVES = {"5m": 300.0, "30m": 1800.0, "1h": 3600.0, "12h": 43200.0, "24h": 86400.0, "in_memory": 3600.0}
"""A time to live as requests spell it -> seconds. in_memory: the most it can be, idle prefixes go after minutes."""
DEFAULT_LIFE = {"anthropic": "5m", "openai": "in_memory", "openai-chat": "in_memory", "gemini": "1h"}
"""Where a request says nothing. Gemini's is that of an explicit cache; of implicit ones no length is promised."""
BY_MARKS_LIFE = "30m"
"""OpenAI's, from gpt-5.6 on."""
KEPT_LONGER = re.compile(r"gpt-(5\.5|5\.4|5\.2|5\.1|4\.1|5(?![.\d]))")
"""Models of OpenAI's that keep a prefix for `24h` unless told otherwise."""


def minimum(provider: str, model: str) -> int:
    """Tokens of the shortest prefix that `provider` caches for `model`."""
    name = model.replace(".", "-") if provider == "anthropic" else model
    return next(tokens for pattern, tokens in MINIMUMS[provider] if re.search(pattern, name))
