"""The line under each answer: what the turn cost, how full the window is, what has been spent."""

from __future__ import annotations

from longturn.ledger import RequestLine, Spent, Window


class Meters:
    """The two meters of one conversation.

    limit: the model's context, None where it is not known; reserved: tokens of it that are kept for the answer.
    """

    def __init__(self, limit: int | None, reserved: int = 0) -> None:
        self._window = Window(limit, reserved) if limit else None
        self._spent = Spent()

    def add(self, line: RequestLine) -> str:
        """Count one more request (mutates the meters) and say where they stand."""
        self._spent.add(line)
        use, spent = line.use, self._spent.use
        tiers = ", ".join(f"{tier} {n:,}" for tier, n in use.cached.items())
        parts = [
            f"logical {use.logical:,} = cached {use.cached_total:,}{f' ({tiers})' if tiers else ''}"
            f" + computed {use.computed:,}",
            f"output {use.output:,}",
        ]
        if line.ttft_ms is not None:
            parts.append(f"TTFT {line.ttft_ms:,.0f} ms")
        if self._window is not None:
            self._window.set(line)
            parts.append(f"window {self._window.fraction:.0%}")
        share = spent.cached_total / spent.logical if spent.logical else 0
        parts.append(f"spent {spent.logical:,} logical ({share:.0%} cached), {spent.output:,} output")
        return " · ".join(parts)
