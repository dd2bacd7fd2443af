"""Every exception that Longturn raises on purpose, in one tree.

    LongturnError
    ├── ConfigError            a setting that cannot work (sizes, folders, names)
    │   ├── ModelError         a model that cannot be found, loaded or served
    │   └── TraceError         a trace that cannot be read; names file and line
    ├── RequestError           a request that is refused; carries an HTTP status and OpenAI's `type`, `param`, `code`
    │   ├── PromptTooLong      prompt and output do not fit the model's context
    │   ├── UnknownModel       no model of that name is served here
    │   ├── QueueFull          too many requests are waiting; try again after `retry_after` seconds
    │   ├── EngineStopped      there is no engine to compute it: closed, or failed
    │   └── Refusal            refused by the HTTP layer itself (keys, routes, sizes)
    ├── LedgerError            counts that do not add up, or a book that cannot be read
    ├── HistoryError           a history or session that cannot be opened, read or written to
    │   ├── SessionChanged     somebody else appended to the session meanwhile; nothing was written
    │   └── ImportFailed       a file of sessions that cannot be read; names file and line
    ├── StoreError             a page store that cannot be opened or used
    ├── ArtifactError          a content that is not in the artifact store, or cannot be kept there
    ├── ProviderError          a model's API that fails or refuses; carries its status and whether to try again
    │   └── ContextOverflow    the request does not fit the model's context
    ├── ToolError              a tool that cannot be offered, or a call of it that is not allowed
    ├── NoToken                no token can be chosen for some rows of a batch
    │   ├── BadLogits          the model gave numbers that are none
    │   └── GrammarFailed      no token is known that fits an answer's grammar (a RequestError as well)
    └── CacheCorruption        an invariant of the cache is broken (a bug: report it)

A failing tier is never an exception on the way of a request: it is a miss. Each message says what to do next.
"""

from __future__ import annotations


class LongturnError(Exception):
    """Root of the tree."""


class ConfigError(LongturnError):
    """A setting that cannot work."""


class ModelError(ConfigError):
    """A model that cannot be found, loaded or served."""


class TraceError(ConfigError):
    """A trace file, or a line of it, that cannot be read."""


class RequestError(LongturnError):
    """A request that is refused before anything is computed.

    `status` is the HTTP status, `kind`, `param` and `code` are the fields of OpenAI's error object.
    """

    status = 400
    kind = "invalid_request_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.param = param
        self.code = code


class PromptTooLong(RequestError):
    """Prompt and requested output do not fit the model's context or the device pool."""

    def __init__(self, message: str, *, param: str | None = "messages") -> None:
        super().__init__(message, param=param, code="context_length_exceeded")


class UnknownModel(RequestError):
    """No model of that name is served here."""

    status = 404

    def __init__(self, message: str) -> None:
        super().__init__(message, param="model", code="model_not_found")


class QueueFull(RequestError):
    """Too many requests are waiting. `retry_after` is in whole seconds."""

    status = 429
    kind = "rate_limit_error"

    def __init__(self, message: str, *, retry_after: int) -> None:
        super().__init__(message, code="queue_full")
        self.retry_after = retry_after


class EngineStopped(RequestError):
    """The engine was closed or has failed; its log says why."""

    status = 503
    kind = "server_error"

    def __init__(self, message: str) -> None:
        super().__init__(message, code="engine_stopped")


class Refusal(RequestError):
    """A request that the HTTP layer itself refuses."""

    def __init__(self, status: int, message: str, code: str, *, kind: str = "invalid_request_error") -> None:
        super().__init__(message, code=code)
        self.status = status
        self.kind = kind


class LedgerError(LongturnError):
    """Counts that do not add up, or a book that cannot be read."""


class HistoryError(LongturnError):
    """A history or session that cannot be opened, read or written to."""


class SessionChanged(HistoryError):
    """Somebody else appended to the session since its entries were last read here; nothing was written."""


class ImportFailed(HistoryError):
    """A file of sessions, or a line of it, that cannot be read."""


class StoreError(LongturnError):
    """A page store that cannot be opened or used."""


class ArtifactError(LongturnError):
    """A content that is not in the artifact store, is damaged there, or cannot be kept."""


class ProviderError(LongturnError):
    """A model's API fails or refuses.

    status: of HTTP, None where there was none; retryable: whether the same request may well succeed later; retry_after:
    how long to wait, in seconds, where the API says so.
    """

    def __init__(
        self, message: str, *, status: int | None = None, retryable: bool = False, retry_after: float | None = None
    ) -> None:
        super().__init__(message)
        self.status = status
        self.retryable = retryable
        self.retry_after = retry_after


class ContextOverflow(ProviderError):
    """The request does not fit the model's context."""


class ToolError(LongturnError):
    """A tool that cannot be offered, or a call of it that is not allowed."""


class NoToken(LongturnError):
    """No token can be chosen for the batch's `rows`; no state has been touched."""

    def __init__(self, message: str, rows: list[int]) -> None:
        super().__init__(message)
        self.rows = rows


class BadLogits(NoToken):
    """The model gave NaN or infinite logits for `rows`."""

    def __init__(self, rows: list[int]) -> None:
        message = (
            f"The model gave NaN or infinite logits for batch row(s) {rows}. Check the weights, or use bfloat16 or "
            "float32: float16 overflows in some models."
        )
        super().__init__(message, rows)


class GrammarFailed(NoToken, RequestError):
    """The answers in `rows` cannot go on within their grammars, which their requests brought along."""

    def __init__(self, rows: list[int]) -> None:
        message = (
            "The answer cannot go on within its grammar: no token of this model fits, or it takes too long to tell. "
            "Simplify the grammar or schema."
        )
        super().__init__(message, rows)


class CacheCorruption(LongturnError):
    """An invariant of the cache is broken. This is a bug in Longturn: please report it with the message."""
