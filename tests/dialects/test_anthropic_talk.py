"""Anthropic's messages as a conversation for a chat template."""

from __future__ import annotations

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from longturn.dialects import anthropic, segments
from longturn.dialects.anthropic_talk import SUMMARY
from longturn.engine import ModelInfo
from longturn.serve.caching.parts import tokens_and_ends
from longturn.serve.encoding import Encoding
from tests.tiny_model import build_tiny_tokenizer

Json = dict[str, Any]
TOKENIZER = build_tiny_tokenizer()
ENCODING = Encoding(TOKENIZER, ModelInfo("tiny", 1 << 20, 300, "", 0))
TOOL = {"name": "look", "description": "Looks", "input_schema": {"type": "object"}}
texts = st.text("ab \né", min_size=1, max_size=8).map(lambda text: f"<{text}>")
blocks = st.builds(lambda text: {"type": "text", "text": text}, texts)


def parsed(body: Json) -> anthropic.CountRequest:
    return anthropic.parse_count({"model": "tiny", **body})


@st.composite
def turns(draw: st.DrawFn, start: int = 0) -> list[Json]:
    """A question and its answer, perhaps with calls between them; ends with the user."""
    messages: list[Json] = [
        {"role": "user", "content": draw(st.one_of(texts, st.lists(blocks, min_size=1, max_size=3)))}
    ]
    for step in range(draw(st.integers(0, 3))):
        said: list[Json] = draw(st.lists(blocks, max_size=2))
        if draw(st.booleans()):
            said = [{"type": "thinking", "thinking": draw(texts), "signature": "s"}, *said]
        ids = [f"c{start}-{step}-{n}" for n in range(draw(st.integers(0, 3)))]
        calls = [{"type": "tool_use", "id": id, "name": "look", "input": {"at": draw(texts)}} for id in ids]
        if not said and not calls:
            continue
        results = [
            {"type": "tool_result", "tool_use_id": id, "content": draw(st.one_of(texts, st.just("")))} for id in ids
        ]
        messages.append({"role": "assistant", "content": [*said, *calls]})
        messages.append(
            {"role": "user", "content": [*results, *draw(st.lists(blocks, min_size=0 if ids else 1, max_size=2))]}
        )
    return messages


def ends_of(body: Json) -> tuple[list[int], list[int]]:
    """Tokens of a prompt, and where its segments end."""
    request = parsed(body)
    parts = anthropic.Parts(request)
    tokens, found = tokens_and_ends(ENCODING, TOKENIZER, lambda mark: anthropic.talk(request, mark), parts.count)
    assert len(parts.of) == len(segments.parse("anthropic", body).segments)
    ends: list[int] = []
    for part in parts.of:
        ends.append(max(found[part] or 0, ends[-1] if ends else 0))
    return tokens.tolist(), ends


heads = st.fixed_dictionaries(
    {},
    optional={
        "system": st.one_of(texts, st.lists(blocks, min_size=1, max_size=3)),
        "tools": st.just([TOOL, {**TOOL, "name": "see"}]),
    },
)


@given(heads, turns(), turns(1))
@settings(max_examples=60)
def test_what_is_appended_leaves_all_earlier_ends_where_they_were(head: Json, first: list[Json], more: list[Json]):
    answer = {"role": "assistant", "content": "So."}
    tokens, ends = ends_of({**head, "messages": first})
    longer, later = ends_of({**head, "messages": [*first, answer, *more]})
    assert later[: len(ends)] == ends
    assert longer[: ends[-1]] == tokens[: ends[-1]]
    assert 0 < ends[-1] < len(tokens)


@given(heads, turns())
@settings(max_examples=40)
def test_texts_end_at_their_marks(head: Json, messages: list[Json]):
    body = {**head, "messages": messages}
    tokens, ends = ends_of(body)
    for segment, end in zip(segments.parse("anthropic", body).segments, ends, strict=True):
        if segment.kind == "text" and not (head.get("tools") and segment.level == "system"):
            assert TOKENIZER.decode(tokens[:end]).endswith(segment.text)


def talked(*messages: Json, **head: Any) -> list[Json]:
    return anthropic.talk(parsed({"messages": list(messages), **head})).messages


def test_neighbours_of_one_role_become_one_message():
    assert talked({"role": "user", "content": "a"}, {"role": "user", "content": "b"}) == [
        {"role": "user", "content": "a\nb"}
    ]


def test_a_compaction_stands_for_everything_before_it():
    block = {"type": "compaction", "content": "All was well."}
    old = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]
    kept = [{"role": "assistant", "content": [block, {"type": "text", "text": "d"}]}, {"role": "user", "content": "e"}]
    summed = talked(*old, *kept, system="s")
    assert summed == talked(*kept, system="s")
    assert [(m["role"], m["content"]) for m in summed] == [
        ("system", "s"),
        ("user", f"{SUMMARY}All was well."),
        ("assistant", "d"),
        ("user", "e"),
    ]
    # One that failed stands for nothing.
    failed = [
        {"role": "assistant", "content": [{"type": "compaction", "content": None}, {"type": "text", "text": "d"}]}
    ]
    assert talked(*old, *failed, kept[1])[0]["content"] == "a"


def test_thinking_is_handed_to_the_template_and_what_nobody_can_read_is_left_out():
    content = [
        {"type": "thinking", "thinking": "Hm.", "signature": "s"},
        {"type": "redacted_thinking", "data": "secret"},
        {"type": "text", "text": "Yes."},
    ]
    user = {"role": "user", "content": "a"}
    _, answer, _ = talked(user, {"role": "assistant", "content": content}, user)
    assert answer == {"role": "assistant", "content": "Yes.", "reasoning_content": "Hm."}
    talk = anthropic.talk(parsed({"messages": [user], "thinking": {"type": "disabled"}}))
    assert talk.options == {"enable_thinking": False}


def test_documents_and_search_results_are_read_as_text():
    document = {"type": "document", "source": {"type": "text", "media_type": "text/plain", "data": "D"}, "title": "T"}
    result = {"type": "search_result", "source": "url", "title": "S", "content": [{"type": "text", "text": "R"}]}
    assert talked({"role": "user", "content": [document, result]})[0]["content"] == "T\nD\nS\nurl\nR"
