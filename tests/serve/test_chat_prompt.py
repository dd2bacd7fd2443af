"""Messages and tools become a prompt, and no tool is dropped on the way."""

from __future__ import annotations

import pytest

from longturn.dialects.openai import parse_chat
from longturn.errors import RequestError
from longturn.serve.chat_prompt import chat_text
from tests.tiny_model import CHAT_TEMPLATE, build_tiny_tokenizer

WEATHER = {
    "type": "function",
    "function": {"name": "weather", "description": "The weather in {a city}.", "parameters": {"type": "object"}},
}
CALLED = [
    {"role": "user", "content": "Rain in Oslo and Rome?"},
    {
        "role": "assistant",
        "content": "Let me see.",
        "tool_calls": [
            {"id": "1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Oslo"}'}},
            {"id": "2", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Rome"}'}},
        ],
    },
    {"role": "tool", "tool_call_id": "1", "content": "yes"},
    {"role": "tool", "tool_call_id": "2", "content": "no"},
    {"role": "user", "content": "Thanks"},
]


def prompt(messages: list[dict], template: str | None = None, **more: object) -> str:
    tokenizer = build_tiny_tokenizer()
    if template is not None:
        tokenizer.chat_template = template
    return chat_text(tokenizer, parse_chat({"model": "m", "messages": messages, **more}).talk())


def test_the_template_writes_the_messages():
    assert prompt([{"role": "developer", "content": "Be brief."}, {"role": "user", "content": "Hi <|im_end|>"}]) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi <|im_end|><|im_end|>\n<|im_start|>assistant\n"
    )


def test_tools_go_into_a_system_message_where_the_template_knows_none():
    text = prompt([{"role": "user", "content": "Hi"}], tools=[WEATHER])
    assert text.startswith("<|im_start|>system\n# Tools\n")
    assert '"name": "weather", "description": "The weather in {a city}."' in text
    assert '{"name": <function-name>, "arguments": <args-json-object>}' in text
    assert text.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")


def test_tools_are_added_to_the_clients_own_system_message():
    text = prompt([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}], tools=[WEATHER])
    assert text.startswith("<|im_start|>system\nBe brief.\n\n# Tools\n")
    assert text.count("<|im_start|>system") == 1


def test_without_tools_nothing_is_said_of_them():
    assert "# Tools" not in prompt([{"role": "user", "content": "Hi"}])


@pytest.mark.parametrize("template", [CHAT_TEMPLATE, "{{ tools | tojson }}{{ messages | tojson }}"])
def test_forbidding_tools_leaves_the_prompt_as_it_was(template: str):
    hello = [{"role": "user", "content": "Hi"}]
    offered = prompt(hello, template, tools=[WEATHER])
    assert "weather" in offered
    assert prompt(hello, template, tools=[WEATHER], tool_choice="none") == offered


def test_earlier_calls_and_results_stay_in_the_conversation():
    text = prompt(CALLED)
    assert (
        '<|im_start|>assistant\nLet me see.\n<tool_call>\n{"name": "weather", "arguments": {"city": "Oslo"}}\n'
        '</tool_call>\n<tool_call>\n{"name": "weather", "arguments": {"city": "Rome"}}\n</tool_call><|im_end|>'
    ) in text
    assert (
        "<|im_start|>user\n<tool_response>\nyes\n</tool_response>\n<tool_response>\nno\n</tool_response><|im_end|>\n"
        "<|im_start|>user\nThanks<|im_end|>"
    ) in text


def test_a_template_that_knows_tools_gets_them_as_they_are():
    template = "{% for t in tools or [] %}[{{ t.function.name }}]{% endfor %}{{ messages[1].tool_calls[0].id }}"
    assert prompt(CALLED, template, tools=[WEATHER]) == "[weather]1"


def test_a_template_may_take_arguments_and_refuse_messages():
    hello = [{"role": "user", "content": "Hi"}]
    assert prompt(hello, "{{ mood }}", chat_template_kwargs={"mood": "calm"}) == "calm"
    with pytest.raises(RequestError, match="Roles must alternate"):
        prompt(hello, "{{ raise_exception('Roles must alternate') }}")
    with pytest.raises(RequestError, match="chat_template cannot be set"):
        prompt(hello, chat_template_kwargs={"chat_template": "mine"})


def test_a_model_without_a_template_says_what_to_use():
    tokenizer = build_tiny_tokenizer()
    tokenizer.chat_template = None
    with pytest.raises(RequestError, match="/v1/completions"):
        chat_text(tokenizer, parse_chat({"model": "m", "messages": [{"role": "user", "content": "Hi"}]}).talk())
