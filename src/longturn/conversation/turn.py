"""`Agent`: one turn, from the user's message to the final answer, on one screen."""

from __future__ import annotations

import uuid
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing

import msgspec

from longturn.conversation.accounts import Accounts, Clock
from longturn.conversation.conversation import Conversation
from longturn.conversation.edits import Withdraw
from longturn.conversation.events import Answered, Called, Changed, Event, Resulted, Summarising
from longturn.conversation.meters import Reading, Spent
from longturn.conversation.models.contract import Delta, Model, ModelRequest
from longturn.conversation.parts import Part, Text, ToolCall
from longturn.conversation.room import Room
from longturn.conversation.tools.contract import Toolbox
from longturn.errors import ContextOverflow

PRESSURE = 1.05
"""How full of the usable window a view is taken to be when a provider says that it does not fit."""


class Agent:
    """A conversation, a model and tools. Only one agent of a session may be at work.

    temperature: of every request, None leaves it to the provider; max_output: most tokens of an answer, None leaves
    that to the provider too.
    """

    def __init__(
        self,
        conversation: Conversation,
        model: Model,
        tools: Toolbox,
        *,
        temperature: float | None = None,
        max_output: int | None = None,
    ) -> None:
        self.conversation = conversation
        self.model = model
        self._accounts = Accounts(conversation, model)
        self._room = Room(conversation, model, self._accounts)
        self._tools = tools
        self._temperature = temperature
        self._max_output = max_output

    async def turn(self, text: str | None = None) -> AsyncGenerator[Event]:
        """The user says `text`; without it a turn goes on that was left before its end, by an error or a kill.

        Closing the generator stops the turn: what was seen of the answer is kept, and a message that got no answer at
        all is withdrawn. Raises ProviderError; the conversation can go on after it.
        """
        talk = self.conversation
        if text is not None:
            talk.say("user", Text(text))
        unfinished = talk.unanswered
        while unfinished:
            for call in talk.waiting:
                yield Called(call)
                result = await self._tools.run(call)
                talk.say("tool", result)
                yield Resulted(result)
            async with aclosing(self._request()) as events:
                async for event in events:
                    yield event
            unfinished = bool(talk.waiting)

    async def _request(self) -> AsyncGenerator[Event]:
        """Room, a request, and its answer. An overflow that the provider reports is recovered from once."""
        window = self._accounts.window
        seen: list[str] = []
        clock = Clock()
        try:
            async with aclosing(self._room.make(window.expected(self.conversation.view), self._like())) as changes:
                async for change in changes:
                    yield change
            try:
                async with aclosing(self._ask(clock, seen)) as pieces:
                    async for piece in pieces:
                        yield piece
            except ContextOverflow:
                before = self.conversation.entries
                async with aclosing(self.compact()) as changes:
                    async for change in changes:
                        yield change
                if self.conversation.entries == before and (slid := self._room.slide(self._pressed)) is not None:
                    yield slid
                if seen or self.conversation.entries == before:
                    raise
                async with aclosing(self._ask(clock, seen)) as pieces:
                    async for piece in pieces:
                        yield piece
        except BaseException:
            self._leave("".join(seen), clock)
            raise

    async def _ask(self, clock: Clock, seen: list[str]) -> AsyncGenerator[Delta | Answered]:
        """The stream, and the answer into the history before it is acknowledged. seen: its text so far."""
        talk, view, sent = self.conversation, self.conversation.view, self.conversation.sent
        async with aclosing(self.model.stream(self._like())) as pieces:
            async for piece in pieces:
                clock.tick()
                if isinstance(piece, Delta):
                    seen += [piece.text] if piece.kind == "text" else []
                    yield piece
                    continue
                line = self._accounts.line(piece, clock)
                if parts := self._with_new_ids(piece.parts):
                    talk.say("assistant", *parts, model=self.model.name, line=line, sent=sent)
                else:
                    talk.session.record(line, sent)
                seen.clear()
                if piece.use is not None:
                    known, epoch = len(talk.view.items), talk.view.epoch.number
                    self._accounts.window.learn(view.items, known, epoch, piece.use)
                yield Answered(piece, line, self.reading)

    async def compact(self) -> AsyncGenerator[Summarising | Changed]:
        """Make room now, as if the window were full; nothing happens where the policy finds nothing that could go."""
        async with aclosing(self._room.make(self._pressed, self._like())) as changes:
            async for change in changes:
                yield change

    @property
    def reading(self) -> Reading:
        """Where the window meter stands for the next request."""
        return self._accounts.window.reading(self.conversation.view)

    @property
    def spent(self) -> Spent:
        """What the session has taken, everything included."""
        return self._accounts.spent

    @property
    def _pressed(self) -> int:
        """A size at which every policy must make room."""
        return round(PRESSURE * self.conversation.window.usable)

    def _like(self) -> ModelRequest:
        rendered = self.conversation.rendered
        return ModelRequest(
            rendered.messages,
            rendered.tools,
            max_output=self._max_output,
            temperature=self._temperature,
            session=self.conversation.session.id,
            load=self.conversation.artifacts.get,
        )

    def _leave(self, text: str, clock: Clock) -> None:
        """A request ended without its answer: what was seen of it stays, and a message that nothing came of goes."""
        talk, line = self.conversation, self._accounts.line(None, clock)
        if text:
            talk.say("assistant", Text(text), model=self.model.name, line=line)
            return
        talk.session.record(line)
        if (number := talk.unanswered_message) is not None:
            talk.edit([Withdraw(number)], "the message got no answer")

    def _with_new_ids(self, parts: Sequence[Part]) -> tuple[Part, ...]:
        """The parts, with calls renamed whose id was used before: some servers count from 0 with every answer."""
        known = {item.call for item in self.conversation.view.items if item.kind == "call"}
        found: list[Part] = []
        for part in parts:
            if isinstance(part, ToolCall):
                if part.call in known:
                    part = msgspec.structs.replace(part, call=f"{part.call}_{uuid.uuid4().hex[:8]}")
                known.add(part.call)
            found.append(part)
        return tuple(found)
