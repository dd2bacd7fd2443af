"""`longturn demo`."""

from __future__ import annotations

import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from longturn.cli.demo_report import Turn

# Greedy, so that every run says the same; the penalty keeps a small model from repeating itself.
SETTINGS = {"temperature": 0, "max_tokens": 60, "frequency_penalty": 0.6}
_SHOWN = 70  # characters of a user's message


def demo(
    model: Annotated[str, typer.Option(help="A folder, a GGUF file, a hub id, or `demo`.")] = "demo",
    json: Annotated[bool, typer.Option("--json", help="Print one JSON object; progress goes to stderr.")] = False,
) -> None:
    """Hold a conversation, kill the server in the middle, and compare with the cache off."""
    import msgspec
    from rich.console import Console

    from longturn.cli.demo_report import summary, table, totals

    console = Console(stderr=json, highlight=False)
    with _unwinding(), tempfile.TemporaryDirectory(prefix="longturn-demo-") as folder:
        turns, plain = _both_runs(model, Path(folder), console)
    if json:
        report = {
            "model": model,
            "turns": [turn.to_dict() for turn in turns],
            "without_cache": [turn.to_dict() for turn in plain],
            "totals": totals(turns, plain),
        }
        typer.echo(msgspec.json.encode(report))
    else:
        console.print(table(turns, plain), summary(turns, plain))


def _both_runs(model: str, folder: Path, console: Console) -> tuple[list[Turn], list[Turn]]:
    """The conversation over a restart, then the same messages without a cache."""
    from longturn.cli.demo_script import QUESTIONS, RESTART_AFTER
    from longturn.cli.demo_server import running
    from longturn.engine.models import resolve

    turns: list[Turn] = []
    # Fetching a model may take minutes, and is better watched here than hidden in the server's log.
    resolve(model, progress=console.print)
    if model == "demo":
        console.print("The demo model has 135 million parameters: believe the counts, not the answers.", style="dim")
    _announce(console, "Starting a server; its disk tier is an empty folder.")
    with running(model, folder) as server:
        while len(turns) < RESTART_AFTER:
            turns.append(_turn(server.url, model, turns, console))
        tokens = server.wait_for_disk()
    _announce(console, f"The server was killed (SIGKILL) with {tokens:,} tokens on disk. Starting it again.")
    with running(model, folder) as server:
        while len(turns) < len(QUESTIONS):
            turns.append(_turn(server.url, model, turns, console, after_restart=len(turns) == RESTART_AFTER))
    _announce(console, "The same messages again, to a server with --no-cache.")
    with running(model, folder, cache=False) as server:
        plain = [_turn(server.url, model, turns[:n], console, quiet=True) for n in range(len(turns))]
    return turns, plain


def _turn(
    url: str, model: str, before: Sequence[Turn], console: Console, *, after_restart: bool = False, quiet: bool = False
) -> Turn:
    """Hold the turn that follows `before`. Raises LongturnError when it is not answered whole."""
    from longturn.cli.chat_client import ChatClient
    from longturn.cli.demo_report import Turn
    from longturn.cli.demo_script import QUESTIONS, SYSTEM
    from longturn.errors import LongturnError

    question = QUESTIONS[len(before)]
    messages = [{"role": "system", "content": SYSTEM}]
    for asked, turn in zip(QUESTIONS, before, strict=False):
        messages += [{"role": "user", "content": asked}, {"role": "assistant", "content": turn.answer}]
    messages.append({"role": "user", "content": question})
    pieces: list[str] = []

    def say(text: str, end: str = "\n", style: str | None = None) -> None:
        if not quiet:
            console.print(text, end=end, style=style, markup=False, soft_wrap=True)

    say(f"\nYou: {_shortened(question)}", style="cyan")
    with (
        closing(ChatClient(url)) as client,
        client.ask(model, messages, "demo", SETTINGS) as answer,
    ):
        for piece in answer:
            pieces.append(piece)
            say(piece, end="")
    say("")
    if answer.line is None:
        raise LongturnError("the server reported no usage")
    turn = Turn("".join(pieces), answer.line, after_restart)
    console.print(f"turn {len(before) + 1}: {turn}", style="dim", soft_wrap=True)
    return turn


def _shortened(text: str) -> str:
    """The first words, and the last ones, which hold the question."""
    words = " ".join(text.split())
    return words if len(words) <= 2 * _SHOWN else f"{words[:_SHOWN]} [...] {words[-_SHOWN:]}"


def _announce(console: Console, text: str) -> None:
    console.print(f"\n{text}", style="bold", soft_wrap=True)


@contextmanager
def _unwinding() -> Iterator[None]:
    """Let SIGTERM and a closed terminal end the program as Ctrl-C does: by way of every `finally`."""

    def leave(number: int, _: object) -> None:
        sys.exit(128 + number)

    # What `nohup` has had ignored stays ignored.
    numbers = [n for n in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(n) is not signal.SIG_IGN]
    kept = {number: signal.signal(number, leave) for number in numbers}
    try:
        yield
    finally:
        for number, handler in kept.items():
            signal.signal(number, handler)
