import json

from hypothesis import given, settings
from hypothesis import strategies as st

from longturn.dialects.tool_calls import ToolCall, ToolCallParser, new_call_id


def parse(*pushes: str) -> list[str | ToolCall]:
    """Events with neighbouring texts joined, ids call_0, call_1, ..."""
    ids = iter(range(1000))
    parser = ToolCallParser(lambda: f"call_{next(ids)}")
    events = [event for text in pushes for event in parser.push(text)] + parser.finish()
    joined: list[str | ToolCall] = []
    for event in events:
        if isinstance(event, str) and joined and isinstance(joined[-1], str):
            joined[-1] += event
        else:
            joined.append(event)
    return joined


def calls(*pushes: str) -> list[tuple[str, object]]:
    return [(e.name, json.loads(e.arguments)) for e in parse(*pushes) if isinstance(e, ToolCall)]


def raw(events: list[str | ToolCall]) -> str:
    return "".join(event if isinstance(event, str) else event.raw for event in events)


WEATHER = '{"name": "weather", "arguments": {"city": "Zürich"}}'
TAGGED = f"<tool_call>\n{WEATHER}\n</tool_call>"


def test_text_then_several_hermes_calls():
    first, one, two = parse(f"Let me look.\n{TAGGED}\n{TAGGED}\n")
    assert first == "Let me look."
    assert one == ToolCall("call_0", "weather", '{"city": "Zürich"}', "\n" + TAGGED)
    assert two.id == "call_1"


def test_text_streams_but_a_possible_tag_waits():
    parser = ToolCallParser()
    assert parser.push("Hello wor") == ["Hello wor"]
    assert parser.push("ld <to") == ["ld"]
    assert parser.push("ast> is") == [" <toast> is"]
    assert parser.push(" a < b\n") == [" a < b"]
    assert parser.finish() == ["\n"]


def test_llama_bare_calls():
    bare = '{"name": "weather", "parameters": {"city": "Bern"}}'
    expected = ("weather", {"city": "Bern"})
    assert calls(bare) == [expected]
    assert calls(f"<|python_tag|>{bare}") == [expected]
    assert calls(f"\n{bare}; {bare}\n") == [expected, expected]
    assert calls('{"type": "function", ' + bare[1:]) == [expected]


def test_json_that_is_no_call_stays_text():
    for text in (
        '{"name": "Ada", "born": 1815}',
        '{"name": "weather", "parameters": 3}',
        f"{WEATHER} is how you call it",
        "<|python_tag|>print(1)",
        '{"name": "weather", "parameters": {',
        "{",
        "",
        " \n",
    ):
        assert parse(text) == ([text] if text else [])


def test_json_answers_stream():
    parser = ToolCallParser()
    assert parser.push('{"temperature": 21') == ['{"temperature": 21']


def test_malformed_tagged_calls_come_back_as_text():
    for inner in (
        "not json",
        '{"name": "x"',
        '{"name": "x"}',
        '{"name": 3, "arguments": {}}',
        '{"name": "x", "arguments": [1]}',
        '{"name": "x", "arguments": {"a": NaN}}',
        '{"name": "x", "arguments": {"a": "\\ud83d"}}',
        '{"name": "x", "arguments": ' + "[" * 100_000,
        "",
    ):
        text = f"a <tool_call>{inner}</tool_call> b"
        assert parse(text) == [text]
    assert parse("<tool_call>") == ["<tool_call>"]


def test_a_call_after_a_malformed_one_is_found():
    assert calls(f"<tool_call>oops</tool_call>{TAGGED}") == [("weather", {"city": "Zürich"})]
    assert calls(f'<tool_call>{{"unclosed {TAGGED}') == [("weather", {"city": "Zürich"})]


def test_arguments_may_contain_the_closing_tag_and_line_breaks():
    text = '<tool_call>{"name": "write", "arguments": {"text": "</tool_call>\n\\u00e9"}, "id": 1}</tool_call>'
    expected = [("write", {"text": "</tool_call>\né"})]
    assert calls(text) == expected
    assert calls(*text) == expected


def test_arguments_as_a_json_string():
    assert calls('<tool_call>{"name": "f", "arguments": "{\\"a\\": 1}"}</tool_call>') == [("f", {"a": 1})]


def test_call_ids():
    assert len(new_call_id()) == len("call_") + 24
    assert new_call_id() != new_call_id()


PIECES = st.sampled_from(
    [
        "<tool_call>",
        "</tool_call>",
        "<tool",
        "</",
        ">",
        WEATHER,
        TAGGED,
        '{"name": "f", "parameters": {}}',
        '{"name": "f", "arguments": {"t": "</tool_call> \\u00e9 x"}}',
        '{"a": "',
        '"}',
        "\\u12",
        "<|python_tag|>",
        "{",
        ";",
        " ",
        "\n",
        "text",
        "é🎉",
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.lists(PIECES, max_size=8).map("".join), st.data())
def test_any_chunking_gives_the_same_and_loses_nothing(text, data):
    whole = parse(text)
    assert parse(*text) == whole
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    assert parse(*(text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True))) == whole
    if whole and isinstance(whole[-1], ToolCall):
        assert raw(whole).rstrip() == text.rstrip()
    else:
        assert raw(whole) == text
