"""Making room before a request: what the policy wants is done, with a model's help where that takes a summary."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator
from itertools import takewhile

import msgspec

from longturn.conversation.accounts import Accounts, Clock
from longturn.conversation.compaction.compact import Compaction, compact
from longturn.conversation.compaction.guards import check_fixed, worthwhile
from longturn.conversation.conversation import Conversation
from longturn.conversation.edits import Edit, NeedsSummary
from longturn.conversation.events import Changed, Summarising
from longturn.conversation.history import Sent
from longturn.conversation.models.contract import Answer, Model, ModelRequest, answer_of
from longturn.conversation.policies.none import NoContextPolicy
from longturn.conversation.policies.slide import SlidePolicy
from longturn.conversation.view.fold import fold
from longturn.conversation.view.render import BETWEEN, render

_JSON = msgspec.json.Encoder(order="sorted")


class Room:
    """What makes room in a conversation."""

    def __init__(self, conversation: Conversation, model: Model, accounts: Accounts) -> None:
        self._talk = conversation
        self._model = model
        self._accounts = accounts

    async def make(self, expected: int, like: ModelRequest) -> AsyncGenerator[Summarising | Changed]:
        """Do what is due at a size of `expected` tokens. like: the request to come.

        Raises ContextOverflow where no edit could ever be enough, and ProviderError where a summary was not to be had.
        """
        talk = self._talk
        check_fixed(talk.view.items, talk.window)
        before = talk.view.tokens
        decision = talk.policy.due(
            talk.view.items, expected, self._accounts.window.reported, talk.window, self._is_cold()
        )
        edits: list[Edit] = list(decision.edits)
        reasons = [decision.reason]
        if decision.summary is not None and worthwhile(talk.view.items, decision.summary, talk.window):
            yield Summarising(decision.reason)
            done = await self._summary(decision.summary, like)
            edits.append(done.edit)
            reasons += done.problems
        if edits:
            edited = talk.edit(edits, ". ".join(reasons))
            self._accounts.window.forget()
            yield Changed(edited, before, talk.view.tokens)

    def slide(self, expected: int) -> Changed | None:
        """The last resort, where a provider refuses what the policy would leave as it is: the older half goes.

        None where even that has nothing to drop, and for the policy `none`, which is asked for by who wants the error.
        """
        talk = self._talk
        if talk.policy.name == NoContextPolicy.name:
            return None
        before = talk.view.tokens
        decision = SlidePolicy().due(talk.view.items, expected, None, talk.window)
        if not decision.edits:
            return None
        edited = talk.edit(decision.edits, f"the provider refused it, and {talk.policy.name} found nothing to drop")
        self._accounts.window.forget()
        return Changed(edited, before, talk.view.tokens)

    async def _summary(self, need: NeedsSummary, like: ModelRequest) -> Compaction:
        async def ask(request: ModelRequest) -> Answer:
            clock = Clock()
            answer = await answer_of(self._model, request)
            line = self._accounts.line(answer, clock, "summary")
            self._talk.session.record(line, self._sent(request))
            return answer

        return await compact(self._talk.view, need, ask, self._talk.window, like)

    def _sent(self, request: ModelRequest) -> Sent | None:
        """What a request carried that is a view, perhaps without the newest message, and something behind it."""
        talk, rendered, entries = self._talk, self._talk.rendered, self._talk.entries
        pairs = zip(rendered.messages, request.messages, strict=False)
        count = sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
        if count < len(rendered.messages):
            entries = rendered.numbers[count]
            rendered = render(fold(talk.session.entries(entries)))
            if rendered.messages != list(request.messages[:count]):
                return None  # a part of the view, which no number of entries gives
        more = b"".join(_JSON.encode(message) + BETWEEN for message in request.messages[count:])
        return Sent.of(entries, rendered.data, more.decode())

    def _is_cold(self) -> bool:
        """Whether the provider's cache has certainly lost what was sent."""
        latest = max((message.time for message in self._talk.view.messages.values() if message.model), default=None)
        return latest is not None and time.time() - latest > self._model.cache_seconds
