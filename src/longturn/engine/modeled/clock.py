"""Time that passes only when somebody says so."""

from __future__ import annotations


class VirtualClock:
    """Seconds since the start; call it to read it."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now

    def advance(self, seconds: float) -> None:
        """Let `seconds` pass."""
        self.now += seconds

    def until(self, time: float) -> None:
        """Let time pass up to `time`, if that is still to come."""
        self.now = max(self.now, time)
