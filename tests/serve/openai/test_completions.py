"""Completions through the official SDK, against the real engine."""

from __future__ import annotations

import pytest
from openai import OpenAI

from tests.tiny_model import build_tiny_tokenizer


def test_text_and_its_token_ids_give_the_same(client: OpenAI):
    text = "Once upon a time"
    tokens = build_tiny_tokenizer()(text).input_ids
    first, second = (
        client.completions.create(model="tiny", prompt=prompt, max_tokens=12, temperature=0)
        for prompt in (text, tokens)
    )
    assert first.choices[0].text == second.choices[0].text
    assert first.usage.prompt_tokens == second.usage.prompt_tokens == len(tokens)


def test_sixteen_tokens_without_max_tokens(client: OpenAI):
    assert client.completions.create(model="tiny", prompt="Once", temperature=0).usage.completion_tokens == 16


@pytest.mark.parametrize("prompts", [["one", "two three"], [[1, 2, 3], [4, 5]]])
def test_several_prompts_are_several_choices(client: OpenAI, prompts: list):
    together = client.completions.create(model="tiny", prompt=prompts, max_tokens=8, temperature=0)
    alone = [client.completions.create(model="tiny", prompt=p, max_tokens=8, temperature=0) for p in prompts]
    assert [choice.text for choice in together.choices] == [answer.choices[0].text for answer in alone]
    assert [choice.index for choice in together.choices] == [0, 1]
    usage = together.usage
    assert usage.prompt_tokens == sum(answer.usage.prompt_tokens for answer in alone)
    assert usage.completion_tokens == 16
    line = usage.longturn
    assert line["logical"] == sum(line["cached"].values()) + line["computed"] == usage.prompt_tokens
    assert line["request_id"] == together.id


def test_choices_of_a_prompt_stand_together(client: OpenAI):
    answer = client.completions.create(model="tiny", prompt=["one", "two"], n=2, max_tokens=6, temperature=0)
    texts = [choice.text for choice in answer.choices]
    assert texts[0] == texts[1]
    assert texts[2] == texts[3]
    assert texts[0] != texts[2]


def test_a_stream_and_the_whole_say_the_same(client: OpenAI):
    settings = {"model": "tiny", "prompt": ["one", "two"], "max_tokens": 12, "temperature": 0, "logprobs": 2}
    whole = client.completions.create(**settings)
    *chunks, last = client.completions.create(**settings, stream=True, stream_options={"include_usage": True})
    for choice in whole.choices:
        own = [chunk.choices[0] for chunk in chunks if chunk.choices[0].index == choice.index]
        assert "".join(chunk.text for chunk in own) == choice.text
        assert own[-1].finish_reason == choice.finish_reason
        assert [t for chunk in own if chunk.logprobs for t in chunk.logprobs.tokens] == choice.logprobs.tokens
        offsets = [offset for chunk in own if chunk.logprobs for offset in chunk.logprobs.text_offset]
        assert offsets == choice.logprobs.text_offset
    assert last.usage.prompt_tokens == whole.usage.prompt_tokens


def test_a_second_turn_is_served_from_the_cache(client: OpenAI):
    history = [number % 250 for number in range(400)]
    client.completions.create(model="tiny", prompt=history, max_tokens=1)
    second = client.completions.create(model="tiny", prompt=[*history, 7, 8, 9], max_tokens=1)
    assert second.usage.prompt_tokens_details.cached_tokens == 400
    assert second.usage.longturn["computed"] == 3
