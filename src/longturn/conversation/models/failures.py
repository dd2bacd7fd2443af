"""Errors of providers: which say that the request is too long, and which may be tried again."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from longturn.errors import ContextOverflow, LedgerError, ProviderError
from longturn.ledger import TokenUse

# Each API words it differently, and gateways in between reword it. What is said of output or rate limits is not meant.
OVERFLOW = re.compile(
    r"context[_ ]length[_ ]exceeded|model_context_window_exceeded"  # codes, of OpenAI and of Anthropic
    r"|prompt is too long|prompt too long|input is too long"  # Anthropic, Bedrock, Ollama
    r"|maximum context length|exceeds? the (?:model's )?(?:maximum )?context"  # OpenAI, vLLM, Mistral, LM Studio
    r"|exceeds? the context window|exceeds? (?:the )?available context|greater than the context length"
    r"|input token count.{0,40}exceeds the maximum"  # Gemini
    r"|maximum prompt length|input length.{0,80}exceeds?"  # xAI, SGLang
    r"|reduce the length of the (?:messages|prompt)"  # Groq
    r"|do(?:es)? not fit (?:into )?the (?:model's )?context|context window exceeds limit|exceeded model token limit"
    r"|`?inputs`? tokens \+ `?max_new_tokens`? must be",  # TGI
    re.IGNORECASE | re.DOTALL,
)
RETRYABLE = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})
# What Anthropic, OpenAI and Gemini call the same in an event of a stream, where no status says it.
RETRYABLE_KINDS = frozenset(
    {"overloaded_error", "api_error", "rate_limit_error", "timeout_error", "server_error", "rate_limit_exceeded"}
    | {"UNAVAILABLE", "RESOURCE_EXHAUSTED", "INTERNAL", "DEADLINE_EXCEEDED"}
)
# Nothing but money helps.
HOPELESS = re.compile(r"insufficient_quota|billing", re.IGNORECASE)


def failure(
    message: str,
    *,
    status: int | None = None,
    kind: str | None = None,
    headers: Mapping[str, str] | None = None,
) -> ProviderError:
    """The error to raise for what an API said.

    status: of HTTP, None or 200 in the middle of a stream; kind: the error's type or code in the body; headers: of the
    response, which may say when to try again.
    """
    headers = headers or {}
    if status == 413 or OVERFLOW.search(f"{kind} {message}"):
        return ContextOverflow(message, status=status)
    retryable = (status in RETRYABLE or kind in RETRYABLE_KINDS) and not HOPELESS.search(f"{kind} {message}")
    if said := headers.get("x-should-retry"):
        retryable = said == "true"
    return ProviderError(message, status=status, retryable=retryable, retry_after=_retry_after(headers))


def unreachable(url: str, error: Exception) -> ProviderError:
    """The error for an API that cannot be reached, or that went away in the middle of an answer."""
    said = str(error) or type(error).__name__
    return ProviderError(
        f"{url} cannot be reached ({said}): check the URL and that the server is running", retryable=True
    )


def said_by(body: Any, otherwise: str) -> tuple[str, str | None]:
    """Message and kind of an error's JSON, in each provider's form and in the plain strings of some servers.

    otherwise: the message where the body tells nothing, such as a page for browsers.
    """
    error = body.get("error", body) if isinstance(body, Mapping) else body
    if isinstance(error, Mapping):
        kind = error.get("code") if isinstance(error.get("code"), str) else error.get("status") or error.get("type")
        return str(error.get("message") or otherwise), kind if isinstance(kind, str) else None
    plain = isinstance(error, str) and error and not error.lstrip().startswith("<")
    return error if plain else otherwise, None


def counted(use: Callable[[Mapping[str, Any]], TokenUse], usage: Mapping[str, Any] | None) -> TokenUse | None:
    """What a usage object says, None for one that is missing or does not add up: no reason to lose the answer."""
    try:
        return use(usage) if usage else None
    except LedgerError:
        return None


def _retry_after(headers: Mapping[str, str]) -> float | None:
    """Seconds, of the plain header or OpenAI's in milliseconds. A date is not worth parsing: the wait grows anyway."""
    for name, unit in (("retry-after-ms", 0.001), ("retry-after", 1.0)):
        try:
            return max(0.0, float(headers[name]) * unit)
        except (KeyError, ValueError):
            continue
    return None
