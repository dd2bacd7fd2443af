"""The model that a chat talks to: a provider's, or one of any server that speaks OpenAI's API."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING

from longturn.errors import ConfigError

if TYPE_CHECKING:
    from longturn.conversation.models.contract import Model
    from longturn.conversation.models.openai_chat import OpenAIChat
    from longturn.conversation.window import Window
    from longturn.engine import EngineOptions


class Api(StrEnum):
    """How a provider is talked to."""

    OPENAI = "openai"
    RESPONSES = "responses"
    ANTHROPIC = "anthropic"
    GEMINI = "gemini"


@dataclass(frozen=True, slots=True)
class ChatWindow:
    """window: what views are made for; known: whether anybody has said so."""

    window: Window
    known: bool


@contextmanager
def opened_model(
    runner: asyncio.Runner, options: EngineOptions, api: Api | None, url: str | None, key: str | None, most: int | None
) -> Iterator[tuple[Model, ChatWindow]]:
    """The model that the options name, and its window, in which `most` tokens are kept for the answer.

    Raises ProviderError where it cannot be reached, and ConfigError for a window without room.
    """
    from longturn.conversation.models.limits import limited

    try:
        from longturn.conversation.models.retrying import Retrying

        model = Retrying(runner.run(_named(options, api, url, key)))
    except ModuleNotFoundError as error:
        advice = "pip install 'longturn[conversation]'"
        raise ConfigError(f"talking to models needs their SDKs ({error}): {advice}") from error
    try:
        told = limited(options.context) if options.context else runner.run(model.window())
        window = told or limited(ASSUMED)
        yield model, ChatWindow(replace(window, output=most) if most else window, told is not None)
    finally:
        runner.run(model.close())


ASSUMED = 131_072
"""The context of a model of which nobody tells one: what most have by now. A smaller one is found out by its error."""


async def _named(options: EngineOptions, api: Api | None, url: str | None, key: str | None) -> Model:
    if api is Api.ANTHROPIC:
        from longturn.conversation.models.anthropic_messages import AnthropicMessages

        return AnthropicMessages(options.model, url, key)
    if api is Api.GEMINI:
        from longturn.conversation.models.gemini import Gemini

        return Gemini(options.model, url, key)
    if api is Api.RESPONSES:
        from longturn.conversation.models.openai_responses import OpenAIResponses

        return OpenAIResponses(options.model, url, key)
    from longturn.conversation.models.openai_chat import OpenAIChat

    model = OpenAIChat(options.served_name or options.model, url, key)
    if api is None:
        await _choose(model)
    return model


async def _choose(model: OpenAIChat) -> None:
    """The model that was named, or the only one that the server has."""
    names = await model.names()
    found = [name for name in names if name == model.name] or names
    if len(found) != 1:
        listed = ", ".join(names) or "no model at all"
        raise ConfigError(f"{model.url} does not serve {model.name!r} but {listed}: choose one with --model")
    model.name = found[0]
