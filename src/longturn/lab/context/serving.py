"""A provider while it serves a replay: one cache per model, the same for all sessions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from longturn.conversation.item import Item
from longturn.lab.context.caches import PrefixCache
from longturn.lab.context.prompts import Chains, Prompt
from longturn.lab.context.providers import Provider
from longturn.lab.context.rates import Fitted
from longturn.lab.context.reasoning import as_sent
from longturn.ledger import TokenUse


@dataclass(slots=True)
class Serving:
    """Serves requests in the order of their times. fitted: what is known of the recorded clients."""

    provider: Provider
    fitted: Fitted
    _chains: Chains = field(default_factory=Chains)
    _caches: dict[str, PrefixCache] = field(default_factory=dict)
    _latest: dict[str, Prompt] = field(default_factory=dict)

    def serve(
        self, session: str, model: str, items: Sequence[Item], head: int, start: float, end: float, aside: bool = False
    ) -> TokenUse:
        """One request of a session: `items`, of which the first `head` are the fixed prefix. aside: it is none of the
        conversation's own, so that the next one is not compared with it. Mutates the cache; times in seconds."""
        prompt = self._chains.prompt(as_sent(items, model), head, self._latest.get(session))
        if not aside:
            self._latest[session] = prompt
        cache = self._caches.get(model)
        if cache is None:
            cache = self._caches[model] = self.provider.cache(self.provider.model_of(model))
        if self.fitted.shared and head:
            cache.keep(prompt, 1)
        return cache.serve(prompt, start, end, self.fitted.ttl(start))
