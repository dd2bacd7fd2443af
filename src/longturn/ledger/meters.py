"""Two meters that are never mixed: how full the window is now, and what the session has spent."""

from __future__ import annotations

from longturn.errors import LedgerError
from longturn.ledger.line import RequestLine
from longturn.ledger.use import NO_USE, TokenUse


class Window:
    """How full the model's context was at the latest request.

    limit: the model's context in tokens.
    reserved_output: tokens of it that are kept free for the answer.

    Raises LedgerError when the reserve leaves no room for a prompt.
    """

    def __init__(self, limit: int, reserved_output: int = 0) -> None:
        if not 0 <= reserved_output < limit:
            raise LedgerError(
                f"{reserved_output} tokens cannot be reserved in a window of {limit}: "
                "reserve 0 or more, and less than the window"
            )
        self.limit = limit
        self.reserved_output = reserved_output
        self.used = 0

    def set(self, line: RequestLine) -> None:
        """Show this request, in place of the one before. Give only requests that carry the conversation (no titles)."""
        self.used = line.use.logical + line.use.output

    @property
    def usable(self) -> int:
        """Tokens that a prompt may take."""
        return self.limit - self.reserved_output

    @property
    def fraction(self) -> float:
        """Used part of the usable window; over 1 when the next prompt no longer leaves the reserve."""
        return self.used / self.usable

    @property
    def raw_fraction(self) -> float:
        """Used part of the whole window."""
        return self.used / self.limit


class Spent:
    """The running sum over a session, every purpose included."""

    def __init__(self) -> None:
        self.use: TokenUse = NO_USE
        self.requests = 0

    def add(self, line: RequestLine) -> None:
        """Count one more request."""
        self.use += line.use
        self.requests += 1
