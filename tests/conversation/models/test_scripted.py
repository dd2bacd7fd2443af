"""The scripted model must be as strict as providers are, or what is tested with it would not be tested."""

from __future__ import annotations

from typing import Any

import pytest

from longturn.conversation.models.contract import ModelRequest, answer_of
from longturn.conversation.models.scripted import ScriptedModel
from longturn.conversation.parts import Text, ToolCall
from longturn.conversation.window import Window
from longturn.errors import ContextOverflow, ProviderError

USER = {"role": "user", "content": "Hello"}
CALL = {
    "role": "assistant",
    "content": "",
    "tool_calls": [{"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}],
}
RESULT = {"role": "tool", "tool_call_id": "c", "content": "done"}


def scripted(context: int = 10_000) -> ScriptedModel:
    return ScriptedModel(lambda request, number: [Text(f"answer {number}")], Window(context, 100))


async def ask(model: ScriptedModel, *messages: dict[str, Any]) -> Any:
    return await answer_of(model, ModelRequest(messages, max_output=100))


async def test_prefixes_are_cached():
    model = scripted()
    first = await ask(model, USER)
    assert first.use.cached_total == 0
    second = await ask(model, USER, {"role": "assistant", "content": "Hi"}, USER)
    assert second.use.cached_total == first.use.logical
    assert second.parts == (Text("answer 1"),)
    other = await ask(model, {"role": "user", "content": "Hallo"}, {"role": "assistant", "content": "Hi"}, USER)
    assert other.use.cached_total == 0


async def test_the_window_is_kept():
    model = scripted(200)
    await ask(model, {"role": "user", "content": "x" * 300})
    with pytest.raises(ContextOverflow, match="maximum context length is 200 tokens"):
        await ask(model, {"role": "user", "content": "x" * 500})


@pytest.mark.parametrize(
    "messages",
    [
        [],
        [{"role": "assistant", "content": "I begin"}],
        [USER, RESULT],
        [USER, CALL],
        [USER, CALL, USER],
        [USER, CALL, RESULT, RESULT],
        [USER, CALL, RESULT, CALL, RESULT],
    ],
)
async def test_broken_conversations_are_refused(messages: list[dict[str, Any]]):
    with pytest.raises(ProviderError):
        await ask(scripted(), *messages)


async def test_calls_are_answered():
    model = ScriptedModel(lambda request, number: [ToolCall("c", "f", "{}")], Window(1000, 100))
    answer = await ask(model, USER)
    assert (answer.finish, answer.use.output > 0) == ("tool_calls", True)
    await ask(model, USER, CALL, RESULT)
