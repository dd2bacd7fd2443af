"""One load for any server that speaks OpenAI's `/v1/completions`: Longturn, llama.cpp's server, vLLM.

    python bench/load.py --base-url http://127.0.0.1:8000 --model demo cold warm rounds decode --json out.json

Prompts are lists of random token ids, so that every engine gets the same tokens whatever its tokenizer. Times are
seconds as this client sees them. A request that fails is kept with its error, counted in every row that it belongs to,
and makes the exit status 1. Needs the longturn package, without any of its extras.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import platform
import random
import statistics
import sys
import time
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from longturn.lab.wire import Limit, Reply, client, send

Row = dict[str, Any]


class Server:
    """The server under load: `complete` sends one request, never raises, and keeps the reply in `replies`."""

    def __init__(self, client: httpx.AsyncClient, model: str, *, timeout_s: float, time_limit_s: float) -> None:
        self.replies: list[Reply] = []
        self._client, self._model = client, model
        self._timeout_s, self._time_limit_s, self._origin = timeout_s, time_limit_s, time.perf_counter()

    def _now(self) -> float:
        return time.perf_counter() - self._origin

    async def complete(self, prompt: list[int], max_tokens: int, **labels: Any) -> None:
        reply = Reply(labels, len(prompt))
        self.replies.append(reply)
        left_s = self._time_limit_s - self._now()
        in_time = left_s > self._timeout_s
        limit = Limit(self._timeout_s, f"--timeout {self._timeout_s:g} s") if in_time else Limit(left_s, "--time-limit")
        body = {
            "model": self._model,
            "prompt": prompt,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        await send(self._client, "/v1/completions", body, reply, self._now, limit)
        tokens = reply.output_tokens
        if reply.error is None and tokens is not None and tokens < max_tokens:
            reply.fail("short", f"{tokens} of {max_tokens} tokens: the server does not heed ignore_eos")


class Prompts:
    """Random token ids that depend on the seed and a key alone, so that another process draws the same ones."""

    def __init__(self, seed: int, ids: tuple[int, int]) -> None:
        self._seed, self._ids = seed, range(*ids)

    def draw(self, length: int, *key: object) -> list[int]:
        return random.Random(f"{self._seed}/{key}").choices(self._ids, k=length)


async def cold(server: Server, prompts: Prompts, args: argparse.Namespace) -> None:
    """Prompts that share nothing, one at a time."""
    for length in args.cold_lengths:
        for repeat in range(args.repeats):
            prompt = prompts.draw(length, "cold", length, repeat)
            await server.complete(prompt, 1, workload="cold", length=length, repeat=repeat)


async def warm(server: Server, prompts: Prompts, args: argparse.Namespace) -> None:
    """A history, then the same history with new tokens behind it."""
    for history in args.warm_lengths:
        for repeat in range(args.repeats):
            labels = {"workload": "warm", "history": history, "repeat": repeat}
            first = prompts.draw(history, "warm", history, repeat)
            second = first + prompts.draw(args.new_tokens, "warm", history, repeat, "second")
            if args.phase != "probe":
                await server.complete(first, 1, turn=1, **labels)
            if args.phase != "fill":
                await server.complete(second, 1, turn=2, reusable=history, **labels)


async def rounds(server: Server, prompts: Prompts, args: argparse.Namespace) -> None:
    """Conversations visited round-robin; each visit sends the prompt of the visit before and new tokens."""
    limit = asyncio.Semaphore(args.concurrency)

    async def visit(prompt: list[int], **labels: Any) -> None:
        async with limit:
            await server.complete(prompt, args.answer_tokens, workload="rounds", **labels)

    first = 2 if args.phase == "probe" else 1
    last = 1 if args.phase == "fill" else args.rounds
    for repeat in range(args.repeats):
        for number in range(first, last + 1):
            visits = []
            for conversation in range(args.conversations):
                key = ("rounds", repeat, conversation)
                prompt = prompts.draw(args.conversation_tokens, *key)
                for earlier in range(2, number + 1):
                    prompt += prompts.draw(args.round_tokens, *key, earlier)
                reusable = len(prompt) - args.round_tokens if number > 1 else 0
                labels = {"repeat": repeat, "round": number, "conversation": conversation, "reusable": reusable}
                visits.append(visit(prompt, **labels))
            await asyncio.gather(*visits)


async def decode(server: Server, prompts: Prompts, args: argparse.Namespace) -> None:
    """Batches of streams that start together."""
    for batch in args.batches:
        for repeat in range(args.repeats):
            labels = {"workload": "decode", "batch": batch, "repeat": repeat}
            drawn = [prompts.draw(args.context, "decode", batch, repeat, stream) for stream in range(batch)]
            await asyncio.gather(*(server.complete(prompt, args.output_tokens, **labels) for prompt in drawn))


def percentile(values: list[float], percent: float) -> float | None:
    """By linear interpolation; None of nothing."""
    if len(values) < 2:
        return values[0] if values else None
    return statistics.quantiles(values, n=1000, method="inclusive")[round(percent * 10) - 1]


def cached_share(replies: list[Reply]) -> float | None:
    """Cached over reusable tokens; None if nothing was reusable or a server does not report cached tokens."""
    reusable = sum(reply.labels["reusable"] for reply in replies)
    reported = [reply.cached_tokens for reply in replies if reply.cached_tokens is not None]
    return sum(reported) / reusable if reusable and len(reported) == len(replies) else None


def tokens_per_s(streams: list[Reply]) -> float | None:
    """Output tokens of all streams, from the first token of the stream that started last to the very last token.

    A server may put several tokens in a chunk or hold one back: chunks are scaled to the tokens that it reports.
    """
    if not streams or any(stream.error for stream in streams):
        return None
    start = max(stream.arrivals_s[0] for stream in streams)
    end = max(stream.arrivals_s[-1] for stream in streams)
    tokens = 0.0
    for stream in streams:
        chunks = len(stream.arrivals_s)
        inside = sum(arrival > start for arrival in stream.arrivals_s)
        tokens += inside * (stream.output_tokens or chunks) / chunks
    return tokens / (end - start) if end > start else None


def median(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def group(replies: list[Reply], *names: str) -> dict[tuple[Any, ...], list[Reply]]:
    """Replies by the values of these labels, in the order of their first appearance."""
    groups: dict[tuple[Any, ...], list[Reply]] = {}
    for reply in replies:
        groups.setdefault(tuple(reply.labels.get(name) for name in names), []).append(reply)
    return groups


def good(replies: list[Reply]) -> list[Reply]:
    return [reply for reply in replies if not reply.error]


def cold_rows(replies: list[Reply]) -> list[Row]:
    rows = []
    for (length,), sent in group(replies, "length").items():
        ttft = median(reply.ttft_s for reply in good(sent))
        row = {"tokens": length, "ttft_s": ttft, "tokens_per_s": length / ttft if ttft else None}
        row["cached_tokens"] = median(reply.cached_tokens for reply in good(sent))  # not 0: it was not cold
        rows.append(row | _counts(sent))
    return rows


def warm_rows(replies: list[Reply]) -> list[Row]:
    rows = []
    for (history,), sent in group(replies, "history").items():
        turns = group(good(sent), "turn", "repeat")
        ttft = {key: found[0].ttft_s for key, found in turns.items()}
        ratios = [ttft[2, repeat] / ttft[1, repeat] for turn, repeat in ttft if turn == 2 and (1, repeat) in ttft]
        row: Row = {"history": history}
        for name, number in (("cold_ttft_s", 1), ("warm_ttft_s", 2)):
            row[name] = median(seconds for (turn, _), seconds in ttft.items() if turn == number)
        row["warm_over_cold"] = median(ratios)
        row["cached_share"] = cached_share([reply for reply in good(sent) if reply.labels["turn"] == 2])
        rows.append(row | _counts(sent))
    return rows


def rounds_rows(replies: list[Reply]) -> list[Row]:
    """One row a round, repeats pooled, and one for every round from the second on."""
    by_round = {str(number): sent for (number,), sent in group(replies, "round").items()}
    later = [reply for reply in replies if reply.labels["round"] > 1]
    rows = []
    for name, sent in (by_round | ({"2+": later} if later else {})).items():
        ttft = [reply.ttft_s for reply in good(sent)]
        row = {"round": name, "ttft_p50_s": percentile(ttft, 50), "ttft_p95_s": percentile(ttft, 95)}
        rows.append(row | {"cached_share": cached_share(good(sent))} | _counts(sent))
    return rows


def decode_rows(replies: list[Reply]) -> list[Row]:
    rows = []
    for (batch,), sent in group(replies, "batch").items():
        gaps = [gap for reply in good(sent) for gap in reply.gaps_s]
        row = {"batch": batch, "tokens_per_s": median(map(tokens_per_s, group(sent, "repeat").values()))}
        row |= {"gap_p50_s": percentile(gaps, 50), "gap_p99_s": percentile(gaps, 99)}
        rows.append(row | _counts(sent))
    return rows


def _counts(sent: list[Reply]) -> Row:
    return {"requests": len(sent), "errors": sum(reply.error is not None for reply in sent)}


Workload = tuple[Callable[[Server, Prompts, argparse.Namespace], Awaitable[None]], Callable[[list[Reply]], list[Row]]]
WORKLOADS: dict[str, Workload] = {
    "cold": (cold, cold_rows),
    "warm": (warm, warm_rows),
    "rounds": (rounds, rounds_rows),
    "decode": (decode, decode_rows),
}


def report(replies: list[Reply], args: argparse.Namespace, facts: Row) -> Row:
    """All of a run as plain data: settings, facts about the machine, rows by workload, every request."""
    settings = {name: value for name, value in vars(args).items() if name != "json"}
    by_workload = {name: found for (name,), found in group(replies, "workload").items()}
    rows = {name: WORKLOADS[name][1](by_workload.get(name, [])) for name in args.workloads}
    errors = _counts(replies)["errors"]
    return {"settings": settings, **facts, "errors": errors, "rows": rows, "requests": [asdict(r) for r in replies]}


async def run(args: argparse.Namespace) -> Row:
    """Send the chosen workloads, one after the other, and return the report; an interrupted run reports what it has."""
    async with client(args.base_url) as open_client:
        server = Server(open_client, args.model, timeout_s=args.timeout, time_limit_s=args.time_limit)
        prompts = Prompts(args.seed, args.ids)
        facts: Row = {
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "machine": platform.machine(),
            "cpus": os.cpu_count(),
            "load_before": os.getloadavg(),
        }
        try:
            await server.complete(prompts.draw(16, "warmup"), 2, workload="warmup")
            for name in args.workloads:
                await WORKLOADS[name][0](server, prompts, args)
        except asyncio.CancelledError:
            facts["interrupted"] = True
        return report(server.replies, args, facts | {"load_after": os.getloadavg()})


def show(title: str, rows: list[Row]) -> None:
    """Print one table."""
    table = Table(*(rows[0] if rows else ["nothing was sent"]), title=title, title_justify="left", box=None)
    for row in rows:
        table.add_row(*("-" if v is None else f"{v:.4g}" if isinstance(v, float) else str(v) for v in row.values()))
    Console().print(table)


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    def numbers(text: str) -> list[int]:
        return [int(part) for part in text.split(",")]

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("workloads", nargs="+", choices=list(WORKLOADS), metavar="WORKLOAD", help=", ".join(WORKLOADS))
    add("--base-url", required=True, help="the server, with or without /v1")
    add("--model", required=True)
    add("--json", type=Path, help="write everything here, every request included")
    add("--repeats", type=int, default=3, help="figures are medians of this many (default 3)")
    add(
        "--seed", type=int, help="of the prompts; the default is the clock, so that nothing is warm from an earlier run"
    )
    add("--phase", choices=["fill", "probe"], help="warm and rounds: only the first turns, or only the later ones")
    add("--ids", type=int, nargs=2, default=(1000, 40000), metavar=("LOW", "HIGH"), help="token ids, HIGH excluded")
    add("--timeout", type=float, default=300, help="seconds for one request (default 300)")
    add("--time-limit", type=float, default=3600, help="seconds for the whole run (default 3600)")
    add("--cold-lengths", type=numbers, default=[512, 2048, 6000])
    add("--warm-lengths", type=numbers, default=[1000, 4000, 6000])
    add("--new-tokens", type=int, default=50, help="warm: tokens behind the history (default 50)")
    add("--conversations", type=int, default=16)
    add("--conversation-tokens", type=int, default=3000)
    add("--rounds", type=int, default=4)
    add("--round-tokens", type=int, default=64, help="rounds: new tokens of each visit (default 64)")
    add("--answer-tokens", type=int, default=1, help="rounds: tokens generated by each visit (default 1)")
    add("--concurrency", type=int, default=1, help="rounds: requests in flight (default 1)")
    add("--batches", type=numbers, default=[1, 4, 8])
    add("--context", type=int, default=1000, help="decode: prompt tokens of a stream (default 1000)")
    add("--output-tokens", type=int, default=64, help="decode: tokens generated by a stream (default 64)")
    args = parser.parse_args(argv)
    if args.phase and {"cold", "decode"} & set(args.workloads):
        parser.error("--phase is for warm and rounds: run cold and decode without it")
    if args.phase and args.seed is None:
        parser.error("--phase needs --seed, the same one for fill and probe")
    args.seed = int(time.time()) if args.seed is None else args.seed
    return args


def main(argv: list[str] | None = None) -> int:
    args = parse(argv)
    result = asyncio.run(run(args))
    for name, rows in result["rows"].items():
        show(name, rows)
    if args.json:
        args.json.write_text(json.dumps(result, indent=1) + "\n")
    for request in result["requests"]:
        if request["error"]:
            print(request["labels"], request["error"], file=sys.stderr)
    return 1 if result["errors"] or result.get("interrupted") else 0


if __name__ == "__main__":
    sys.exit(main())
