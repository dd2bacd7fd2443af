"""Conversations through the official SDK: items that answers begin with and add to."""

from __future__ import annotations

import pytest
from openai import BadRequestError, NotFoundError, OpenAI

from longturn.errors import Refusal
from longturn.serve.openai.stored_conversations import LEAST, StoredConversations

ASK = {"model": "tiny", "max_output_tokens": 6, "temperature": 0}
HELLO = {"type": "message", "role": "user", "content": "Hello there"}


def test_answers_are_added_to_a_conversation(client: OpenAI):
    conversation = client.conversations.create(items=[HELLO], metadata={"trip": "oslo"})
    first = client.responses.create(**ASK, conversation=conversation.id, input="How are you?")
    second = client.responses.create(**ASK, conversation={"id": conversation.id}, input="Go on", stream=True)
    *_, last = second
    assert first.model_dump()["conversation"] == {"id": conversation.id}
    items = list(client.conversations.items.list(conversation.id, order="asc", limit=2))
    assert [item.role for item in items] == ["user", "user", "assistant", "user", "assistant"]
    assert [items[2].id, items[4].id] == [first.output[0].id, last.response.output[0].id]
    spelled = client.responses.create(
        **ASK,
        input=[
            HELLO,
            {"role": "user", "content": "How are you?"},
            first.output[0],
            {"role": "user", "content": "Go on"},
        ],
    )
    assert spelled.output_text == last.response.output_text
    assert client.conversations.retrieve(conversation.id).metadata == {"trip": "oslo"}


def test_conversations_can_be_changed(client: OpenAI):
    conversation = client.conversations.create()
    added = client.conversations.items.create(conversation.id, items=[HELLO, {**HELLO, "content": "Again"}])
    first, second = added.data
    assert client.conversations.items.retrieve(first.id, conversation_id=conversation.id) == first
    client.conversations.items.delete(first.id, conversation_id=conversation.id)
    assert [item.id for item in client.conversations.items.list(conversation.id)] == [second.id]
    assert client.conversations.update(conversation.id, metadata={"a": "b"}).metadata == {"a": "b"}
    assert client.conversations.delete(conversation.id).deleted
    for ask in (
        lambda: client.conversations.retrieve(conversation.id),
        lambda: client.conversations.delete(conversation.id),
        lambda: client.conversations.items.list(conversation.id),
        lambda: client.responses.create(**ASK, input="x", conversation=conversation.id),
    ):
        with pytest.raises(NotFoundError):
            ask()


def test_what_cannot_be(client: OpenAI):
    conversation = client.conversations.create()
    with pytest.raises(BadRequestError, match="send one of them"):
        client.responses.create(**ASK, input="x", conversation=conversation.id, previous_response_id="resp_0")
    with pytest.raises(BadRequestError, match="not supported"):
        client.conversations.create(items=[{"type": "computer_call"}])
    with pytest.raises(NotFoundError):
        client.conversations.items.delete("msg_0", conversation_id=conversation.id)


def test_memory_is_bounded():
    stored = StoredConversations(limit=3 * LEAST + 100)
    made = [stored.create("ada", [], {}) for _ in range(2)]
    big = {"id": "msg_1", "type": "message", "content": "x" * (LEAST + 200)}
    stored.add(made[0].id, "ada", [big])
    # The one used last has grown, so the other had to go.
    with pytest.raises(Refusal):
        stored.get(made[1].id, "ada")
    with pytest.raises(Refusal):
        stored.get(made[0].id, "bob")
    stored.remove(made[0].id, "ada", "msg_1")
    stored.create("ada", [], {})
    stored.create("ada", [], {})
    assert stored.get(made[0].id, "ada").items == ()
    stored.create("ada", [{**big, "content": "x" * 3 * LEAST}], {})
    with pytest.raises(Refusal):
        stored.get(made[0].id, "ada")
