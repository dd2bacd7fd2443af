"""The conversation of `longturn chat`: what is typed, what is answered, and the commands that begin with a slash."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from longturn.cli.chat_meters import Meters
from longturn.cli.chat_models import ChatWindow
from longturn.cli.chat_report import spent_report, view_report, window_report
from longturn.cli.errors import show_error
from longturn.conversation.events import Answered, Called, Changed, Event, Resulted, Summarising
from longturn.errors import ConfigError, LongturnError, SessionChanged
from longturn.ledger import NO_USE

if TYPE_CHECKING:
    from longturn.conversation.conversation import Conversation
    from longturn.conversation.edits import ContextPolicy
    from longturn.conversation.history import History, Session
    from longturn.conversation.models.contract import Model
    from longturn.conversation.tools.contract import Tool, Toolbox
    from longturn.conversation.turn import Agent
    from longturn.conversation.view.fold import View

HELP = (
    "/window and /spent show the meters, /view what is sent, /compact makes room, /undo takes back the latest edits, "
    "/fork goes on in a branch, /continue finishes a turn that was stopped, /reset begins a new conversation, "
    "/exit ends the program, Ctrl-C stops an answer"
)
TITLE = 60
ENDS = {"length": " · cut off at the limit of an answer", "refused": " · the provider refused to answer"}


@dataclass(frozen=True, slots=True)
class Settings:
    """What every conversation of a chat begins with. tools: of MCP servers."""

    policy: ContextPolicy
    window: ChatWindow
    system: str | None
    max_tokens: int | None
    temperature: float | None
    root: Path | None
    tools: list[Tool]


class Talk:
    """A conversation at a time. What goes wrong ends the program only where nobody is there to react."""

    def __init__(
        self, runner: asyncio.Runner, history: History, model: Model, settings: Settings, *, interactive: bool
    ) -> None:
        self._runner = runner
        self._history = history
        self._model = model
        self._settings = settings
        self._interactive = interactive
        self._agent: Agent | None = None
        self._open = False  # whether a line of an answer stands unfinished
        self.reset()

    def reset(self) -> None:
        """Begin anew: nothing said, nothing spent. The session is made with the first message."""
        self._agent = None
        self._meters = self._new_meters()

    def resume(self, name: str) -> None:
        """Go on with a session. Raises HistoryError for none of that name."""
        if name == "last":
            latest = self._history.sessions(limit=1)
            name = latest[0].id if latest else name
        self._begin(self._history.session(name))

    def take(self, text: str) -> None:
        """A message or command of the user."""
        try:
            command, _, rest = text.partition(" ")
            if command in self._commands:
                self._commands[command](rest.strip())
            elif text:
                self._answer(text)
        except LongturnError as error:
            if not self._interactive:
                raise
            show_error(str(error))
            if isinstance(error, SessionChanged) and self._agent is not None:
                self._agent.conversation.refresh()

    @property
    def _commands(self) -> dict[str, Callable[[str], None]]:
        return {
            "/help": lambda _: note(HELP),
            "/reset": lambda _: self.reset(),
            "/window": lambda _: note(window_report(self._begun().reading, known=self._settings.window.known)),
            "/spent": lambda _: note(spent_report(self._begun().spent)),
            "/view": lambda _: note(view_report(self._begun().conversation.view)),
            "/compact": lambda _: self._compact(),
            "/undo": self._undo,
            "/fork": self._fork,
            "/continue": lambda _: self._answer(None),
        }

    def _answer(self, text: str | None) -> None:
        """Answer, and say what it took."""
        if self._agent is None and text is not None:
            title = text if len(text) <= TITLE else text[: TITLE - 1] + "…"
            self._begin(self._history.create(title, self._model.name, self._settings.policy.name))
        agent = self._begun()
        if text is None and not agent.conversation.unanswered:
            raise ConfigError("the latest turn is finished: say something")
        self._watch(agent.turn(text))

    def _compact(self) -> None:
        agent = self._begun()
        before = agent.conversation.entries
        self._watch(agent.compact())
        if agent.conversation.entries == before:
            note(f"the policy {agent.conversation.policy.name} finds nothing that could go")

    def _undo(self, number: str) -> None:
        talk = self._begun().conversation
        edited = talk.undo(_number(number) if number else None)
        note(f"{edited.reason}; about {talk.view.tokens:,} tokens are sent now")

    def _fork(self, number: str) -> None:
        branch = self._begun().conversation.session.fork(_number(number) if number else None)
        self._begin(branch)

    def _begin(self, session: Session) -> None:
        from longturn.conversation.artifacts.place import artifacts_of
        from longturn.conversation.conversation import Conversation
        from longturn.conversation.turn import Agent

        settings = self._settings
        artifacts = artifacts_of(self._history)
        conversation = Conversation(session, settings.policy, settings.window.window, artifacts)
        box = self._toolbox(conversation)
        conversation.offer(settings.system, box.definitions)
        self._agent = Agent(
            conversation, self._model, box, temperature=settings.temperature, max_output=settings.max_tokens
        )
        self._meters = self._new_meters()
        for line in session.lines():
            self._meters.add(line)
        if self._interactive:
            note(f"session {session.id}")
            if conversation.unanswered:
                note("its latest turn was not finished: /continue goes on with it")

    def _toolbox(self, conversation: Conversation) -> Toolbox:
        """With a root or servers there are tools, and then also those over artifacts and history."""
        from longturn.conversation.artifacts.tools import Memory
        from longturn.conversation.tools.contract import Toolbox
        from longturn.conversation.tools.files import file_tools
        from longturn.conversation.tools.memory import memory_tools
        from longturn.conversation.tools.root import Root

        tools = list(self._settings.tools)
        if self._settings.root is not None:
            tools += file_tools(Root(self._settings.root))
        if tools:
            # A session object is for one thread, and these tools work in others: each reads for itself.
            entries = self._history.session(conversation.session.id).entries
            tools += memory_tools(Memory(conversation.artifacts, entries, lambda: _shown(conversation.view)))
        return Toolbox(tools)

    def _begun(self) -> Agent:
        if self._agent is None:
            raise ConfigError("nothing was said yet: say something first")
        return self._agent

    def _new_meters(self) -> Meters:
        window = self._settings.window.window
        return Meters(window.context if self._settings.window.known else None, window.context - window.usable)

    def _watch(self, running: AsyncGenerator[Event]) -> None:
        async def watch() -> None:
            async with aclosing(running) as events:
                async for event in events:
                    self._show(event)

        try:
            self._runner.run(watch())
        except KeyboardInterrupt:
            if not self._interactive:
                raise
            self._end_line()
            note("stopped; what it cost is not counted here")
        finally:
            self._end_line()

    def _show(self, event: Event) -> None:
        match event:
            case Answered(answer=answer, line=line):
                self._end_line()
                told = self._meters.add(line) if line.use != NO_USE else "no usage was reported for this turn"
                note(told + ENDS.get(answer.finish, ""))
            case Called(call=call):
                note(f"{call.tool} {call.arguments}")
            case Resulted(result=result):
                note(f"  {'failed: ' + result.text if result.error else f'{len(result.text):,} characters'}")
            case Summarising(reason=reason):
                note(f"{reason}: a summary is written")
            case Changed():
                note(f"{event.edited.reason}: about {event.before:,} tokens became {event.after:,}")
            case _:
                if event.kind == "text":
                    self._open = True
                    typer.echo(event.text, nl=False)

    def _end_line(self) -> None:
        if self._open:
            typer.echo()
            self._open = False


def _number(text: str) -> int:
    if not text.isdecimal():
        raise ConfigError(f"{text!r} is no number of an entry: `longturn sessions show` has them")
    return int(text)


def _shown(view: View) -> set[tuple[int, int]]:
    """What is sent whole."""
    return {item.at for item in view.items if item.shape == "whole"}


def note(text: str) -> None:
    """A line that is no part of the answer."""
    typer.secho(text, dim=True, err=True)
