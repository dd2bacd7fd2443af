"""The real opencode holds a conversation with tool calls on our server, over each wire that it speaks.

Once straight, and once through `longturn gateway`, whose ledger then has to say what the engine's own does.

The engine and its cache are real and the model is tiny; a script stands in for what it would say. `stress/opencode.py`
says how to get opencode.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from longturn.engine import EngineService
from longturn.ledger import RequestLine
from longturn.ledger.book import Book
from longturn.serve import create_app, in_background
from stress.opencode import CONTEXT, OPENCODE, PACKAGES, Script, opencode, said
from tests.serve.conftest import tiny_options
from tests.tiny_model import build_tiny_model

LONGTURN = str(Path(sys.executable).with_name("longturn"))
pytestmark = pytest.mark.skipif(OPENCODE is None, reason="needs opencode: stress/opencode.py says how to get it")


@pytest.fixture(scope="module")
def service(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineService]:
    folder = build_tiny_model(tmp_path_factory.mktemp("tiny"), layers=1, context=CONTEXT)
    service = EngineService.start(tiny_options(folder, device_tokens=3 * CONTEXT, host_bytes=0))
    service.built.engine.sampler = Script(service)
    yield service
    service.check_integrity()
    service.close()


@pytest.mark.parametrize("wire", PACKAGES)
def test_a_session_with_tool_calls(tmp_path: Path, service: EngineService, wire: str):
    with in_background(create_app(service), service) as url, opencode(tmp_path, url, wire) as talk:
        first = talk.say("hello")
        assert said(first) == "Hello."
        second = talk.say(f"READ {talk.project / 'notes.txt'}")
        assert "leaves at noon" in said(second)
        third = talk.say("thanks")
        assert said(third) == "Hello."
        assert talk.tools() == [("read", "completed")]
    fixed = first["info"]["tokens"]
    whole = fixed["input"] + fixed["cache"]["read"] + fixed["cache"]["write"]
    for reply in (second, third):
        # All of the turn before is found again, but for a few tokens at its end.
        assert reply["info"]["tokens"]["cache"]["read"] > 0.95 * whole


@contextmanager
def gateway(upstream: str, ledger: Path) -> Iterator[str]:
    """The program `longturn gateway`; gives its URL. When it has ended, its ledger is complete."""
    command = [LONGTURN, "gateway", "--port", "0", "--upstream", upstream, "--ledger", str(ledger)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            found = re.search(r"at (http://\S+),", process.stderr.readline())
            assert found is not None
            yield found[1]
        finally:
            process.terminate()
            process.communicate(timeout=30)


def counts(lines: Sequence[RequestLine]) -> list[tuple[int, dict[str, int], int, int]]:
    """What requests were, found and took; those of one turn are under way at once, so their order means nothing."""
    uses = [line.use for line in lines]
    return sorted((use.logical, dict(use.cached), use.computed, use.output) for use in uses)


@pytest.mark.parametrize("wire", PACKAGES)
def test_the_gateway_says_what_the_engine_does(tmp_path: Path, service: EngineService, wire: str):
    own: list[RequestLine] = []
    service.on_line(own.append)
    ledger = tmp_path / "gateway.db"
    with in_background(create_app(service), service) as url:
        with gateway(url, ledger) as through, opencode(tmp_path, through, wire) as talk:
            replies = [talk.say("hello"), talk.say(f"READ {talk.project / 'notes.txt'}"), talk.say("thanks")]
            # It stands in the system prompt from now on.
            (talk.project / "AGENTS.md").write_text("Be brief.\n")
            replies.append(talk.say("again"))
            httpx.delete(f"{url}/v1/cache/device").raise_for_status()
            replies.append(talk.say("and again"))
            assert [said(reply) for reply in replies[2:]] == ["Hello."] * 3
            assert "leaves at noon" in said(replies[1])
            assert talk.tools() == [("read", "completed")]
        report = [LONGTURN, "report", "--ledger", str(ledger), "--engine", url, "--json"]
        told: dict[str, Any] = json.loads(subprocess.check_output(report, text=True))
    with Book(f"sqlite:///{ledger}") as book:
        lines = list(book.lines())

    # A title, a step for each turn, and one more for the tool.
    assert len(lines) == 7
    assert counts(lines) == counts(own)
    assert {line.session for line in lines} == {talk.session}
    [engine] = told["engines"]
    assert engine["trouble"] is None
    assert (engine["logical"], engine["cached"]) == (engine["ledger_logical"], engine["ledger_cached"])
    assert told["all"]["requests"] == told["outcomes"]["complete"] == 7
    assert (told["without_usage"], told["drifting"]) == (0, 0)

    # The last request of each turn is the one whose usage opencode shows.
    shown = [reply["info"]["tokens"] for reply in replies]
    logical = [tokens["input"] + tokens["cache"]["read"] + tokens["cache"]["write"] for tokens in shown]
    turns = [line for size in logical for line in lines if line.use.logical == size]
    assert [line.use.logical for line in turns] == logical
    first, tool, thanks, edited, cleared = turns
    assert tool.miss is None
    assert thanks.miss is None
    assert tool.use.cached_total > 0.95 * first.use.logical
    assert thanks.use.cached_total > 0.95 * tool.use.logical
    assert edited.miss is not None
    assert re.fullmatch(r"diverged: .*; volatile_text at system\[0\], byte [\d,]+", edited.miss)
    assert cleared.miss is not None
    assert re.fullmatch(r"cleared: [\d,]+ tokens from token 0 on left device [\d.]+ s ago by hand", cleared.miss)
    causes = {cause["mechanism"]: cause for cause in told["causes"]}
    assert causes.keys() == {"volatile_text", "cleared"}
    assert causes["volatile_text"]["lost_tokens"] == thanks.use.logical - edited.use.cached_total
    assert causes["cleared"]["intentional"]
