"""Usage that was counted twice on its way: cached tokens are inside the prompt's count, or beside it, never both."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longturn.explain.exchange import Exchange
from longturn.explain.finding import Finding
from longturn.explain.pair import Pair

GROWTH = 1.4
"""How many times as many tokens as foreseen make a count doubtful."""
NEAR = 1.2
"""Up to how many times as many are as foreseen."""
EXCESS = 0.3
"""Share of the prompt by which Anthropic's uncached tokens may exceed what lies behind the last mark."""


def usage_double_count(pair: Pair) -> Finding | None:
    """The counts of one of the two do not agree with each other, or not with its marks."""
    for which, exchange in (("later", pair.b), ("earlier", pair.a)):
        if exchange.usage and (contradiction := _contradiction(exchange)):
            return Finding(f"usage of the {which} request: {contradiction}", 0.85, kept=len(pair.old))
    if grown := _grown(pair):
        return Finding(grown, 0.7, kept=len(pair.old))
    return None


def _grown(pair: Pair) -> str:
    """Whether Anthropic's counts grow as if the later input included the cached tokens."""
    a, b = pair.a.use, pair.b.use
    if pair.b.prompt.provider != "anthropic" or a is None or b is None or not a.logical or not pair.a.ends[-1:]:
        return ""
    expected = a.logical * pair.b.ends[-1] / (pair.a.ends[-1] or 1)
    plain = b.logical - b.cached_total - b.written
    beside = b.cached_total + b.written
    if plain < beside or not beside or b.logical < GROWTH * expected or not 1 / NEAR < plain / expected < NEAR:
        return ""
    return (
        f"the prompt should have about {expected:,.0f} tokens: that is the later input of {plain:,} alone, without the "
        f"{beside:,} cached ones"
    )


def _contradiction(exchange: Exchange) -> str:
    usage = exchange.usage
    if "promptTokenCount" in usage:
        return _gemini(usage)
    if exchange.prompt.provider == "anthropic":
        return _anthropic(exchange)
    return _openai(usage)


def _gemini(usage: Mapping[str, Any]) -> str:
    prompt, cached = _count(usage, "promptTokenCount"), _count(usage, "cachedContentTokenCount")
    answer, thoughts = _count(usage, "candidatesTokenCount"), _count(usage, "thoughtsTokenCount")
    total, tools = _count(usage, "totalTokenCount"), _count(usage, "toolUsePromptTokenCount")
    if cached > prompt:
        return f"{cached:,} cached tokens are not inside the {prompt:,} of the prompt"
    if total and cached and total == prompt + cached + answer + thoughts + tools:
        return f"the total of {total:,} adds {cached:,} cached tokens to a prompt that includes them"
    if total and thoughts and total == prompt + answer + tools:
        return f"the total of {total:,} has {thoughts:,} thoughts inside the answer, which excludes them"
    return ""


def _openai(usage: Mapping[str, Any]) -> str:
    prompt = _count(usage, "prompt_tokens") or _count(usage, "input_tokens")
    answer = _count(usage, "completion_tokens") or _count(usage, "output_tokens")
    given = usage.get("prompt_tokens_details") or usage.get("input_tokens_details") or {}
    made = usage.get("completion_tokens_details") or usage.get("output_tokens_details") or {}
    beside = _count(usage, "cache_read_input_tokens")
    cached = _count(given, "cached_tokens") or beside
    written = _count(given, "cache_write_tokens") or _count(usage, "cache_creation_input_tokens")
    reasoning, total = _count(made, "reasoning_tokens"), _count(usage, "total_tokens")
    if cached + written > prompt:
        return f"{cached:,} cached and {written:,} written tokens are not inside the {prompt:,} of the prompt"
    if reasoning > answer:
        return f"{reasoning:,} tokens of reasoning are not inside the {answer:,} of the answer"
    for name, extra in (("cached", cached), ("written", written), ("cached and written", cached + written)):
        if extra and total == prompt + answer + extra:
            return f"the total of {total:,} adds {extra:,} {name} tokens to a prompt that includes them"
    if reasoning and total == prompt + answer + reasoning:
        return f"the total of {total:,} adds {reasoning:,} tokens of reasoning to an answer that includes them"
    return ""


def _anthropic(exchange: Exchange) -> str:
    usage = exchange.usage
    plain, read = _count(usage, "input_tokens"), _count(usage, "cache_read_input_tokens")
    written, total = _count(usage, "cache_creation_input_tokens"), _count(usage, "total_tokens")
    if "prompt_tokens" in usage and "input_tokens" not in usage and (read or written):
        return f"{read + written:,} cached tokens in Anthropic's fields beside prompt_tokens, which is not one of them"
    if "prompt_tokens" in usage and (read or written) and _count(usage, "prompt_tokens") == plain:
        return (
            f"prompt and input are both {plain:,} tokens, so one of them counts {read + written:,} cached ones wrongly"
        )
    split = usage.get("cache_creation")
    if split and written and (parts := sum(v for v in split.values() if isinstance(v, int))) > written:
        return f"writes of {parts:,} tokens by time to live are more than the {written:,} that were written"
    if not read + written or plain < read + written:
        return ""
    if total and total == plain + _count(usage, "output_tokens"):
        return f"the total of {total:,} has {read + written:,} cached tokens inside an input that excludes them"
    weights = exchange.ends
    if not exchange.prompt.marks or not weights or not weights[-1]:
        return ""
    behind = 1 - weights[exchange.marked - 1] / weights[-1]
    if plain / (plain + read + written) > behind + EXCESS:
        return (
            f"{plain:,} tokens of input besides {read + written:,} cached ones, yet only {behind:.0%} of the prompt "
            "lies behind the last mark: the input seems to include the cached tokens"
        )
    return ""


def _count(usage: Mapping[str, Any], name: str) -> int:
    value = usage.get(name)
    return value if isinstance(value, int) else 0
