"""How many tokens an answer may have, and the sampling settings of each choice."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from longturn.engine import SamplingParams
from longturn.errors import PromptTooLong

COMPLETION_TOKENS = 16
"""OpenAI's default length of a completion."""


def chat_length(wanted: int | None, n_prompt: int, context: int, *, param: str = "messages") -> int:
    """Tokens of a chat answer: what was asked for, but no more than fits. Raises PromptTooLong if none does."""
    room = _room(n_prompt, context, param)
    return room if wanted is None else min(wanted, room)


def completion_length(wanted: int | None, n_prompt: int, context: int) -> int:
    """Tokens of a completion: what was asked for, 16 if nothing. Raises PromptTooLong if that does not fit."""
    room = _room(n_prompt, context, "prompt")
    if wanted is None:
        return min(COMPLETION_TOKENS, room)
    if wanted > room:
        raise PromptTooLong(
            f"The prompt has {n_prompt} tokens and max_tokens is {wanted}, but together they must fit in {context}: "
            f"lower max_tokens to {room} or shorten the prompt.",
            param="max_tokens",
        )
    return wanted


def params_of_choices(sampling: Mapping[str, Any], choices: int) -> list[SamplingParams]:
    """Settings for each choice of a prompt, which differ in their seed. Raises RequestError for a bad value."""
    first = SamplingParams(**sampling)
    if first.seed is None:
        return [first] * choices
    # Flipping low bits, unlike adding, never leaves the range of seeds.
    return [SamplingParams(**{**sampling, "seed": first.seed ^ number}) for number in range(choices)]


def _room(n_prompt: int, context: int, param: str) -> int:
    if n_prompt >= context:
        raise PromptTooLong(
            f"The prompt has {n_prompt} tokens, but prompt and answer must fit in {context}: shorten it.", param=param
        )
    return context - n_prompt
