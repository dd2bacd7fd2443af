"""How a trace is put to an engine that has a clock."""

from __future__ import annotations

from dataclasses import dataclass

from longturn.lab.replay.pace import Closed, Pace, Recorded
from longturn.lab.trace import Trace


@dataclass(frozen=True)
class Load:
    """How a trace is put to an engine, modelled or real.

    concurrency: sessions at a time, each turn after the last one's end and think time; None: arrivals as recorded.
    think: recorded think times are taken so many times, with a concurrency. scale: lengths become so much shorter.
    max_running, chunk_tokens: as in EngineOptions.
    """

    concurrency: int | None = None
    think: float = 1.0
    scale: int = 1
    max_running: int = 64
    chunk_tokens: int = 2048

    def pace(self, trace: Trace) -> Pace:
        """The arrivals of `trace`."""
        return Recorded(trace) if self.concurrency is None else Closed(trace, self.concurrency, self.think)

    def premises(self) -> list[str]:
        """What is to be said with every figure."""
        arrivals = "requests arrive as recorded, no turn before the one before it has ended"
        if self.concurrency is not None:
            known = {0.0: "no think times", 1.0: "think times as recorded"}
            pauses = known.get(self.think, f"{self.think:g} times the recorded think times")
            arrivals = f"{self.concurrency} sessions at a time, {pauses}"
        shorter = [f"all lengths are 1/{self.scale} of the trace's"] if self.scale > 1 else []
        limits = f"at most {self.max_running} requests run at once, in steps of at most {self.chunk_tokens:,} tokens"
        return [arrivals, limits, *shorter]
