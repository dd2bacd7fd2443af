"""`RequestLine`: the one line that the ledger keeps for every request."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from longturn.errors import LedgerError
from longturn.ledger.resources import Resources
from longturn.ledger.use import TokenUse


@dataclass(frozen=True, slots=True)
class RequestLine:
    """What one request was, used and took. Holds no content, only names, counts and times.

    request_id, session, model: names; `session` is None outside a conversation.
    started_at: unix seconds.
    ttft_ms, total_ms, queue_ms: milliseconds to the first token, to the end, and spent waiting; None when not known.
    finish_reason: as the dialect names it; None when the request did not finish.
    purpose: "turn" for the conversation itself, else what the request was for ("title", "summary", ...).
    miss: one short explanation of why a cached prefix was missed; None when nothing was missed.

    Raises LedgerError for an empty name and for a time that is not finite or, for durations, negative.
    """

    request_id: str
    session: str | None
    model: str
    started_at: float
    use: TokenUse
    resources: Resources = field(default_factory=Resources)
    ttft_ms: float | None = None
    total_ms: float | None = None
    queue_ms: float | None = None
    finish_reason: str | None = None
    purpose: str = "turn"
    miss: str | None = None

    def __post_init__(self) -> None:
        for name in ("request_id", "model", "purpose"):
            if not getattr(self, name):
                raise LedgerError(f"{name} is empty: every line of the ledger names it")
        if not math.isfinite(self.started_at):
            raise LedgerError(f"started_at is {self.started_at}: give unix seconds")
        for name in ("ttft_ms", "total_ms", "queue_ms"):
            duration = getattr(self, name)
            if duration is not None and not (math.isfinite(duration) and duration >= 0):
                raise LedgerError(f"{name} is {duration}: give milliseconds, 0 or more, or None")

    def to_dict(self) -> dict[str, Any]:
        """The line as the flat JSON object that answers carry in `usage.longturn`."""
        return {
            "request_id": self.request_id,
            "session": self.session,
            "model": self.model,
            "started_at": self.started_at,
            **self.use.to_dict(),
            "ttft_ms": self.ttft_ms,
            "total_ms": self.total_ms,
            "queue_ms": self.queue_ms,
            "finish_reason": self.finish_reason,
            "purpose": self.purpose,
            "miss": self.miss,
            "resources": self.resources.to_dict(),
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> RequestLine:
        """The inverse of `to_dict`; unknown keys are ignored. Raises LedgerError when it is no sound line."""
        try:
            # The counts lie flat among the other keys, so the same object is read as the line and as its use.
            return msgspec.convert({**data, "use": data}, cls)
        except msgspec.ValidationError as error:
            raise LedgerError(f"not a ledger line: {error}") from error
