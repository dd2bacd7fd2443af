"""Compaction with scripted answers: good ones, bad ones, none, and windows that are too small."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from longturn.conversation.compaction.compact import Compaction, compact
from longturn.conversation.compaction.sections import TITLES, read_sections
from longturn.conversation.edits.contract import NeedsSummary
from longturn.conversation.history import History
from longturn.conversation.models.contract import Answer, ModelRequest, answer_of
from longturn.conversation.models.scripted import ScriptedModel
from longturn.conversation.parts import Part, Reasoning, Text, ToolCall, Tools
from longturn.conversation.view.fold import View, fold
from longturn.conversation.view.render import render
from longturn.conversation.window import Window
from longturn.errors import ConfigError, ContextOverflow, ProviderError
from tests.conversation.talk import Talk, tool

GOOD = """## Goal
Fix the parser (#482).

## Instructions and constraints
- "Never touch vendor/"
- Keep the public API stable

## Discoveries
split() loses quoted strings in src/parser.py.

## Accomplished and open work
Found the cause. Open: the fix.

## Relevant files
- src/parser.py: holds the bug
- src/lexer.py: clean
"""
ROOMY = Window(200_000, 2_000)


def talk() -> Talk:
    """Six messages to sum up (1 to 6), and a tail of three from message 7 on."""
    made = Talk()
    made.user("Fix issue #482 in src/parser.py. Never touch vendor/. You must keep the public API as it is.")
    made.read("src/parser.py", "def parse(text):\n    return text.split()\n" * 40)
    made.read("src/lexer.py", "TOKENS = []\n" * 60)
    made.assistant("split() loses quoted strings.")
    made.user("Good. Fix it then.")
    made.read("src/parser.py", "now fixed")
    return made


def need_of(made: Talk, last: int = 6, first: int = 1) -> NeedsSummary:
    return NeedsSummary(first, last, last + 1, "nearly full")


Said = str | Part | Sequence[Part] | ProviderError


def scripted(*answers: Said, window: Window = ROOMY) -> ScriptedModel:
    def script(request: ModelRequest, number: int) -> Sequence[Part]:
        said = answers[min(number, len(answers) - 1)]
        if isinstance(said, ProviderError):
            raise said
        return [Text(said)] if isinstance(said, str) else [said] if not isinstance(said, Sequence) else said

    return ScriptedModel(script, window)


async def run(made: Talk | View, model: ScriptedModel, need: NeedsSummary, window: Window = ROOMY) -> Compaction:
    view = made if isinstance(made, View) else fold(made.entries)
    return await compact(view, need, lambda request: answer_of(model, request), window)


def last_text(request: ModelRequest) -> str:
    content = request.messages[-1]["content"]
    assert isinstance(content, str)
    return content


async def test_it_continues_the_running_prefix_and_so_hits_the_cache() -> None:
    made = talk()
    sent = render(fold(made.entries))
    model = scripted("All right.", GOOD)
    await answer_of(model, ModelRequest(sent.messages, sent.tools, max_output=2_000, session="s"))
    made.assistant("All right.")
    made.user("And now?")  # not sent yet
    like = ModelRequest((), temperature=0.5, session="s")
    done = await compact(fold(made.entries), need_of(made), lambda request: answer_of(model, request), ROOMY, like)
    first, second = model.requests
    assert list(second.messages[: len(first.messages)]) == list(first.messages)
    assert second.messages[-2]["content"] == "All right."
    assert second.tools == first.tools
    assert first.use_tools
    assert not second.use_tools
    assert (second.session, second.temperature, second.max_output) == ("s", 0.5, 2_000)
    (answer,) = done.answers
    assert answer.use is not None
    new = sum(len(str(message)) for message in second.messages[len(first.messages) :]) // 3
    assert answer.use.cached_total > 500
    assert answer.use.computed < new
    assert done.problems == ()


async def test_what_matters_is_not_left_to_the_model() -> None:
    done = await run(talk(), scripted(GOOD), need_of(talk()))
    assert (done.edit.first, done.edit.last) == (1, 6)
    assert done.edit.text.startswith("[Summary of messages 1 to 6 of this conversation, which are kept]")
    sections = read_sections(done.edit.text)
    assert list(sections) == list(TITLES)
    # The user's own words, with the message they stand in, and not the model's rewording.
    assert sections["constraints"].splitlines() == [
        '- "Never touch vendor/." (message 1)',
        '- "You must keep the public API as it is." (message 1)',
    ]
    # Only what tools worked on in the range, with the model's notes.
    assert sections["files"].splitlines() == [
        "- src/lexer.py: clean [read; message 5]",
        "- src/parser.py: holds the bug [read; message 3]",
    ]
    assert sections["goal"] == "Fix the parser (#482)."


async def test_the_model_is_told_of_recall_only_where_it_has_it() -> None:
    made = Talk(tools=["recall"])
    made.user("Never stop.")
    made.assistant("Yes.")
    made.user("x")
    done = await run(made, scripted(GOOD), NeedsSummary(1, 2, 3, "r"))
    assert "`recall` finds words in them" in done.edit.text.splitlines()[0]


@pytest.mark.parametrize(
    ("bad", "named"),
    [
        (GOOD.replace("## Discoveries", "## Weather"), "Discoveries"),
        (GOOD.replace("(#482)", ""), "#482"),
        (GOOD.replace("## Relevant files\n", "## Relevant files\n- src/made_up.py: new\n"), "src/made_up.py"),
        ("I am happy to help!", "Goal, Instructions and constraints, Discoveries"),
    ],
    ids=["section", "vanished", "invented", "chat"],
)
async def test_a_poor_summary_is_asked_for_once_more(bad: str, named: str) -> None:
    model = scripted(bad, GOOD)
    done = await run(talk(), model, need_of(talk()))
    first, second = model.requests
    assert list(second.messages[:-2]) == list(first.messages)
    assert second.messages[-2] == {"role": "assistant", "content": bad}
    assert named in last_text(second)
    assert len(done.answers) == 2
    assert done.problems == ()
    assert "split() loses quoted strings in src/parser.py." in done.edit.text


async def test_names_that_vanish_twice_are_put_in() -> None:
    bad = GOOD.replace("(#482)", "")
    model = scripted(bad)
    done = await run(talk(), model, need_of(talk()))
    assert len(model.requests) == 2
    assert done.problems == ("These names are missing: #482.",)
    assert "Other names: #482" in read_sections(done.edit.text)["files"]


async def test_the_better_of_two_poor_ones_is_taken() -> None:
    done = await run(talk(), scripted(GOOD.replace("(#482)", ""), "Sorry."), need_of(talk()))
    assert "Found the cause." in done.edit.text
    done = await run(talk(), scripted("Sorry.", GOOD.replace("(#482)", "")), need_of(talk()))
    assert "Found the cause." in done.edit.text


@pytest.mark.parametrize(
    "nothing",
    ["", "  \n", ToolCall("x", "read", "{}"), [Reasoning("hm"), ToolCall("x", "read", "{}")]],
    ids=["empty", "blank", "call", "reasoning"],
)
async def test_no_text_is_asked_for_again_and_then_done_without(nothing: Said) -> None:
    model = scripted(nothing, GOOD)
    done = await run(talk(), model, need_of(talk()))
    assert "call no tool" in last_text(model.requests[1])
    assert len(model.requests[1].messages) == len(model.requests[0].messages)
    assert done.problems == ()

    done = await run(talk(), scripted(nothing), need_of(talk()))
    assert done.problems == ("The summary has no text. Answer with it as plain text; call no tool.",)
    sections = read_sections(done.edit.text)
    assert "Never touch vendor/" in sections["constraints"]
    assert "src/parser.py [read; message 3]" in sections["files"]
    assert sections["goal"].startswith('First: "Fix issue #482')


async def test_words_without_headings_are_kept_as_work() -> None:
    done = await run(talk(), scripted("We found the bug in #482, src/parser.py."), need_of(talk()))
    assert read_sections(done.edit.text)["work"] == "We found the bug in #482, src/parser.py."
    assert done.problems


async def test_a_long_answer_is_cut_to_its_room() -> None:
    long = GOOD.replace("Found the cause.", "Found the cause.\n" + "and more words\n" * 5_000)
    window = Window(50_000, 2_000)
    done = await run(talk(), scripted(long, window=window), need_of(talk()), window)
    assert len(done.edit.text) < 1.7 * 4 * 2_000
    assert list(read_sections(done.edit.text)) == list(TITLES)
    assert "[cut]" in done.edit.text
    assert "Fix the parser (#482)." in done.edit.text


async def test_an_answer_that_the_limit_cut_is_asked_for_shorter() -> None:
    model = scripted(GOOD)
    asked: list[ModelRequest] = []

    async def ask(request: ModelRequest) -> Answer:
        asked.append(request)
        answer = await answer_of(model, request)
        return Answer(answer.parts, "length" if len(asked) == 1 else "stop", answer.use)

    done = await compact(fold(talk().entries), need_of(talk()), ask, ROOMY)
    assert "be much shorter" in last_text(asked[1])
    assert done.problems == ()


async def test_a_failure_of_the_second_try_leaves_the_first() -> None:
    done = await run(talk(), scripted("Some words.", ProviderError("down")), need_of(talk()))
    assert "Some words." in done.edit.text
    with pytest.raises(ProviderError, match="down"):
        await run(talk(), scripted("", ProviderError("down")), need_of(talk()))
    with pytest.raises(ProviderError, match="down"):
        await run(talk(), scripted(ProviderError("down")), need_of(talk()))


async def test_summaries_merge() -> None:
    made = talk()
    made.edit((await run(made, scripted(GOOD), need_of(made))).edit)
    made.user("From now on, answer in German.")
    made.read("src/lexer.py", "more")
    made.assistant("Ja.")
    made.user("Weiter.")
    model = scripted(GOOD.replace('- "Never touch vendor/"\n', ""))
    view = fold(made.entries)
    need = NeedsSummary(6, made.seq - 2, made.seq - 1, "again")
    done = await run(view, model, need)
    assert "An earlier summary is part of the conversation" in last_text(model.requests[0])
    sections = read_sections(done.edit.text)
    assert sections["constraints"].splitlines() == [
        '- "Never touch vendor/." (message 1)',
        '- "You must keep the public API as it is." (message 1)',
        '- "From now on, answer in German." (message 11)',
    ]
    assert "src/parser.py" in sections["files"]
    made.edit(done.edit)
    texts = [str(message["content"]) for message in render(fold(made.entries)).messages]
    assert sum("[Summary of messages" in text for text in texts) == 1
    assert texts[-1] == "Weiter."


async def test_it_adds_no_turn_of_its_own() -> None:
    made = talk()
    made.assistant("Done: it is fixed.")
    before = render(fold(made.entries)).messages
    made.edit((await run(made, scripted(GOOD), need_of(made))).edit)
    after = render(fold(made.entries)).messages
    assert after[2:] == before[7:]
    assert after[-1] == {"role": "assistant", "content": "Done: it is fixed."}
    assert after[:1] == before[:1]
    assert str(after[1]["content"]).startswith("[Summary of messages")


async def test_a_call_without_its_result_is_waited_for() -> None:
    made = talk()
    made.call("read")
    with pytest.raises(ConfigError, match="a call waits"):
        await run(made, scripted(GOOD), need_of(made))


async def test_a_call_is_not_parted_from_its_result() -> None:
    with pytest.raises(ConfigError, match="would part the call"):
        await run(talk(), scripted(GOOD), need_of(talk(), last=4))


async def test_it_is_undone_to_the_same_bytes(history: History) -> None:
    session = history.create("x")
    session_talk = talk()
    for entry in session_talk.entries:
        session.append(entry.message)  # type: ignore[union-attr]
    before = render(fold(session.entries())).data
    done = await run(fold(session.entries()), scripted(GOOD), need_of(session_talk))
    session.edit([done.edit], "nearly full")
    compacted = render(fold(session.entries())).data
    assert len(compacted) < len(before)
    session.undo()
    assert render(fold(session.entries())).data == before


def long_talk(steps: int = 40, size: int = 1_500) -> Talk:
    made = Talk()
    for number in range(steps):
        if number % 8 == 0:
            made.user(f"Do part {number}. Never skip step {number}.")
        made.read(f"src/file_{number}.py", f"line of {number}\n" * (size // 12))
    made.assistant("All done.")
    made.user("Thanks. What next?")
    return made


def summarised(check: Callable[[ModelRequest], None] = lambda request: None) -> Callable[..., Sequence[Part]]:
    def script(request: ModelRequest, number: int) -> Sequence[Part]:
        check(request)
        return [Text(GOOD.replace("Found the cause.", f"Found the cause {number}."))]

    return script


async def test_what_does_not_fit_with_the_tail_is_sent_without_it() -> None:
    made = long_talk(10)
    view = fold(made.entries)
    need = NeedsSummary(1, 9, 10, "full")
    whole = sum(len(str(message)) for message in render(view).messages) // 4
    window = Window(whole, 1_000)
    model = ScriptedModel(summarised(), window)
    done = await run(view, model, need, window)
    assert len(done.answers) == len(model.requests)
    for request in model.requests:
        assert "line of 3" in str(request.messages)
        assert "line of 4" not in str(request.messages)


async def test_a_request_that_overflows_is_split() -> None:
    made = long_talk()
    window = Window(9_000, 1_000)
    model = ScriptedModel(summarised(), window)
    view = fold(made.entries)
    last = made.seq - 2
    done = await run(view, model, NeedsSummary(1, last, last + 1, "full"), window)
    assert 3 <= len(model.requests) <= 12
    assert all(not request.use_tools for request in model.requests)
    assert "Summary of the conversation up to here" in str(model.requests[-1].messages)
    # Every message was seen by one request or another.
    seen = str([request.messages for request in model.requests])
    assert all(f"line of {number}\\n" in seen for number in range(40))
    sections = read_sections(done.edit.text)
    assert "Never skip step 0." in sections["constraints"]
    assert "Never skip step 32." in sections["constraints"]


@pytest.mark.parametrize("role", ["user", "tool"])
async def test_a_message_larger_than_the_window_is_sent_in_part(role: str) -> None:
    made = Talk()
    big = "BEGIN " + "many words " * 20_000 + " END"
    if role == "user":
        made.user(big)
        made.assistant("That is long.")
    else:
        made.user("Read it. Never skip.")
        made.read("big.txt", big)
    made.user("Next?")
    window = Window(9_000, 1_000)
    model = ScriptedModel(summarised(), window)
    done = await run(made, model, NeedsSummary(1, made.seq - 2, made.seq - 1, "full"), window)
    sent = str([request.messages for request in model.requests])
    assert "characters are left out here" in sent
    assert "BEGIN" in sent
    assert "END" in sent
    assert "Found the cause" in done.edit.text


async def test_a_window_that_nothing_fits_ends_in_an_overflow() -> None:
    made = Talk(system="rule " * 10_000)
    made.user("Hello")
    made.assistant("Hi")
    made.user("Next?")
    model = scripted(GOOD, window=Window(5_000, 1_000))
    with pytest.raises(ContextOverflow):
        await run(made, model, NeedsSummary(1, 2, 3, "full"), Window(200_000, 1_000))
    assert model.requests == []


async def test_a_window_far_smaller_than_it_is_said_to_be_ends_in_an_overflow() -> None:
    made = long_talk(200)
    model = ScriptedModel(summarised(), Window(2_500, 100))
    with pytest.raises(ContextOverflow, match="Give its real size"):
        await run(made, model, NeedsSummary(1, made.seq - 2, made.seq - 1, "full"), Window(200_000, 100))
    assert len(model.requests) == 40


async def test_new_tools_are_not_offered_early() -> None:
    made = talk()
    made.say("system", Tools((tool("later"),)))
    model = scripted(GOOD)
    await run(made, model, need_of(made))
    assert [definition["function"]["name"] for definition in model.requests[0].tools] == ["bash", "read"]
