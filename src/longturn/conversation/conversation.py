"""`Conversation`: one session as it goes on, with the view that all of its entries give."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence

from longturn.conversation.artifacts.store import Artifacts
from longturn.conversation.edits import ContextPolicy, Edit, Externalize
from longturn.conversation.entries import Edited, Said
from longturn.conversation.history import Sent, Session
from longturn.conversation.item import Item
from longturn.conversation.parts import Message, Part, Role, Text, ToolCall, ToolResult, Tools
from longturn.conversation.view.fold import View, fold
from longturn.conversation.view.items import tool_name
from longturn.conversation.view.render import Rendered, render
from longturn.conversation.window import Window
from longturn.ledger import RequestLine


class Conversation:
    """A session, its view, and what its policy makes of each message when it is born.

    Every method that writes is one transaction, and what it has returned is on disk. Raises HistoryError as the session
    does: SessionChanged when another process wrote to it, after which `refresh` shows what came.
    """

    def __init__(self, session: Session, policy: ContextPolicy, window: Window, artifacts: Artifacts) -> None:
        self.session = session
        self.policy = policy
        self.window = window
        self.artifacts = artifacts
        self.view, self.entries = self._read()

    def refresh(self) -> None:
        """Read what came since: after an undo, and after another process wrote."""
        self.view, self.entries = self._read()

    @property
    def rendered(self) -> Rendered:
        """What the next request sends."""
        return render(self.view)

    @property
    def sent(self) -> Sent:
        """What the history keeps of a request of the present view."""
        return Sent.of(self.entries, self.rendered.data)

    @property
    def unanswered(self) -> bool:
        """Whether the model has to say something: to the user, or to results of its calls, also those still waiting."""
        last = self._last
        return bool(self.view.waiting) or (last is not None and last.role != "assistant" and last.part >= 0)

    @property
    def unanswered_message(self) -> int | None:
        """The number of the user's message at the end of the view, None where there is none."""
        last = self._last
        return last.message if last is not None and last.role == "user" and last.part >= 0 else None

    @property
    def waiting(self) -> list[ToolCall]:
        """The calls at the end that have no results yet, in order."""
        parts = (self.view.messages[item.message].parts[item.part] for item in self.view.waiting.values())
        return [part for part in parts if isinstance(part, ToolCall)]

    def say(
        self,
        role: Role,
        *parts: Part,
        model: str | None = None,
        line: RequestLine | None = None,
        sent: Sent | None = None,
    ) -> Said:
        """Add a message, with the edits at birth that the policy wants; large results are artifacts before that."""
        request = line.request_id if line else None
        message = Message(uuid.uuid4().hex, role, parts, time.time(), model, request)
        view = fold([Said(self.entries, message)], onto=self.view)
        born: Sequence[Edit] = ()
        if any(isinstance(part, ToolResult) for part in parts):
            new = [item for item in view.items if item.message == self.entries]
            born = tuple(self.policy.born(self.view.items, new, self.window))
        if born:
            self._keep(message, born)
            view = fold([Said(self.entries, message, tuple(born))], onto=self.view)
        said = self.session.append(message, born, line, sent)
        self.view, self.entries = view, said.seq + 1
        return said

    def edit(
        self, edits: Sequence[Edit], reason: str, line: RequestLine | None = None, sent: Sent | None = None
    ) -> Edited:
        """Change what is sent from now on. Raises ConfigError for edits that do not fit the view."""
        view = fold([Edited(self.entries, tuple(edits), reason)], onto=self.view)
        edited = self.session.edit(edits, reason, line, sent)
        self.view, self.entries = view, edited.seq + 1
        return edited

    def undo(self, seq: int | None = None) -> Edited:
        """Take back edits: those of that number, or the latest. Raises ConfigError where later edits build on them."""
        edited = self.session.undo(seq, check=fold)
        self.refresh()
        return edited

    def offer(self, instructions: str | None, tools: Sequence[dict[str, object]]) -> None:
        """Begin with instructions and tools, or append what is new of them: nothing that was sent is rewritten.

        A new set of tools is offered from the next epoch on; that a tool is gone is said at once.
        """
        parts: list[Part] = []
        if instructions and instructions != self._instructions():
            parts.append(Text(instructions))
        known = self._tools()
        if list(known) != list(tools):
            parts.append(Tools(tuple(tools)))
            gone = sorted({tool_name(tool) for tool in known} - {tool_name(tool) for tool in tools})
            if gone:
                parts.append(Text(f"These tools are not available any more: {', '.join(gone)}.", synthetic=True))
        if parts:
            self.say("system", *parts)

    @property
    def _last(self) -> Item | None:
        return next((item for item in reversed(self.view.items) if item.role != "system"), None)

    def _read(self) -> tuple[View, int]:
        entries = self.session.entries()
        return fold(entries), self.session.next

    def _instructions(self) -> str | None:
        """The latest that were given."""
        for message in reversed(self.view.messages.values()):
            for part in message.parts if message.role == "system" else ():
                if isinstance(part, Text) and not part.synthetic:
                    return part.text
        return None

    def _tools(self) -> Sequence[dict[str, object]]:
        for message in reversed(self.view.messages.values()):
            for part in message.parts:
                if isinstance(part, Tools):
                    return part.definitions
        return ()

    def _keep(self, message: Message, born: Sequence[Edit]) -> None:
        """What a preview points at must be there before anything points at it."""
        for edit in born:
            if isinstance(edit, Externalize):
                part = message.parts[edit.part]
                if isinstance(part, ToolResult):
                    self.artifacts.put(part.text)
