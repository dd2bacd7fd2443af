"""What is wrong with one request alone: too many marks, marks on nothing, two sources of a prefix, too short a one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from longturn.dialects.segments import Prompt
from longturn.dialects.segments.form import as_list
from longturn.explain import limits
from longturn.explain.exchange import Exchange
from longturn.explain.finding import Detector, Finding
from longturn.explain.pair import Pair
from longturn.explain.verdict import Lint

CONFLICTING = {
    "systemInstruction": "systemInstruction",
    "system_instruction": "systemInstruction",
    "tools": "tools",
    "toolConfig": "toolConfig",
    "tool_config": "toolConfig",
}


def too_many_marks(prompt: Prompt) -> Iterator[Lint]:
    """More marks than Anthropic takes, the automatic one included."""
    if prompt.provider == "anthropic" and len(prompt.marks) > limits.MARKS:
        yield Lint(
            "too_many_marks",
            prompt.marks[limits.MARKS].path,
            f"{len(prompt.marks)} blocks have cache_control: a request may have {limits.MARKS}, the automatic included",
        )


def mark_on_empty_text(exchange: Exchange) -> Iterator[Lint]:
    """Text blocks of Anthropic's without a text. A mark on one is refused, and so is the block itself."""
    if exchange.prompt.provider != "anthropic":
        return
    for path, block in _texts(exchange.body, "$"):
        text = str(block.get("text") or "")
        if block.get("cache_control") and not text.strip():
            yield Lint("mark_on_empty_text", path, "cache_control stands on an empty text")
        elif not text:
            yield Lint("mark_on_empty_text", path, "a text block is empty: Anthropic refuses it, marked or not")


def explicit_cache_conflict(exchange: Exchange) -> Iterator[Lint]:
    """Gemini's cachedContent together with what belongs into that cache."""
    if exchange.prompt.handle is None:
        return
    for key, name in CONFLICTING.items():
        if exchange.body.get(key):
            yield Lint(
                "explicit_cache_conflict", f"$.{key}", f"{name} is given beside cachedContent, which has its own"
            )


def below_minimum(exchange: Exchange) -> Iterator[Lint]:
    """A marked prefix that is too short to be cached."""
    prompt = exchange.prompt
    if prompt.provider == "anthropic" and prompt.marks and exchange.tokens(exchange.marked) < exchange.minimum:
        yield Lint(
            "below_minimum",
            prompt.marks[-1].path,
            f"about {exchange.tokens(exchange.marked):,} tokens up to the last mark: {prompt.model or 'this model'} "
            f"caches from {exchange.minimum:,} on",
        )


def lints(exchange: Exchange) -> tuple[Lint, ...]:
    """All that is wrong with one request alone."""
    return (
        *too_many_marks(exchange.prompt),
        *mark_on_empty_text(exchange),
        *explicit_cache_conflict(exchange),
        *below_minimum(exchange),
    )


def refused(mechanism: str) -> Detector:
    """The detector for a lint that makes the later request fail."""

    def detect(pair: Pair) -> Finding | None:
        found = [lint for lint in lints(pair.b) if lint.mechanism == mechanism]
        return Finding(f"{found[0].message} ({found[0].path})", 0.95) if found else None

    return detect


def _texts(body: Any, path: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Text blocks of a Messages body, also those inside tool results."""
    places = [(f"{path}.system", body.get("system"))]
    for i, message in enumerate(as_list(body.get("messages"))):
        if isinstance(message, dict):
            places.append((f"{path}.messages[{i}].content", message.get("content")))
    while places:
        at, blocks = places.pop(0)
        for j, block in enumerate(blocks if isinstance(blocks, list) else []):
            if isinstance(block, dict) and block.get("type") == "text":
                yield f"{at}[{j}]", block
            elif isinstance(block, dict) and block.get("type") == "tool_result":
                places.append((f"{at}[{j}].content", block.get("content")))
