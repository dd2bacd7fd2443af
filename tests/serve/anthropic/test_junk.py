"""Whatever stands in whichever place of a request to /v1/messages: it is answered or refused, never a server error."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from longturn.serve import create_app, in_background
from tests.serve.fake_service import FakeService

MARK = {"type": "ephemeral"}
BODY: dict[str, Any] = {
    "model": "tiny",
    "max_tokens": 5,
    "system": [{"type": "text", "text": "s", "cache_control": MARK}],
    "tools": [{"name": "a", "description": "d", "input_schema": {"type": "object"}, "strict": False}],
    "tool_choice": {"type": "auto"},
    "thinking": {"type": "adaptive"},
    "stop_sequences": ["x"],
    "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {"type": "object"}}},
    "diagnostics": {"previous_message_id": "m"},
    "context_management": {
        "edits": [
            {"type": "clear_thinking_20251015", "keep": {"type": "thinking_turns", "value": 0}},
            {
                "type": "clear_tool_uses_20250919",
                "trigger": {"type": "input_tokens", "value": 10},
                "keep": {"type": "tool_uses", "value": 0},
                "clear_tool_inputs": ["a"],
            },
            {"type": "compact_20260112", "trigger": {"type": "input_tokens", "value": 600}},
        ]
    },
    "messages": [
        {
            "role": "assistant",
            "content": [
                {"type": "compaction", "content": "sum"},
                {"type": "thinking", "thinking": "t", "signature": "s"},
                {"type": "tool_use", "id": "1", "name": "a", "input": {"k": 1}},
            ],
        },
        {
            "role": "user",
            "content": [
                {"type": "tool_result", "tool_use_id": "1", "content": [{"type": "text", "text": "r"}]},
                {"type": "text", "text": "z", "cache_control": MARK},
            ],
        },
        {"role": "system", "content": "sys"},
        {"role": "assistant", "content": "begin"},
    ],
}
MISSING = object()
JUNK = [MISSING, None, -1, "x", [{}]]


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if at:
        yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in inner:
        yield from places(item, (*at, key))


@pytest.mark.parametrize("path", ["/v1/messages", "/v1/messages/count_tokens"])
def test_junk_is_answered_or_refused(path: str):
    fake = FakeService(["ok ", '<tool_call>{"name":"a","arguments":{}}</tool_call>'])
    with in_background(create_app(fake), fake) as url, httpx.Client(base_url=url, timeout=30) as http:
        assert http.post(path, json=BODY).status_code == 200
        for place in places(BODY):
            for junk in JUNK:
                body = copy.deepcopy(BODY)
                inside = body
                for key in place[:-1]:
                    inside = inside[key]
                if junk is MISSING:
                    del inside[place[-1]]
                else:
                    inside[place[-1]] = junk
                answer = http.post(path, json=body)
                assert answer.status_code in (200, 400, 404), (place, junk, answer.text)
                assert answer.status_code == 200 or len(answer.json()["error"]["message"]) > 15
