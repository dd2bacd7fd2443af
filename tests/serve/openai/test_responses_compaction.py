"""Compaction in Responses: of its own, and before an answer. A script stands in for the model's summary."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from openai import BadRequestError, OpenAI

from longturn.dialects import responses
from longturn.serve import create_app, in_background
from tests.serve.fake_service import FakeService

CALL = {"type": "function_call", "call_id": "c1", "name": "look", "arguments": "{}"}
HISTORY = [
    {"role": "user", "content": "Find the bug."},
    {"role": "assistant", "content": "Looking."},
    CALL,
    {"type": "function_call_output", "call_id": "c1", "output": "z" * 300},
    {"role": "user", "content": "And mend it."},
]


@contextmanager
def serving(fake: FakeService) -> Iterator[OpenAI]:
    with in_background(create_app(fake), fake) as url, OpenAI(base_url=f"{url}/v1", api_key="-", max_retries=0) as sdk:
        yield sdk


def prompts(fake: FakeService) -> list[str]:
    return [fake.tokenizer.decode(request.tokens) for request in fake.requests]


def test_a_compacted_conversation_goes_on():
    fake = FakeService(["It is in ", "line 7."])
    with serving(fake) as sdk:
        done = sdk.responses.compact(model="tiny", input=HISTORY, instructions="Be brief.")
        *said, item = done.output
        assert (done.object, done.usage.output_tokens) == ("response.compaction", 2)
        assert [message.content[0].text for message in said] == ["Find the bug.", "And mend it."]
        assert (item.type, responses.opened(item.encrypted_content)) == ("compaction", "It is in line 7.")
        window = [each.model_dump(exclude_none=True, warnings=False) for each in done.output]
        sdk.responses.create(
            model="tiny", input=[*window, {"role": "user", "content": "Well?"}], instructions="Be brief."
        )
    asked, goes_on = prompts(fake)
    # The summary is asked for behind the conversation as it was.
    assert asked.startswith("<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nFind the bug.")
    assert "zzz" in asked
    assert goes_on.endswith(
        "\n\nIt is in line 7.<|im_end|>\n<|im_start|>user\nWell?<|im_end|>\n<|im_start|>assistant\n"
    )
    assert "And mend it." in goes_on
    assert "zzz" not in goes_on


def test_what_is_stored_can_be_compacted():
    fake = FakeService(["Fine."])
    with serving(fake) as sdk:
        first = sdk.responses.create(model="tiny", input=HISTORY)
        done = sdk.responses.compact(model="tiny", previous_response_id=first.id)
    assert [each.type for each in done.output] == ["message", "message", "compaction"]
    assert "Fine." in prompts(fake)[1]


@pytest.mark.parametrize("stream", [False, True])
def test_a_conversation_is_compacted_before_its_answer(stream: bool):
    fake = FakeService(["Fine."])
    settings = {"model": "tiny", "context_management": [{"type": "compaction", "compact_threshold": 200}]}
    with serving(fake) as sdk:
        answer = sdk.responses.create(**settings, input=HISTORY, stream=stream)
        if stream:
            events = list(answer)
            answer = events[-1].response
            added = [event for event in events if event.type == "response.output_item.added"]
            assert [(event.output_index, event.item.type) for event in added] == [(0, "compaction"), (1, "message")]
            assert [event.sequence_number for event in events] == list(range(len(events)))
        assert [item.type for item in answer.output] == ["compaction", "message"]
        assert len(fake.requests) == 2
        # What was compacted away stays so, and there is nothing to compact again.
        sdk.responses.create(**settings, input="Well?", previous_response_id=answer.id)
        sdk.responses.create(**settings, input=[*HISTORY, *answer.output, {"role": "user", "content": "Well?"}])
    summary, answered, chained, spelled = prompts(fake)
    assert "zzz" in summary
    assert "zzz" not in answered + chained + spelled
    assert chained == spelled
    assert chained.startswith(answered)


def test_a_short_conversation_is_left_alone():
    fake = FakeService(["Fine."])
    with serving(fake) as sdk:
        for threshold in (2000, None):
            edit = {"type": "compaction", "compact_threshold": threshold}
            answer = sdk.responses.create(model="tiny", input=HISTORY, context_management=[edit])
            assert [item.type for item in answer.output] == ["message"]
    assert len(fake.requests) == 2


def test_what_leaves_no_room_for_a_summary_is_answered_as_it_is():
    fake = FakeService(["Fine."])
    long = [HISTORY[0], {"role": "assistant", "content": "z" * 1900}, HISTORY[-1]]
    with serving(fake) as sdk:
        edit = {"type": "compaction", "compact_threshold": 200}
        answer = sdk.responses.create(model="tiny", input=long, context_management=[edit])
    assert [item.type for item in answer.output] == ["message"]
    [prompt] = prompts(fake)
    assert "zzz" in prompt


def test_what_cannot_be_compacted():
    fake = FakeService([" "])
    with serving(fake) as sdk:
        with pytest.raises(BadRequestError, match="input is missing"):
            sdk.responses.compact(model="tiny", instructions="Be brief.")
        with pytest.raises(BadRequestError, match="no summary"):
            sdk.responses.compact(model="tiny", input="Hello")
        with pytest.raises(BadRequestError, match="context_management"):
            sdk.responses.create(model="tiny", input="Hello", context_management=[{"type": "clear"}])
