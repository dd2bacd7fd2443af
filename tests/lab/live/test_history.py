"""Prompts hold what the server really said."""

from __future__ import annotations

from typing import Any

import pytest

from longturn.dialects.engines import ENGINES, Way
from longturn.lab.live.history import WORDS, History
from longturn.lab.live.workload import Call, prepare
from longturn.lab.wire import Answer
from tests.lab.live.traces import Listed, chats, request


def calls_of(trace: Listed) -> list[Call]:
    return prepare(trace, requests=100, room=None, scale=None, answer=None, vocab=1 << 31, seed=1).calls


def two(way: Way) -> tuple[History, Call, Call]:
    first, second = calls_of(chats(sessions=1, turns=2, system=2, new=2, answer=3))
    return History(ENGINES["vllm"], way, "m"), first, second


def test_token_ids_of_the_servers_take_the_place_of_the_traces() -> None:
    history, first, second = two("ids")
    prompt = history.prompt(first)
    assert prompt == first.ids.tolist()
    assert history.body(first, prompt)["prompt"] == prompt
    assert history.body(first, prompt)["max_tokens"] == 3
    assert history.body(first, prompt)["return_token_ids"]
    answered = history.answered(first, prompt, Answer("xyz", [7, 8, 9]))
    assert answered is not None
    assert answered.tolist() == [7, 8, 9]
    assert history.prompt(second) == [*first.ids.tolist(), 7, 8, 9, *second.ids.tolist()[7:]]
    assert history.swapped == 1


@pytest.mark.parametrize("answer", [Answer("xyz"), Answer("xyz", [7, 8])], ids=["no ids", "too few ids"])
def test_without_them_the_traces_answer_is_sent(answer: Answer) -> None:
    history, first, second = two("ids")
    assert history.answered(first, history.prompt(first), answer) is None
    assert history.prompt(second) == second.ids.tolist()
    assert history.swapped == 0


def test_answers_of_several_turns_add_up() -> None:
    calls = calls_of(chats(sessions=1, turns=4, system=2, new=2, answer=2))
    history = History(ENGINES["vllm"], "ids", "m")
    for turn, call in enumerate(calls):
        prompt = history.prompt(call)
        expected = call.ids.tolist()
        for earlier in range(turn):
            expected[4 + 4 * earlier : 6 + 4 * earlier] = [earlier, earlier]
        assert prompt == expected
        history.answered(call, prompt, Answer("", [turn, turn]))


def test_a_branch_of_another_session_holds_that_ones_answers() -> None:
    base = list(range(1, 9))
    first, fork, other = calls_of(
        Listed([request("a", base, [50, 51]), request("b", [*base, 50, 51, 60]), request("c", [*base, 70])])
    )
    history = History(ENGINES["vllm"], "ids", "m")
    history.answered(first, history.prompt(first), Answer("", [7, 8]))
    assert history.prompt(fork) == [*first.ids.tolist(), 7, 8, int(fork.ids[-1])]
    assert history.prompt(other) == other.ids.tolist()


def test_text_goes_on_where_the_answer_ended() -> None:
    history, first, second = two("text")
    prompt = history.prompt(first)
    text = history.body(first, prompt)["prompt"]
    assert text.count(" ") == len(first.ids)
    assert all(f" {word}" in WORDS for word in text.split())
    answered = history.answered(first, prompt, Answer("Hello! "))
    assert answered is not None
    assert answered.tolist() == (first.output.tolist() if first.output is not None else None)
    later = history.body(second, history.prompt(second))["prompt"]
    assert later.startswith(text + "Hello! ")
    assert len(later.removeprefix(text + "Hello! ").split()) == 2
    assert "return_token_ids" not in history.body(first, prompt)


def test_a_chat_sends_answers_back_as_the_assistants() -> None:
    history, first, second = two("chat")
    prompt = history.prompt(first)
    body: dict[str, Any] = history.body(first, prompt)
    assert [message["role"] for message in body["messages"]] == ["user"]
    history.answered(first, prompt, Answer("Hello!"))
    messages = history.body(second, history.prompt(second))["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "user"]
    assert messages[0] == body["messages"][0]
    assert messages[1]["content"] == "Hello!"
    assert history.path == "/v1/chat/completions"
