"""Anthropic's Messages through the official SDK, against the real engine, in both versions of the API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import anthropic
import httpx
import pytest
from anthropic import Anthropic, AsyncAnthropic

from longturn.serve import Keys, create_app, in_background
from tests.serve.fake_service import FakeService

HELLO = [{"role": "user", "content": "Hello there"}]
ASK = {"model": "tiny", "max_tokens": 12, "messages": HELLO}
OLD = {"anthropic-version": "2023-06-01"}
TOOL = {
    "name": "weather",
    "description": "Tells the weather",
    "input_schema": {"type": "object", "properties": {"wet": {"type": "boolean"}}, "required": ["wet"]},
}


@pytest.fixture(params=["2023-06-01", "2026-10-21"])
def claude(url: str, request: pytest.FixtureRequest) -> Iterator[Anthropic]:
    headers = {"anthropic-version": request.param}
    with Anthropic(base_url=url, api_key="none", max_retries=0, default_headers=headers) as client:
        yield client


def test_an_answer_has_what_the_sdk_expects(claude: Anthropic):
    answer = claude.messages.create(**ASK, system="Be brief.")
    assert (answer.role, answer.type, answer.stop_sequence) == ("assistant", "message", None)
    # Only the older version lets a test choose the likeliest answer.
    assert answer.stop_reason in ("max_tokens", "end_turn")
    assert all(block.type == "text" and block.text for block in answer.content)
    assert answer.id.startswith("msg_")
    assert answer._request_id.startswith("req_")
    assert 0 < answer.usage.output_tokens <= 12
    assert answer.usage.cache_read_input_tokens == answer.usage.cache_creation.ephemeral_1h_input_tokens == 0
    assert answer.usage.longturn["logical"] == answer.usage.input_tokens


def test_an_answer_and_its_stream_say_the_same(claude: Anthropic):
    ask = {**ASK, "extra_headers": OLD, "extra_body": {"temperature": 0}}
    whole = claude.messages.create(**ask)
    with claude.messages.stream(**ask) as stream:
        assert "".join(stream.text_stream) == whole.content[0].text
        last = stream.get_final_message()
    assert last.content[0].text == whole.content[0].text
    assert (last.stop_reason, last.usage.output_tokens) == (whole.stop_reason, 12)
    assert last.usage.input_tokens == whole.usage.input_tokens


def test_the_events_of_a_stream_come_in_order(http: httpx.Client):
    text = http.post("/v1/messages", json={**ASK, "stream": True, "temperature": 0}).text
    frames = [frame.split("\n") for frame in text.strip().split("\n\n")]
    events = [json.loads(data.removeprefix("data: ")) for _, data in frames]
    assert [name.removeprefix("event: ") for name, _ in frames] == [event["type"] for event in events]
    kinds = [event["type"] for event in events]
    assert kinds[:2] == ["message_start", "content_block_start"]
    assert kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}
    assert events[0]["message"]["content"] == []
    assert events[0]["message"]["stop_reason"] is None
    assert events[-2]["delta"] == {"stop_reason": "max_tokens", "stop_sequence": None}


async def test_ten_clients_at_once(url: str):
    async with AsyncAnthropic(base_url=url, api_key="none", max_retries=0, default_headers=OLD) as client:

        async def ask(number: int) -> tuple[str, str]:
            messages = [{"role": "user", "content": f"number {number}"}]
            settings = {"model": "tiny", "max_tokens": 8, "messages": messages, "extra_body": {"temperature": 0}}
            whole = await client.messages.create(**settings)
            async with client.messages.stream(**settings) as stream:
                return whole.content[0].text, await stream.get_final_text()

        answers = await asyncio.gather(*map(ask, range(10)))
    assert all(whole == streamed for whole, streamed in answers)
    assert len({whole for whole, _ in answers}) == 10


def test_a_stop_sequence_ends_the_answer_and_is_named(claude: Anthropic):
    ask = {**ASK, "extra_headers": OLD, "extra_body": {"temperature": 0}, "max_tokens": 24}
    text = claude.messages.create(**ask).content[0].text
    stop = next(text[at : at + 2] for at in range(6, 20) if text[at : at + 2].strip())
    answer = claude.messages.create(**ask, stop_sequences=[stop])
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", stop)
    assert "".join(block.text for block in answer.content) == text[: text.index(stop)]


def test_strings_and_blocks_are_the_same_prompt(claude: Anthropic):
    def count(**more: object) -> int:
        return claude.messages.count_tokens(model="tiny", **more).input_tokens

    block = [{"type": "text", "text": "Hello there"}]
    assert count(messages=HELLO, system="Be brief.") == count(
        messages=[{"role": "user", "content": block}], system=[{"type": "text", "text": "Be brief."}]
    )
    assert count(messages=HELLO) == claude.messages.create(**ASK).usage.input_tokens


def test_an_answer_goes_on_where_it_was_begun(claude: Anthropic):
    begun = [*HELLO, {"role": "assistant", "content": "Well, "[:-1]}]
    without = claude.messages.count_tokens(model="tiny", messages=HELLO).input_tokens
    assert claude.messages.count_tokens(model="tiny", messages=begun).input_tokens == without + len("Well,") - 1
    assert claude.messages.create(**{**ASK, "messages": begun}).usage.output_tokens


def test_a_forced_call_fits_its_tool(claude: Anthropic):
    # Otherwise the model may make up properties until there is no room left.
    bounded = {**TOOL, "input_schema": {**TOOL["input_schema"], "additionalProperties": False}}
    for choice in ({"type": "any", "disable_parallel_tool_use": True}, {"type": "tool", "name": "weather"}):
        answer = claude.messages.create(**{**ASK, "max_tokens": 1500}, tools=[bounded], tool_choice=choice)
        assert answer.stop_reason == "tool_use"
        call = answer.content[0]
        assert (call.type, call.name, type(call.input["wet"])) == ("tool_use", "weather", bool)


def test_an_answer_in_a_format_fits_it(claude: Anthropic):
    schema = {"type": "object", "properties": {"n": {"enum": [1, 2]}}, "required": ["n"], "additionalProperties": False}
    form = {"format": {"type": "json_schema", "schema": schema}}
    answer = claude.messages.create(**{**ASK, "max_tokens": 200}, output_config=form)
    assert json.loads(answer.content[0].text)["n"] in (1, 2)
    assert answer.stop_reason == "end_turn"


def test_a_prompt_is_warmed_without_an_answer(claude: Anthropic):
    answer = claude.messages.create(**{**ASK, "max_tokens": 0})
    assert (answer.content, answer.stop_reason, answer.usage.output_tokens) == ([], "max_tokens", 0)
    for more in (
        {"stream": True},
        {"thinking": {"type": "enabled", "budget_tokens": 2000}},
        {"output_config": {"format": {"type": "json_schema", "schema": {}}}},
        {"tools": [TOOL], "tool_choice": {"type": "any"}},
    ):
        with pytest.raises(anthropic.BadRequestError, match="max_tokens 0 cannot"):
            claude.messages.create(**{**ASK, "max_tokens": 0}, **more)


def test_an_answer_that_the_context_cuts_says_so(claude: Anthropic):
    messages = [{"role": "user", "content": "x" * 2000}]
    answer = claude.messages.create(model="tiny", max_tokens=2000, messages=messages)
    if answer.stop_reason != "end_turn":
        assert answer.stop_reason == "model_context_window_exceeded"
    assert answer.usage.input_tokens + answer.usage.output_tokens <= 2048


def test_models_are_listed_and_retrieved(claude: Anthropic):
    page = claude.models.list()
    assert [(model.id, model.type, model.lifecycle) for model in page.data] == [("tiny", "model", "active")]
    model = claude.models.retrieve("tiny")
    assert (model.max_input_tokens, model.created_at.tzinfo is not None) == (2048, True)
    with pytest.raises(anthropic.NotFoundError):
        claude.models.retrieve("claude-x")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "4"}, "max_tokens"),
        ({"messages": []}, "messages"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "role"),
        ({"messages": [{"role": "user", "content": ""}]}, "empty"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": ""}]}]}, "non-empty"),
        ({"messages": [*HELLO, {"role": "assistant", "content": "So "}]}, "white space"),
        ({"messages": [{"role": "user", "content": [{"type": "image", "source": {}}]}]}, "images are not supported"),
        (
            {"messages": [{"role": "user", "content": [{"type": "document", "source": {"type": "base64"}}]}]},
            "documents",
        ),
        ({"messages": [{"role": "user", "content": [{"type": "novelty"}]}]}, "'novelty' are not supported"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a"}]}]}, "no tool_use"),
        ({"messages": [{"role": "user", "content": [3]}]}, "content"),
        ({"messages": [{"role": "user", "content": "x" * 60000}]}, "prompt is too long"),
        ({"stop_sequences": [" "]}, "non-whitespace"),
        ({"tool_choice": {"type": "any"}}, "needs tools"),
        ({"tools": [TOOL], "tool_choice": {"type": "tool", "name": "x"}}, "not among"),
        ({"tools": [TOOL, TOOL]}, "unique"),
        ({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "not offered"),
        ({"container": "c"}, "container is not supported"),
        ({"mcp_servers": [{}]}, "mcp_servers is not supported"),
        ({"thinking": {"type": "enabled", "budget_tokens": 5}}, "budget_tokens"),
    ],
)
def test_a_bad_request_is_refused(http: httpx.Client, change: dict, message: str):
    answer = http.post("/v1/messages", json={**ASK, **change}, headers=OLD)
    body = answer.json()
    assert (answer.status_code, body["type"], body["error"]["type"]) == (400, "error", "invalid_request_error")
    assert message in body["error"]["message"]
    assert body["request_id"] == answer.headers["request-id"]


def test_the_newer_version_is_stricter(http: httpx.Client):
    def ask(version: str, **more: object) -> int:
        headers = {"anthropic-version": version}
        return http.post("/v1/messages", json={**ASK, **more}, headers=headers).status_code

    document = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "x"}}
    cited = {"type": "text", "text": "x", "citations": [{"type": "char_location"}]}
    for more in (
        {"temperature": 0.5},
        {"top_k": 3},
        {"messages": [*HELLO, {"role": "assistant", "content": [document]}, *HELLO]},
        {"messages": [{"role": "user", "content": [cited]}]},
    ):
        assert (ask("2023-06-01", **more), ask("2026-10-21", **more)) == (200, 400)
    assert ask("1999-01-01") == 400


def test_the_sdk_raises_its_own_classes(url: str):
    with Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        with pytest.raises(anthropic.NotFoundError, match="not served here") as caught:
            client.messages.create(**{**ASK, "model": "claude-x"})
        assert caught.value.request_id.startswith("req_")
        with pytest.raises(anthropic.BadRequestError, match="shorten"):
            client.messages.create(**{**ASK, "messages": [{"role": "user", "content": "x" * 3000}]}, stream=True)


def test_both_ways_to_send_a_key_are_taken(url: str, service):
    with in_background(create_app(service, Keys(["alpha"])), service) as closed:
        for more in (
            {"api_key": "alpha"},
            {"auth_token": "alpha"},
            {"api_key": "b", "default_headers": {"X-Api-Key": "b"}},
        ):
            client = Anthropic(base_url=closed, max_retries=0, **more)
            if more["api_key" if "api_key" in more else "auth_token"] == "alpha":
                assert client.messages.create(**ASK).id
            else:
                with pytest.raises(anthropic.AuthenticationError):
                    client.messages.create(**ASK)
        assert httpx.post(f"{closed}/v1/messages", json=ASK, headers={"x-api-key": "alpha"}).status_code == 200


SCRIPT = [
    "Let me ",
    "see.\n<tool",
    "_call>\n",
    '{"name": "weather", "argum',
    'ents": {"wet": true, "city": "Oslo"}}\n</tool',
    "_call>",
]


def scripted(script: list[str], *, stream: bool = False, **more: object):
    fake = FakeService(script)
    with in_background(create_app(fake), fake) as url:
        client = Anthropic(base_url=url, api_key="none", max_retries=0)
        if not stream:
            return client.messages.create(**{**ASK, **more})
        with client.messages.stream(**{**ASK, **more}) as events:
            return [*events], events.get_final_message()


def test_a_call_is_parsed():
    answer = scripted(SCRIPT, tools=[TOOL])
    text, call = answer.content
    assert (text.text, call.name, call.input) == ("Let me see.", "weather", {"wet": True, "city": "Oslo"})
    assert call.id.startswith("toolu_")
    assert answer.stop_reason == "tool_use"


def test_a_call_is_streamed_as_pieces_of_json():
    events, answer = scripted(
        [*SCRIPT[:4], SCRIPT[4].replace("Oslo", "Oslo " * 40), SCRIPT[5]], tools=[TOOL], stream=True
    )
    pieces = [
        e.delta.partial_json for e in events if e.type == "content_block_delta" and e.delta.type == "input_json_delta"
    ]
    assert len(pieces) > 3
    assert json.loads("".join(pieces)) == answer.content[1].input == {"wet": True, "city": "Oslo " * 40}
    assert answer.content[0].text == "Let me see."
    assert answer.stop_reason == "tool_use"


def test_only_one_call_is_passed_on_where_no_more_are_wanted():
    script = ['<tool_call>{"name": "weather", "arguments": {"n": 1}}</tool_call>'] * 2
    alone = {"type": "auto", "disable_parallel_tool_use": True}
    assert len(scripted(script, tools=[TOOL]).content) == 2
    answer = scripted(script, tools=[TOOL], tool_choice=alone)
    assert ([block.type for block in answer.content], answer.stop_reason) == (["tool_use"], "tool_use")


def test_with_no_choice_nothing_is_parsed():
    answer = scripted(SCRIPT, tools=[TOOL], tool_choice={"type": "none"})
    assert [block.text for block in answer.content] == ["".join(SCRIPT)]


def test_a_call_and_its_result_go_into_the_prompt():
    fake = FakeService(["ok"])
    turns = [
        {"role": "user", "content": "Rain?"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "Hm.", "signature": "s"},
                {"type": "text", "text": "Let me see."},
                {"type": "tool_use", "id": "t1", "name": "weather", "input": {"wet": True}},
                {"type": "tool_use", "id": "t2", "name": "weather", "input": {"wet": False}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "t1", "content": "no"},
                {
                    "type": "tool_result",
                    "tool_use_id": "t2",
                    "content": [{"type": "text", "text": "gone"}],
                    "is_error": True,
                },
                {"type": "text", "text": "And now?"},
            ],
        },
    ]
    with in_background(create_app(fake), fake) as url:
        client = Anthropic(base_url=url, api_key="none", max_retries=0)
        client.messages.create(**{**ASK, "messages": turns}, tools=[TOOL])
        with pytest.raises(anthropic.BadRequestError, match="'t2' has no tool_result"):
            client.messages.create(
                **{**ASK, "messages": [*turns[:2], {"role": "user", "content": turns[2]["content"][:1]}]}
            )
    text = fake.tokenizer.decode(fake.requests[0].tokens)
    assert text.index("Let me see.") < text.index('"wet": true') < text.index("\nno\n") < text.index("Error: gone")
    assert text.endswith("And now?<|im_end|>\n<|im_start|>assistant\n")


def test_an_error_in_a_stream_is_its_last_event():
    fake = FakeService(["one", "two"], "error", RuntimeError("secret content"))
    with in_background(create_app(fake), fake) as url:
        client = Anthropic(base_url=url, api_key="none", max_retries=0)
        with pytest.raises(anthropic.APIStatusError, match="see the server's log"):
            list(client.messages.create(**ASK, stream=True))
        with pytest.raises(anthropic.InternalServerError):
            client.messages.create(**ASK)
    fake = FakeService(["one", "two"], "cancelled")
    with in_background(create_app(fake), fake) as url:
        answer = httpx.post(f"{url}/v1/messages", json=ASK)
        assert (answer.status_code, answer.json()["error"]["type"]) == (529, "overloaded_error")
