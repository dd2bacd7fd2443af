"""What a person sees of it: the two commands, from the shell."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import signal
import sqlite3
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from longturn.cli import app
from longturn.dialects.engines import ENGINES
from longturn.gateway.report import report
from longturn.ledger import RequestLine, TokenUse
from tests.gateway.rig import Gateway, Seen, answer_of, gateway, post, raw, upstream

PROGRAM = [sys.executable, "-c", "from longturn.cli import app; app()"]
FILLER = "All work and no play makes Jack a dull boy. " * 400
ENGINES_WITH_METRICS = ("vllm", "sglang", "trtllm", "tgi", "lmdeploy", "lightllm", "llamacpp", "longturn")


def body(clock: str, *said: str, **more: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    messages = [{"role": roles[i % 2], "content": text} for i, text in enumerate(said)]
    return {"model": "gpt-5.1", "messages": [{"role": "system", "content": f"{clock} {FILLER}"}, *messages], **more}


async def answers(seen: Seen, _: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    usage = {"prompt_tokens": 4000, "completion_tokens": 20, "prompt_tokens_details": {"cached_tokens": 0}}
    choices = [{"index": 0, "message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}]
    answer = {"model": "gpt-5.1", "choices": choices, "usage": usage}
    writer.write(answer_of(json.dumps(answer).encode(), "Content-Type: application/json"))


def shown(*arguments: str) -> str:
    result = CliRunner().invoke(app, ["report", *arguments], env={"COLUMNS": "120"})
    assert result.exit_code == 0, result.output
    return result.output


def told(*arguments: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(shown("--json", *arguments))
    return found


@contextlib.asynccontextmanager
async def started(folder: Path, *arguments: str) -> AsyncIterator[tuple[Gateway, asyncio.subprocess.Process]]:
    """`longturn gateway` as a process."""
    ledger = folder / "book.db"
    process = await asyncio.create_subprocess_exec(
        *PROGRAM, "gateway", "--port", "0", "--ledger", str(ledger), *arguments, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    try:
        line = (await asyncio.wait_for(process.stderr.readline(), 60)).decode()
        url = re.search(r"(http://\S+),", line)
        assert url, line
        yield Gateway(url[1], f"sqlite:///{ledger}"), process
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.terminate()
        await process.wait()


async def test_from_the_first_request_to_the_report(tmp_path: Path) -> None:
    async with (
        upstream(answers) as server,
        started(tmp_path, "--upstream", server.url, "--prices", "openai") as (proxy, process),
    ):
        key = "Authorization: Bearer sk-secret"
        await raw(proxy.port, post("/v1/chat/completions", body("12:00:01", "Hello, Jack."), key))
        await raw(proxy.port, post("/v1/chat/completions", body("12:00:07", "Hello, Jack.", "Yes.", "So?"), key))
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 20) == 0
    ledger = str(tmp_path / "book.db")
    found = told("--ledger", ledger)
    assert found["all"]["requests"] == 2
    assert found["all"]["use"]["logical"] == 8000
    (cause,) = found["causes"]
    assert (cause["mechanism"], cause["misses"], cause["lost_tokens"]) == ("volatile_text", 1, 4000)
    assert cause["lost_usd"] == pytest.approx(4000 * 1.125e-6)
    assert [part["requests"] for part in found["sessions"]] == [2]
    assert [part["name"] for part in found["models"]] == ["openai:gpt-5.1"]
    text = shown("--ledger", ledger)
    assert "volatile_text" in text
    assert "openai:gpt-5.1" in text
    assert told("--ledger", ledger, "--since", "1h")["all"]["requests"] == 2
    # Neither key nor content is anywhere in the files.
    kept = b"".join(path.read_bytes() for path in tmp_path.iterdir())
    assert b"sk-secret" not in kept
    assert b"dull boy" not in kept
    assert b"12:00:01" not in kept


async def test_a_gateway_that_is_stopped_ends_what_hangs(tmp_path: Path) -> None:
    async def hangs(_: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 99\r\n\r\ndata:")
        await reader.read(1)

    async with upstream(hangs) as server, started(tmp_path, "--upstream", server.url) as (proxy, process):
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(post("/v1/messages", {"model": "m"}))
        await reader.readuntil(b"data:")
        process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), 30) == 0
        assert await reader.read() == b""
        writer.close()
    (entry,) = proxy.entries()
    assert entry.outcome == "stopped"


async def test_a_gateway_that_is_killed_has_written_what_was_over(tmp_path: Path) -> None:
    async with upstream(answers) as server, started(tmp_path, "--upstream", server.url) as (proxy, process):
        for number in range(20):
            await raw(proxy.port, post("/v1/chat/completions", body(str(number), "Hi.")))
        await asyncio.sleep(0.1)  # the latest are told together, a moment later
        process.kill()
        await process.wait()
        # The accountant reads what is left in the pipe, writes it and ends.
        assert len(await proxy.settled(20)) == 20
        assert len(await proxy.settled_lines(20)) == 20


async def test_a_gateway_that_is_killed_leaves_a_line_of_what_was_not_over(tmp_path: Path) -> None:
    async def hangs(_: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nContent-Length: 99\r\n\r\ndata:")
        await reader.read(1)

    async with upstream(hangs) as server, started(tmp_path, "--upstream", server.url) as (proxy, process):
        reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
        writer.write(post("/v1/chat/completions", body("1", "Hi.")))
        await reader.readuntil(b"data:")
        await asyncio.sleep(0.1)  # the latest are told together, a moment later
        process.kill()
        await process.wait()
        (entry,) = await proxy.settled(1)
        writer.close()
    assert (entry.outcome, entry.status, entry.ended) == ("abandoned", 200, False)


async def test_what_has_no_price_is_not_shown_as_free(tmp_path: Path) -> None:
    async with upstream(answers) as server, started(tmp_path, "--upstream", server.url) as (proxy, process):
        await raw(proxy.port, post("/v1/chat/completions", body("12:00:01", "Hello, Jack.")))
        await raw(proxy.port, post("/v1/chat/completions", body("12:00:07", "Hello, Jack.", "Yes.", "So?")))
        await raw(proxy.port, post("/v1/chat/completions", {"model": "gpt-5.1", "messages": [], "stream": True}))
        process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.wait(), 20) == 0
    ledger = str(tmp_path / "book.db")
    (cause,) = told("--ledger", ledger)["causes"]
    assert (cause["lost_usd"], cause["unpriced"]) == (0.0, 1)
    rows = [line for line in shown("--ledger", ledger).splitlines() if re.search(r" (volatile_text|gpt-5.1) ", line)]
    assert len(rows) == 2
    assert all("?" in row and "$" not in row for row in rows), rows


async def test_what_came_without_usage_is_not_shown_as_free(tmp_path: Path) -> None:
    async def silent(_: Seen, __: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        choices = [{"index": 0, "message": {"role": "assistant", "content": "Yes."}, "finish_reason": "stop"}]
        answer = json.dumps({"model": "gpt-5.1", "choices": choices}).encode()
        writer.write(answer_of(answer, "Content-Type: application/json"))

    async with upstream(silent) as server, gateway(tmp_path, server.url, prices="openai") as proxy:
        await raw(proxy.port, post("/v1/chat/completions", body("1", "Hi."), "X-Session-Id: quiet"))
        await proxy.settled(1)
        await proxy.settled_lines(1)
    ledger = str(tmp_path / "gateway.db")
    found = await asyncio.to_thread(told, "--ledger", ledger)
    assert (found["without_usage"], found["sessions"][0]["without_usage"]) == (1, 1)
    text = await asyncio.to_thread(shown, "--ledger", ledger)
    assert "?" in text
    assert "$" not in text


async def test_an_accountant_that_is_killed_is_replaced(tmp_path: Path) -> None:
    async with upstream(answers) as server, started(tmp_path, "--upstream", server.url) as (proxy, process):
        await raw(proxy.port, post("/v1/chat/completions", body("1", "Hi.")))
        await proxy.settled(1)
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        os.kill(int(children[0]), signal.SIGKILL)
        answer = await raw(proxy.port, post("/v1/chat/completions", body("2", "Hi.")))
        assert answer.startswith(b"HTTP/1.1 200 ")
        for number in range(60):
            await raw(proxy.port, post("/v1/chat/completions", body(str(number), "Hi.")))
            if len(proxy.entries()) > 1:
                break
            await asyncio.sleep(0.2)
        assert len(proxy.entries()) > 1


async def test_budgets_hold_across_restarts(tmp_path: Path) -> None:
    request = post("/v1/chat/completions", body("1", "Hi."), "Authorization: Bearer sk-a")
    async with upstream(answers) as server:
        for _ in range(2):
            async with gateway(tmp_path, server.url, budget="0.008/day", prices="openai") as proxy:
                for _ in range(3):
                    answer = await raw(proxy.port, request)
                    await proxy.settled(len(server.seen))
                    await asyncio.sleep(0.1)
                other = await raw(proxy.port, request.replace(b"sk-a", b"sk-%d" % len(server.seen)))
                assert other.startswith(b"HTTP/1.1 200 ")
    # Each costs 0.0052 dollars: the third was refused, and all of the second run.
    assert answer.startswith(b"HTTP/1.1 429 ")
    assert b"x-should-retry: false" in answer
    assert b"budget of today" in answer
    assert len(server.seen) == 2 + 2


@pytest.mark.parametrize("name", ENGINES_WITH_METRICS)
async def test_engines_counters_are_compared(name: str, tmp_path: Path) -> None:
    engine = ENGINES[name]
    counts = {"logical": 10_000, "cached": 500}

    def page() -> str:
        values: dict[str, int] = {}
        shown = {"computed": counts["logical"] - counts["cached"], **counts}
        for meaning in ("logical", "cached", "computed"):
            values |= dict.fromkeys(next(iter(getattr(engine, meaning)), ()), shown[meaning])
        return "".join(f'{key}{{model_name="m"}} {n}\n' for key, n in values.items())

    async def script(seen: Seen, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        counts["logical"] += 4000
        await answers(seen, reader, writer)

    async with upstream(script, page) as server:
        async with gateway(tmp_path, server.url) as proxy:
            for _ in range(2):
                await raw(proxy.port, post("/v1/chat/completions", body("1", "Hi.")))
            await proxy.settled(2)
        counts["logical"] += 7  # somebody else's request
        ledger = str(tmp_path / "gateway.db")
        (found,) = (await asyncio.to_thread(told, "--ledger", ledger, "--engine", server.url))["engines"]
        assert (found["engine"], found["ledger_logical"], found["ledger_cached"]) == (name, 8000, 0)
        assert found["logical"] == 8007
        assert found["cached"] == (0 if engine.cached else None)
        text = await asyncio.to_thread(shown, "--ledger", ledger, "--engine", server.url)
        assert "difference +7" in text
        counts["logical"] = 3
        (found,) = (await asyncio.to_thread(told, "--ledger", ledger, "--engine", server.url))["engines"]
        assert "anew" in found["trouble"]


def test_lines_of_others_are_reported_too() -> None:
    use = TokenUse(1000, {"device": 900}, 100, output=10)
    lines = [RequestLine(str(number), "s", "demo", 1.0, use) for number in range(3)]
    found = report(lines, [])
    assert (found.all.requests, found.all.unpriced, found.keys, found.outcomes) == (3, 3, [], {})
    assert found.sessions[0].use.cached_total == 2700


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["report", "--ledger", "nowhere.db"], "there is no ledger"),
        (["gateway", "--upstream", "localhost:80"], "is no server"),
        (["gateway", "--upstream", "ftp://x"], "is no server"),
        (["gateway", "--budget", "much"], "is no budget"),
        (["gateway", "--budget", "k=5/week"], "is no budget"),
        (["gateway", "--port", "99999"], "does not exist"),
    ],
)
def test_what_cannot_work_is_said_in_a_line(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 1
    assert message in result.output
    assert len(result.output.strip().splitlines()) == 1


def test_a_book_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "other.db"
    with contextlib.closing(sqlite3.connect(path)) as other:
        other.execute("create table theirs (x)")
        other.commit()
    for command in (["report"], ["gateway", "--port", "0"]):
        result = CliRunner().invoke(app, [*command, "--ledger", str(path)])
        assert result.exit_code == 1
        assert "not a Longturn book" in result.output
