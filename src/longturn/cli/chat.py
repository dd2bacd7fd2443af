"""`longturn chat`."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from longturn.cli.chat_models import Api
from longturn.cli.engine_options import takes_engine_options
from longturn.cli.sessions.opening import HistoryOption, opened
from longturn.errors import ConfigError

if TYPE_CHECKING:
    from longturn.engine import EngineOptions


@takes_engine_options
def chat(
    engine: EngineOptions,
    url: Annotated[
        str | None, typer.Option(help="Any server that speaks OpenAI's API; without it an engine is started here.")
    ] = None,
    api: Annotated[
        Api | None,
        typer.Option(help="Talk to a provider through its own SDK; --model names the model, --url another address."),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(envvar="LONGTURN_API_KEY", help="The key.", show_default="the provider's own variable"),
    ] = None,
    system: Annotated[str | None, typer.Option(help="The system message.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Most tokens of an answer.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 always takes the most likely token.")] = None,
    session: Annotated[
        str | None, typer.Option(help="Go on with this session: its id, the beginning of it, or `last`.")
    ] = None,
    root: Annotated[
        Path | None, typer.Option(help="Let the model read, list and search the files in this folder.", file_okay=False)
    ] = None,
    mcp: Annotated[
        list[str] | None, typer.Option(help="Offer the tools of an MCP server: NAME=COMMAND or NAME=URL.")
    ] = None,
    context_policy: Annotated[
        str, typer.Option(help="What is left out when the window is full: NAME or NAME:key=value,...")
    ] = "longturn",
    history: HistoryOption = None,
) -> None:
    """Talk with a model, and see after each turn what it cost.

    Everything is kept: --session goes on where a conversation was left, however long it is. With --root or --mcp the
    model has tools. From a pipe, each line is one message; answers go to stdout, all else to stderr.
    """
    from longturn.cli.chat_models import opened_model
    from longturn.cli.chat_servers import Servers
    from longturn.cli.chat_talk import HELP, Settings, Talk, note
    from longturn.cli.local_server import local_server
    from longturn.conversation.policies.registry import context_policy as named_policy

    policy = named_policy(context_policy)
    with ExitStack() as stack:
        if url is None and api is None:
            url, api_key = stack.enter_context(local_server(engine))
        kept = stack.enter_context(opened(history))
        runner = stack.enter_context(asyncio.Runner())
        model, window = stack.enter_context(opened_model(runner, engine, api, url, api_key, max_tokens))
        servers = stack.enter_context(Servers(runner, [_server(text) for text in mcp or ()]))
        interactive = sys.stdin.isatty()
        if interactive:
            note(f"{model.name}. {HELP}.")
        settings = Settings(policy, window, system, max_tokens, temperature, root, servers.tools)
        talk = Talk(runner, kept, model, settings, interactive=interactive)
        if session is not None:
            talk.resume(session)
        for text in _typed() if interactive else sys.stdin:
            if text.strip() == "/exit":
                break
            talk.take(text.strip())


def _server(text: str) -> tuple[str, str]:
    name, mark, where = text.partition("=")
    if not mark or not name or not where:
        raise ConfigError(f"--mcp {text!r} names no server: give NAME=COMMAND or NAME=URL")
    return name, where


def _typed() -> Iterator[str]:
    """What is typed at the prompt, until Ctrl-D."""
    import readline  # noqa: F401  (makes `input` editable)

    while True:
        try:
            yield input("\n> ")
        except EOFError:
            return
