"""A request, what comes out of it, and its state while it is in the engine."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from longturn.cache import Hint, Tokens
from longturn.engine.sampling_params import SamplingParams
from longturn.ledger import RequestLine

if TYPE_CHECKING:
    from longturn.engine.sampling import Sampled


@dataclass(frozen=True, eq=False)
class Output:
    """New output of a request: `text` is final and fits `token_ids` only in sum (a character may take several tokens).

    The last one has a finish_reason ("stop", "length", "cancelled", "error") and the ledger's line; with "error" also
    the error. stop: the stop string or token id that ended it. cached: on outputs with a token, how many tokens of the
    prompt were found, by tier.
    """

    request_id: str
    text: str
    token_ids: Sequence[int]
    samples: Sequence[Sampled] = ()
    finish_reason: str | None = None
    stop: str | int | None = None
    error: Exception | None = None
    line: RequestLine | None = None
    cached: Mapping[str, int] | None = None


@dataclass(eq=False)
class Request:
    """What a client asks for. tokens: int32 [n], the prompt.

    salt: only requests of the same salt share KV; session: the conversation's name in the ledger; priority: higher goes
    first; hints: signals to the cache, acted upon at admission. on_output is called from the engine's thread.
    """

    tokens: Tokens
    params: SamplingParams
    on_output: Callable[[Output], None]
    salt: str = ""
    session: str | None = None
    priority: int = 0
    hints: Sequence[Hint] = ()
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    arrived_at: float = field(default_factory=time.time)
    arrived: float = field(default_factory=time.monotonic)
