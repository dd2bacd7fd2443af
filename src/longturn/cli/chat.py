"""`longturn chat`."""

from __future__ import annotations

import sys
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing
from typing import TYPE_CHECKING, Annotated, Any

import typer

from longturn.cli.engine_options import takes_engine_options
from longturn.cli.errors import show_error
from longturn.errors import LongturnError

if TYPE_CHECKING:
    from longturn.cli.chat_client import ChatClient
    from longturn.engine import EngineOptions

HELP = "/reset begins a new conversation, /exit ends the program, Ctrl-C stops an answer"


@takes_engine_options
def chat(
    engine: EngineOptions,
    url: Annotated[
        str | None, typer.Option(help="Any server that speaks OpenAI's API; without it an engine is started here.")
    ] = None,
    api_key: Annotated[str | None, typer.Option(envvar="LONGTURN_API_KEY", help="The key for --url.")] = None,
    system: Annotated[str | None, typer.Option(help="The system message.")] = None,
    max_tokens: Annotated[int | None, typer.Option(help="Most tokens of an answer.")] = None,
    temperature: Annotated[float | None, typer.Option(help="0 always takes the most likely token.")] = None,
) -> None:
    """Talk with a model, and see after each turn what it cost.

    From a pipe, each line is one message; answers go to stdout, all else to stderr.
    """
    from longturn.cli.chat_client import ChatClient
    from longturn.cli.local_server import local_server

    with ExitStack() as stack:
        if url is None:
            url, api_key = stack.enter_context(local_server(engine))
        client = stack.enter_context(closing(ChatClient(url, api_key)))
        model, limit = client.served(engine.served_name or engine.model)
        settings = {"max_tokens": max_tokens, "temperature": temperature}
        given = {name: value for name, value in settings.items() if value is not None}
        interactive = sys.stdin.isatty()
        if interactive:
            _note(f"{model}. {HELP}.")
        conversation = Conversation(client, model, limit, system, given, interactive=interactive)
        for text in _typed() if interactive else sys.stdin:
            if text.strip() == "/exit":
                break
            conversation.take(text.strip())


class Conversation:
    """The messages so far and the meters over them. limit: the model's context, None where it is not known."""

    def __init__(
        self,
        client: ChatClient,
        model: str,
        limit: int | None,
        system: str | None,
        settings: dict[str, Any],
        *,
        interactive: bool,
    ) -> None:
        self._client = client
        self._model = model
        self._limit = limit
        self._system = system
        self._settings = settings
        self._interactive = interactive
        self.reset()

    def reset(self) -> None:
        """Begin anew: nothing said, nothing spent."""
        from longturn.cli.chat_meters import Meters

        self._session = uuid.uuid4().hex
        self._messages = [{"role": "system", "content": self._system}] if self._system else []
        self._meters = Meters(self._limit)

    def take(self, text: str) -> None:
        """A message or command of the user. What goes wrong ends the program only where nobody is there to react."""
        if text == "/help":
            _note(HELP)
        elif text == "/reset":
            self.reset()
        elif text:
            try:
                self._answer(text)
            except LongturnError as error:
                if not self._interactive:
                    raise
                show_error(str(error))

    def _answer(self, text: str) -> None:
        """Answer and remember both sides, or neither where there is no answer at all."""
        messages = [*self._messages, {"role": "user", "content": text}]
        pieces: list[str] = []
        note = "no usage was reported for this turn"
        try:
            with self._client.ask(self._model, messages, self._session, self._settings) as answer:
                for piece in answer:
                    pieces.append(piece)
                    typer.echo(piece, nl=False)
            if answer.line is not None:
                note = self._meters.add(answer.line)
        except KeyboardInterrupt:
            if not self._interactive:
                raise
            note = "stopped; what it cost is not counted here"
        finally:
            if pieces:
                typer.echo()
        if pieces:
            self._messages = [*messages, {"role": "assistant", "content": "".join(pieces)}]
        _note(note)


def _typed() -> Iterator[str]:
    """What is typed at the prompt, until Ctrl-D."""
    import readline  # noqa: F401  (makes `input` editable)

    while True:
        try:
            yield input("\n> ")
        except EOFError:
            return


def _note(text: str) -> None:
    typer.secho(text, dim=True, err=True)
