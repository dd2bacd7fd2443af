"""One turn after the other, with a scripted model: what is said, edited, counted and kept when something fails."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import pytest

from longturn.conversation.artifacts.place import artifacts_of
from longturn.conversation.conversation import Conversation
from longturn.conversation.entries import Edited, Said
from longturn.conversation.events import Answered, Called, Changed, Event, Resulted, Summarising
from longturn.conversation.history import History, Made, Sent, Session, Whole
from longturn.conversation.models.contract import Answer, Delta, ModelRequest
from longturn.conversation.models.scripted import ScriptedModel
from longturn.conversation.parts import Message, Part, Text, ToolCall, ToolResult
from longturn.conversation.policies.registry import context_policy
from longturn.conversation.tools.contract import Outcome, Tool, Toolbox
from longturn.conversation.turn import Agent
from longturn.conversation.window import Window
from longturn.errors import ContextOverflow, ProviderError
from longturn.ledger import RequestLine, TokenUse
from tests.conversation.long_session import summary
from tests.pace import fastest

SCHEMA = {"type": "object", "properties": {}}


class Failing(ScriptedModel):
    """Fails when it is told to: before the answer, or after some of it."""

    fail: ProviderError | None = None
    after = 0

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta | Answer]:
        seen = 0
        async with aclosing(super().stream(request)) as pieces:
            async for piece in pieces:
                if self.fail is not None and seen >= self.after:
                    error, self.fail = self.fail, None
                    raise error
                seen += 1
                yield piece


def toolbox() -> Toolbox:
    async def get(given: Mapping[str, Any]) -> Outcome:
        return Outcome("x" * int(given.get("size", 10)), resource=given.get("name"))

    return Toolbox([Tool("get", "Gets.", SCHEMA, get)])


def agent(
    history: History,
    script: Callable[[ModelRequest, int], Sequence[Part]],
    *,
    window: Window | None = None,
    policy: str = "longturn",
    session: Session | None = None,
    system: str = "Be brief.",
) -> Agent:
    window = window or Window(32_000, 2_000)
    session = session or history.create("t")
    talk = Conversation(session, context_policy(policy), window, artifacts_of(history))
    box = toolbox()
    talk.offer(system, box.definitions)
    return Agent(talk, Failing(script, window), box, max_output=window.output)


def steps(*answers: Sequence[Part]) -> Callable[[ModelRequest, int], Sequence[Part]]:
    return lambda request, number: answers[number]


async def events(running: AsyncGenerator[Event]) -> list[Event]:
    return [event async for event in running]


def sent(of: Agent) -> list[Mapping[str, Any]]:
    assert isinstance(of.model, ScriptedModel)
    return list(of.model.requests[-1].messages)


async def test_a_turn_with_tools(history: History):
    call = ToolCall("c1", "get", '{"size": 5, "name": "a"}')
    working = agent(history, steps([Text("I look."), call], [Text("It is x.")]))
    seen = await events(working.turn("What is it?"))
    kinds = [type(event) for event in seen if not isinstance(event, Delta)]
    assert kinds == [Answered, Called, Resulted, Answered]
    assert "".join(event.text for event in seen if isinstance(event, Delta)).split() == ["I", "look.", "It", "is", "x."]
    assert [message["role"] for message in sent(working)] == ["system", "user", "assistant", "tool"]
    said = [entry.message.parts for entry in working.conversation.session.entries() if isinstance(entry, Said)]
    assert said[2:] == [(Text("I look."), call), (ToolResult("c1", "xxxxx", "a"),), (Text("It is x."),)]
    first, second = working.conversation.session.requests()
    assert second.line.use.cached_total == first.line.use.logical > 0
    assert second.sent is not None
    assert working.spent.use == first.line.use + second.line.use
    assert working.reading.reported == second.line.use.logical + second.line.use.output


async def test_the_answer_is_in_the_history_before_it_is_acknowledged(history: History):
    working = agent(history, steps([ToolCall("c1", "get", "{}")], [Text("done")]))
    async for event in working.turn("Go"):
        entries = history.session(working.conversation.session.id).entries()
        last = entries[-1]
        assert isinstance(last, Said)
        if isinstance(event, Answered):
            assert last.message.parts == event.answer.parts
        elif isinstance(event, Resulted):
            assert last.message.parts == (event.result,)


async def test_another_process_goes_on_where_one_was_left(history: History):
    calls = [ToolCall("c1", "get", "{}"), ToolCall("c2", "get", "{}")]
    first = agent(history, steps(calls))
    running = first.turn("Go")
    async for event in running:
        if isinstance(event, Resulted):
            break  # between two results
    session = history.session(first.conversation.session.id)
    second = agent(history, steps([Text("done")]), session=session)
    assert second.conversation.rendered.digest == first.conversation.rendered.digest
    seen = await events(second.turn())
    assert [event.call.call for event in seen if isinstance(event, Called)] == ["c2"]
    assert [message.get("tool_call_id") for message in sent(second)][-2:] == ["c1", "c2"]
    assert not await events(second.turn())
    await running.aclose()


async def test_a_message_without_an_answer_is_withdrawn_and_stays_in_the_history(history: History):
    working = agent(history, lambda request, number: [Text("fine")])
    await events(working.turn("One"))
    working.model.fail = ProviderError("it is down")
    with pytest.raises(ProviderError, match="down"):
        await events(working.turn("Two"))
    await events(working.turn("Three"))
    assert [m["content"] for m in sent(working)] == ["Be brief.", "One", "fine", "Three"]
    texts = [entry.message.parts[-1] for entry in working.conversation.session.entries() if isinstance(entry, Said)]
    assert Text("Two") in texts
    assert working.spent.uncounted == 1
    working.conversation.undo()
    assert [m["content"] for m in working.conversation.rendered.messages][3] == "Two"


async def test_what_was_seen_of_an_answer_stays(history: History):
    working = agent(history, lambda request, number: [Text("one two three")])
    working.model.fail, working.model.after = ProviderError("it broke"), 2
    with pytest.raises(ProviderError):
        await events(working.turn("Count"))
    await events(working.turn("Go on"))
    assert [m["content"] for m in sent(working)][1:] == ["Count", "one two ", "Go on"]


async def test_a_turn_that_is_closed_keeps_what_was_seen(history: History):
    working = agent(history, lambda request, number: [Text("one two three")])
    running = working.turn("Count")
    await anext(running)
    await running.aclose()
    assert [m["content"] for m in working.conversation.rendered.messages][1:] == ["Count", "one "]


async def test_a_turn_that_is_cancelled_keeps_what_was_seen(history: History):
    async def slowly(given: Mapping[str, Any]) -> Outcome:
        await asyncio.sleep(60)
        return Outcome("")

    working = agent(history, steps([ToolCall("c1", "slow", "{}")], [Text("so be it")]))
    working._tools = Toolbox([Tool("slow", "", SCHEMA, slowly)])
    task = asyncio.ensure_future(events(working.turn("Go")))
    while not working.conversation.waiting:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await events(working.turn("Leave it"))
    assert [m["role"] for m in sent(working)] == ["system", "user", "assistant", "tool", "user"]
    assert "interrupted" in sent(working)[3]["content"]


def fill(working: Agent, tokens: int) -> None:
    """Old turns, of so many tokens together."""
    for number in range(10):
        working.conversation.say("user", Text(f"Step {number} " + "word " * (tokens * 3 // 100)))
        working.conversation.say("assistant", Text("yes " * (tokens * 3 // 100)))


async def test_a_summary_is_asked_for_as_a_continuation_and_counted(history: History):
    def script(request: ModelRequest, number: int) -> Sequence[Part]:
        last = str(request.messages[-1]["content"])
        return [Text(summary(last) if "Use these headings" in last else "fine")]

    working = agent(history, script, window=Window(12_000, 1_000))
    await events(working.turn("First"))
    fill(working, 12_000)
    seen = await events(working.turn("And now?"))
    assert [type(event) for event in seen if not isinstance(event, Delta)] == [Summarising, Changed, Answered]
    changed = next(event for event in seen if isinstance(event, Changed))
    assert changed.after < changed.before
    lines = working.conversation.session.lines()
    assert [line.purpose for line in lines] == ["turn", "summary", "turn"]
    assert working.spent.purposes["summary"] == lines[1].use
    asked = working.model.requests[1]
    assert asked.use_tools is False
    assert asked.tools == working.conversation.rendered.tools
    request = working.conversation.session.requests()[1]
    assert request.sent is not None
    assert "Use these headings" in request.sent.more
    assert any("summary" in str(m["content"]).lower() for m in sent(working))
    assert sent(working)[-1]["content"] == "And now?"


async def test_an_overflow_that_the_provider_reports_is_recovered_from_once(history: History):
    def script(request: ModelRequest, number: int) -> Sequence[Part]:
        last = str(request.messages[-1]["content"])
        return [Text(summary(last) if "Use these headings" in last else "fine")]

    working = agent(history, script, window=Window(12_000, 1_000))
    fill(working, 6_000)
    working.model.fail = ContextOverflow("too long")
    seen = await events(working.turn("Now"))
    assert [type(event) for event in seen if not isinstance(event, Delta)][-2:] == [Changed, Answered]
    hopeless = agent(history, script, policy="none")
    hopeless.model.fail = ContextOverflow("too long")
    with pytest.raises(ContextOverflow, match="too long"):
        await events(hopeless.turn("Now"))


async def test_a_fixed_prompt_that_leaves_no_room_is_a_clear_error(history: History):
    working = agent(history, steps([Text("fine")]), window=Window(1_000, 500), system="rule " * 2_000)
    with pytest.raises(ContextOverflow, match="alone fill the usable window"):
        await events(working.turn("Hello"))
    assert not working.model.requests


async def test_a_large_result_becomes_an_artifact_at_birth(history: History):
    working = agent(history, steps([ToolCall("c1", "get", '{"size": 90000}')], [Text("large")]))
    await events(working.turn("Get it"))
    content = sent(working)[-1]["content"]
    assert len(content) < 10_000
    assert "artifact:" in content
    (edit,) = next(e.born for e in working.conversation.session.entries() if isinstance(e, Said) and e.born)
    assert working.conversation.artifacts.get(edit.artifact) == b"x" * 90_000
    assert not any(isinstance(entry, Edited) for entry in working.conversation.session.entries())


async def test_ids_of_calls_are_made_unique(history: History):
    call = ToolCall("call_0", "get", "{}")
    working = agent(history, steps([call], [call, call], [Text("done")]))
    await events(working.turn("Go"))
    ids = [call["id"] for m in sent(working) for call in m.get("tool_calls", ())]
    assert len(ids) == len(set(ids)) == 3


async def test_new_tools_and_instructions_are_appended(history: History):
    first = agent(history, steps([Text("fine")]))
    await events(first.turn("One"))
    before = first.conversation.rendered
    session = history.session(first.conversation.session.id)
    same = agent(history, steps([Text("fine")]), session=session)
    assert same.conversation.rendered.digest == before.digest
    talk = same.conversation
    talk.offer("Be long.", [])
    assert talk.rendered.extends(before)
    assert [m["content"] for m in talk.rendered.messages[-1:]] == [
        [
            {"type": "text", "text": "Be long."},
            {"type": "text", "text": "These tools are not available any more: get."},
        ]
    ]
    entries = talk.entries
    talk.offer("Be long.", [])
    assert talk.entries == entries


async def test_an_answer_of_nothing_ends_the_turn(history: History):
    working = agent(history, steps([], [Text("fine")]))
    await events(working.turn("Hello"))
    assert len(working.model.requests) == 1
    assert working.spent.requests == 1


async def test_a_resumed_session_knows_how_its_provider_counts(history: History):
    first = agent(history, lambda request, number: [Text("fine " * 50)])
    for number in range(4):
        await events(first.turn(f"Say {number} " + "word " * 300))
    session = history.session(first.conversation.session.id)
    second = agent(history, steps([Text("fine")]), session=session)
    assert second.reading.reported == first.reading.reported
    assert second.reading.expected == first.reading.expected
    assert second.spent.use == first.spent.use
    assert isinstance(first.spent.use, TokenUse)


async def test_the_last_resort_is_to_slide_but_never_for_who_wants_nothing_edited(history: History):
    working = agent(history, lambda request, number: [Text("fine")], window=Window(3_000, 300))
    for number in range(6):
        working.conversation.say("user", Text(f"Step {number} " + "word " * 60))
        working.conversation.say("assistant", Text("yes " * 60))
    working.model.fail = ContextOverflow("too long")
    seen = await events(working.turn("Now"))
    changed = next(event for event in seen if isinstance(event, Changed))
    assert "found nothing to drop" in changed.edited.reason
    assert changed.after < changed.before
    assert sent(working)[-1]["content"] == "Now"
    assert sent(working)[1]["role"] == "user"


def test_an_agent_opens_a_long_session_quickly(history: History):
    parts = (Text("short"), ToolCall("c", "get", "{}"), ToolResult("c", "a line of output\n" * 50), Text("done"))
    roles = ("user", "assistant", "tool", "assistant")
    log = [Said(n, Message(str(n), roles[n % 4], (parts[n % 4],))) for n in range(10_000)]  # type: ignore[arg-type]
    counted = [
        Made(n + 1, RequestLine(str(n), "s", "m", 1.0, TokenUse(10 * n, {}, 10 * n, output=5)), Sent(n, 9, "0"))
        for n in range(1, 10_000, 2)
    ]
    long = history.add(Whole("long", log, counted))

    def opened() -> None:
        with History.open(history.name.removeprefix("sqlite:///")) as again:
            one = agent(again, lambda request, n: [Text("ok")], session=again.session(long.id), system="")
            assert one.reading.reported == 10 * 9_999 + 5

    assert fastest(opened) < 0.2
    assert agent(history, lambda request, n: [Text("ok")], session=long, system="").spent.requests == 5_000
