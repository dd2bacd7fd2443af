"""A model that tries again, as long as nothing of the answer was seen."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator
from contextlib import aclosing

from longturn.conversation.models.contract import Answer, Delta, Model, ModelRequest
from longturn.conversation.window import Window
from longturn.errors import ProviderError

FIRST_WAIT = 0.5
LONGEST_WAIT = 30.0


class Retrying:
    """`model`, asked up to `attempts` times. wait: the first pause in seconds; it doubles, and yields to `retry-after`.

    The SDKs retry what fails before an answer begins; an overloaded provider also fails after it has said 200, and a
    second try is only sound while the reader has seen nothing. So it is done here, alike for all.
    """

    def __init__(self, model: Model, attempts: int = 4, wait: float = FIRST_WAIT) -> None:
        self._model = model
        self._attempts = attempts
        self._wait = wait
        self.name = model.name
        self.provider = model.provider
        self.url = model.url
        self.cache_seconds = model.cache_seconds

    async def stream(self, request: ModelRequest) -> AsyncGenerator[Delta | Answer]:
        """As `Model.stream`; an error is raised once it may not be retried, or was retried often enough."""
        for attempt in range(1, self._attempts + 1):
            begun = False
            try:
                async with aclosing(self._model.stream(request)) as pieces:
                    async for piece in pieces:
                        begun = True
                        yield piece
                return
            except ProviderError as error:
                if begun or not error.retryable or attempt == self._attempts:
                    raise
                pause = error.retry_after
            await asyncio.sleep(min(LONGEST_WAIT, pause if pause is not None else self._backoff(attempt)))

    async def window(self) -> Window | None:
        """As `Model.window`."""
        return await self._model.window()

    async def close(self) -> None:
        """Close the model."""
        await self._model.close()

    def _backoff(self, attempt: int) -> float:
        # Spread, so that clients that failed together do not come back together.
        return float(self._wait * 2 ** (attempt - 1) * random.uniform(0.75, 1.25))
