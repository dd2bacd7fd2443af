"""What each tier is worth: time to the first token cold, and from device, host and disk, on a real server in one run.

    .venv/bin/python bench/tiers.py [--repeats 5] [--json out.json]

Starts `longturn serve` with the demo model on loopback. Part one: histories of 6,000 random tokens; the second turn
adds 50 and is answered from the device, from host memory (device cleared) and from disk (server killed with SIGKILL and
started again). Part two: 16 conversations of 3,000 tokens, visited round-robin, on a device pool that holds four of
them; counts how many of the tokens that could be reused were. Times are this client's, medians over the repeats.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import httpx

HISTORY, NEW = 6000, 50
LONGTURN = Path(sys.executable).with_name("longturn")


class Server:
    """`longturn serve` in a process of its own."""

    def __init__(self, *options: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [str(LONGTURN), "serve", "--model", "demo", "--port", str(port), *options]
        self.process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{port}", timeout=300)
        while True:
            try:
                self.http.get("/health").raise_for_status()
                break
            except httpx.HTTPError:
                if self.process.poll() is not None:
                    raise SystemExit("the server did not start: run `longturn serve --model demo` to see why") from None
                time.sleep(0.2)
        self.ask([1] * 64)

    def ask(self, tokens: list[int], max_tokens: int = 1) -> tuple[float, dict[str, Any]]:
        """Seconds to the first token, and the ledger's line."""
        body = {
            "model": "demo",
            "prompt": tokens,
            "max_tokens": max_tokens,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        began, first, line = time.perf_counter(), None, {}
        with self.http.stream("POST", "/v1/completions", json=body) as response:
            response.raise_for_status()
            for row in response.iter_lines():
                if not row.startswith("data: {"):
                    continue
                first = first or time.perf_counter() - began
                event = json.loads(row[6:])
                if event.get("usage"):
                    line = event["usage"]["longturn"]
        assert first is not None
        return first, line

    def settle(self) -> None:
        """Wait until the disk tier has stopped growing and its files are written, as a person's next turn would."""
        used = -1
        while used != (now := self.tier("disk")):
            used = now
            time.sleep(0.5)
        os.sync()

    def tier(self, name: str) -> int:
        """Tokens in a tier."""
        tiers = self.http.get("/v1/cache").json()["tiers"]
        return next(int(tier["used"]) for tier in tiers if tier["name"] == name)

    def kill(self, how: int = signal.SIGTERM) -> None:
        """End the process by its pid."""
        self.process.send_signal(how)
        self.process.wait(30)


def tokens(rng: random.Random, n: int) -> list[int]:
    """Random token ids of the demo model's vocabulary."""
    return [rng.randrange(1000, 40000) for _ in range(n)]


def by_tier(rng: random.Random, repeats: int, folder: str) -> dict[str, Any]:
    """Part one."""
    options = ("--device-tokens", str((HISTORY + 200) * (repeats + 1)), "--host-bytes", "2GiB", "--disk-dir", folder)
    histories = [tokens(rng, HISTORY) for _ in range(repeats)]
    seconds: dict[str, list[float]] = {name: [] for name in ("cold", "device", "host", "disk")}

    def probe(server: Server, tier: str, history: list[int]) -> None:
        first, line = server.ask(history + tokens(rng, NEW))
        served = line["cached"].get(tier, 0)
        if served < HISTORY - 32:
            raise SystemExit(f"only {served} of {HISTORY} tokens came from {tier}: {line['cached']}")
        seconds[tier].append(first)

    server = Server(*options)
    for history in histories:
        seconds["cold"].append(server.ask(history)[0])
        server.settle()
        probe(server, "device", history)
    server.settle()
    server.http.delete("/v1/cache/device").raise_for_status()
    for history in histories:
        probe(server, "host", history)
    server.settle()
    server.kill(signal.SIGKILL)
    server = Server(*options)
    for history in histories:
        probe(server, "disk", history)
    server.kill()
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    return {
        "ttft_ms": {name: round(value * 1e3, 1) for name, value in medians.items()},
        "cold_over": {name: round(medians["cold"] / value, 1) for name, value in medians.items() if name != "cold"},
    }


def round_robin(rng: random.Random, folder: str, conversations: int = 16, rounds: int = 3) -> dict[str, Any]:
    """Part two."""
    length, new = 3000, 64
    server = Server("--device-tokens", str(4 * (length + 200)), "--host-bytes", "2GiB", "--disk-dir", folder)
    prompts = [tokens(rng, length) for _ in range(conversations)]
    reusable = reused = 0
    warm: list[float] = []
    cold: list[float] = []
    for turn in range(rounds):
        for i, prompt in enumerate(prompts):
            first, line = server.ask(prompt)
            if turn:
                reusable += len(prompt) - new
                reused += sum(line["cached"].values())
                warm.append(first)
            else:
                cold.append(first)
            prompts[i] = prompt + tokens(rng, new)
    server.kill()
    return {
        "share_of_reusable_from_cache": round(reused / reusable, 4),
        "cold_ttft_ms_p50": round(statistics.median(cold) * 1e3, 1),
        "later_ttft_ms_p50": round(statistics.median(warm) * 1e3, 1),
    }


def main() -> None:
    """Run both parts, print and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    rng = random.Random(args.seed)
    with tempfile.TemporaryDirectory() as one, tempfile.TemporaryDirectory() as two:
        result = {
            "load_before": os.getloadavg()[0],
            "second_turn_over_6000": by_tier(rng, args.repeats, one),
            "round_robin_16_on_4": round_robin(rng, two),
        }
    print(json.dumps(result, indent=2))
    if args.json:
        args.json.write_text(json.dumps(result, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
