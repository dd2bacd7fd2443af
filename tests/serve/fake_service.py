"""An engine that plays back a script, for what the tiny model would never say or do."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from longturn.cache import CacheState
from longturn.engine import EngineState, ModelInfo, Output, Request, SamplingParams
from longturn.engine.loop import Counters
from longturn.ledger import RequestLine, TokenUse
from tests.tiny_model import build_tiny_tokenizer


def line(request: Request, reason: str = "stop", output: int = 1) -> RequestLine:
    use = TokenUse(logical=len(request.tokens), cached={}, computed=len(request.tokens), output=output)
    return RequestLine(request.id, request.session, "tiny", 1.0, use, ttft_ms=2.0, finish_reason=reason)


class FakeService:
    """Answers every request with the pieces of `script`, the last of which ends it for `reason`."""

    def __init__(
        self,
        script: Sequence[str] = (),
        reason: str | None = "stop",
        error: Exception | None = None,
        on_submit: Callable[[], None] = lambda: None,
    ) -> None:
        self.model = ModelInfo("tiny", 2048, 300, "", 0)
        self.tokenizer = build_tiny_tokenizer()
        self.alive = True
        self.error: Exception | None = None
        self.requests: list[Request] = []
        self.cancelled: list[str] = []
        self._script, self._reason, self._ending, self._on_submit = script, reason, error, on_submit

    def prepare(self, params: SamplingParams) -> None:
        pass

    def submit(self, request: Request) -> None:
        self._on_submit()
        self.requests.append(request)
        for number, text in enumerate(self._script):
            last = number == len(self._script) - 1 and self._reason is not None
            request.on_output(
                Output(
                    request.id,
                    text,
                    (number,),
                    finish_reason=self._reason if last else None,
                    error=self._ending if last else None,
                    line=line(request, self._reason or "", number + 1) if last else None,
                )
            )

    def cancel(self, request_id: str) -> None:
        self.cancelled.append(request_id)

    def state(self) -> EngineState:
        return EngineState(0, 0, CacheState("fake", (), ()), {}, Counters())

    def on_line(self, callback: object) -> None:
        pass

    def on_events(self, callback: object) -> None:
        pass

    def close(self) -> None:
        pass
