"""What a miss is put down to: the engine's word comes before what requests let guess."""

from __future__ import annotations

import asyncio
import copy
import json
from pathlib import Path
from typing import Any

import pytest

from longturn.explain.miss import Miss
from longturn.ledger import RequestLine, TokenUse
from tests.gateway.desk import FILLER, Desk, chat, counted
from tests.gateway.rig import Seen, answer_of, gateway, post, raw, upstream

FIRST = chat("Hello, who are you?")
LATER = chat("Hello, who are you?", "A model.", "Go on.")


def engine(prompt: int, cached: int = 0, miss: Miss | None = None, **fields: Any) -> dict[str, Any]:
    """Our own server's usage. fields: a provider's, beside the line."""
    use = TokenUse(prompt, {"device": cached}, prompt - cached, output=10)
    line = RequestLine("r", None, "tiny", 1.8e9, use, miss=str(miss) if miss else None)
    return {**counted(prompt, cached), **fields, "longturn": line.to_dict()}


@pytest.mark.parametrize(
    "miss",
    [
        Miss("evicted", 512, 1536, "host", 41.3, "chatcmpl-1"),
        Miss("expired", 512, 1536, "device", 4.0),
        Miss("damaged", 512, 1536, "disk"),
        Miss("below_page", 512, 9),
        Miss("salted_apart", 512, 1536),
        Miss("never_stored", 512, 1536),
    ],
)
def test_what_the_cache_has_lost_the_engine_knows(miss: Miss) -> None:
    desk = Desk()
    desk.tell(FIRST, engine(3000))
    line, entry = desk.tell(LATER, engine(3050, 512, miss))
    assert line.miss == str(miss)
    assert (entry.mechanism, entry.lost_tokens, entry.confidence) == (miss.cause, miss.tokens, 1.0)
    # It is explained, and so it is no drift; a guess would have been `routing`.
    assert (entry.expected, entry.drift, entry.segment) == (3000, None, None)


def test_it_knows_so_of_a_request_that_the_gateway_cannot_compare() -> None:
    miss = Miss("evicted", 0, 3000, "device", 5.0)
    for body in (FIRST, b"\xff"):
        _, entry = Desk().tell(body, engine(3050, 0, miss))
        assert (entry.mechanism, entry.lost_tokens, entry.expected) == ("evicted", 3000, None)


@pytest.mark.parametrize("miss", [Miss("cleared", 0, 3000, "device", 5.0), Miss("below_page", 2992, 8)])
def test_what_no_request_can_mend_is_counted_apart(miss: Miss) -> None:
    desk = Desk()
    desk.tell(FIRST, engine(3000))
    _, entry = desk.tell(LATER, engine(3050, miss.at, miss))
    assert (entry.mechanism, entry.intentional) == (miss.cause, True)


def test_what_the_engine_does_not_miss_is_not_missed() -> None:
    desk = Desk("anthropic")
    body = {"model": "tiny", "system": FILLER, "messages": [{"role": "user", "content": "Hello, who are you?"}]}
    counts = {"input_tokens": 3000, "output_tokens": 5}
    desk.tell(body, engine(3000, **counts))
    longer: dict[str, Any] = copy.deepcopy(body)
    longer["messages"] += [{"role": "assistant", "content": "A model."}, {"role": "user", "content": "Go on."}]
    # No marks, as far as a provider goes; the engine needs none.
    line, entry = desk.tell(longer, engine(3050, 2990, **counts))
    assert (line.miss, entry.mechanism, entry.expected, entry.drift) == (None, None, 3000, None)


def test_what_counts_as_written_is_no_second_copy_of_what_was_found() -> None:
    desk = Desk("anthropic")
    marked = [{"type": "text", "text": "Hello, who are you?", "cache_control": {"type": "ephemeral"}}]
    body = {"model": "tiny", "system": FILLER, "messages": [{"role": "user", "content": marked}]}
    usage = engine(3000, 1000, Miss("diverged", 1000, 500), input_tokens=9, cache_creation_input_tokens=2991)
    usage["longturn"]["written"] = 2991
    desk.tell(body, usage)
    longer: dict[str, Any] = copy.deepcopy(body)
    longer["messages"] += [{"role": "assistant", "content": "A model."}, {"role": "user", "content": marked}]
    _, entry = desk.tell(longer, engine(3050, 3000, input_tokens=9))
    assert (entry.mechanism, entry.expected, entry.drift) == (None, 3000, None)


@pytest.mark.parametrize("miss", [Miss("diverged", 40, 2960), Miss("never_stored", 8)])
def test_where_the_prompt_is_another_the_comparison_says_what_has_changed(miss: Miss) -> None:
    desk = Desk()
    desk.tell(chat("Hello, who are you?", system=f"It is 12:00:01. {FILLER}"), engine(3000))
    later = chat("Hello, who are you?", "A model.", "Go on.", system=f"It is 12:01:02. {FILLER}")
    line, entry = desk.tell(later, engine(3050, miss.at, miss))
    assert line.miss == f"{miss}; volatile_text at system[0], byte 10"
    assert (entry.mechanism, entry.lost_tokens) == ("volatile_text", 3000 - miss.at)


def test_a_text_that_only_grows_and_yet_is_other_tokens_is_the_engines_to_tell() -> None:
    desk = Desk()
    desk.tell(FIRST, engine(3000))
    line, entry = desk.tell(LATER, engine(3050, 2900, Miss("diverged", 2900, 110)))
    assert (entry.mechanism, entry.lost_tokens) == ("diverged", 110)
    assert line.miss == "diverged: an earlier prompt goes on differently from token 2,900 on, for 110 tokens"
    # Of an engine that was started anew it is only known that it has nothing.
    _, entry = desk.tell(
        chat("Hello, who are you?", "A model.", "Go on.", "I do."), engine(3090, 0, Miss("never_stored", 0))
    )
    assert (entry.mechanism, entry.lost_tokens) == ("never_stored", 3050)


def test_another_conversation_is_no_divergence_of_this_one() -> None:
    line, entry = Desk().tell(FIRST, engine(3000, 40, Miss("diverged", 40, 2000)))
    assert (entry.mechanism, entry.lost_tokens) == (None, 0)
    assert line.miss is not None
    assert line.miss.startswith("diverged: ")


@pytest.mark.parametrize(
    "line", [[], "x", {"miss": 5}, {"miss": "new_cause: 5 tokens"}, {"miss": {"cause": "evicted"}}]
)
def test_what_no_engine_of_ours_would_say_costs_nothing(line: Any) -> None:
    desk = Desk()
    desk.tell(FIRST, counted(3000))
    _, entry = desk.tell(LATER, {**counted(3050), "longturn": line})
    assert entry.mechanism in (None, "routing")


BODY: dict[str, Any] = {
    "model": "claude-sonnet-4-5",
    "system": [{"type": "text", "text": FILLER, "cache_control": {"type": "ephemeral"}}],
    "messages": [
        {"role": "user", "content": [{"type": "text", "text": FILLER, "cache_control": {"type": "ephemeral"}}]}
    ],
}
GROWN = {**BODY, "messages": [*BODY["messages"], {"role": "assistant", "content": "A."}, *BODY["messages"]]}
LEFT = {"input_tokens": 9, "cache_creation_input_tokens": 6000, "output_tokens": 5}


@pytest.mark.parametrize(
    ("betas", "found", "mechanism"),
    [
        ("a-2025,b-2026", 3000, "setting_changed"),
        ("b-2026", 3000, "setting_changed"),
        ("", 3000, "setting_changed"),
        # The same set, and a feature that is no part of the prompt.
        (" a-2025 ,a-2025", 3000, "routing"),
        ("b-2026", 6000, None),
    ],
)
def test_beta_features_are_part_of_what_is_cached(betas: str, found: int, mechanism: str | None) -> None:
    desk = Desk("anthropic", "anthropic")
    desk.tell(BODY, LEFT, betas="a-2025")
    usage = {"input_tokens": 9, "cache_read_input_tokens": found, "cache_creation_input_tokens": 6010 - found}
    line, entry = desk.tell(GROWN, usage, betas=betas, wait=20)
    assert entry.mechanism == mechanism
    assert entry.lost_tokens == 6000 - found
    if mechanism == "setting_changed":
        assert line.miss == "setting_changed at betas, byte " + str(entry.offset)


async def test_the_header_is_seen_on_its_way_through(tmp_path: Path) -> None:
    async def script(seen: Seen, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        usage = {**LEFT, "cache_read_input_tokens": 0}
        writer.write(answer_of(json.dumps({"type": "message", "model": "m", "usage": usage}).encode()))

    async with upstream(script) as server, gateway(tmp_path, server.url) as proxy:
        for body, betas in ((BODY, ["a-2025"]), (GROWN, ["a-2025", "b-2026"])):
            headers = ("x-api-key: k", "X-Session-Id: s", *(f"Anthropic-Beta: {beta}" for beta in betas))
            await raw(proxy.port, post("/v1/messages", body, *headers))
        _, entry = await proxy.settled(2)
    assert (entry.mechanism, entry.segment) == ("setting_changed", "betas")
