"""What all routes share, and how they get at it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from fastapi import Depends, Request

from longturn.errors import UnknownModel
from longturn.serve.encoding import Encoding
from longturn.serve.keys import Keys
from longturn.serve.metrics import Metrics
from longturn.serve.wires import key_of

if TYPE_CHECKING:
    from longturn.engine import EngineService


@dataclass(frozen=True)
class Front:
    """One server: its engine, its keys, its metrics. body_limit: bytes of the largest request."""

    service: EngineService
    encoding: Encoding
    keys: Keys
    metrics: Metrics
    body_limit: int

    def check_model(self, name: str) -> None:
        """Raises UnknownModel unless `name` is the model that is served here."""
        served = self.service.model.name
        if name != served:
            raise UnknownModel(f"The model {name!r} is not served here: use {served!r}.")


async def _front(request: Request) -> Front:
    front: Front = request.app.state.front
    return front


FrontOf = Annotated[Front, Depends(_front)]
"""The server that a request came to."""


async def _salt(request: Request, front: FrontOf) -> str:
    return front.keys.salt(key_of(request.scope))


SaltOf = Annotated[str, Depends(_salt)]
"""The cache salt of the client. A route that asks for it is closed to clients without a key."""
