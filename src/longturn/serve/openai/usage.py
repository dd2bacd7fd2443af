"""The usage of one call, which may have taken several requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from longturn.dialects import openai
from longturn.dialects.openai_usage import CacheCount
from longturn.ledger import NO_USE, RequestLine, Resources


def usage_of(lines: Sequence[RequestLine], id: str, count: CacheCount | None = None) -> dict[str, Any]:
    """OpenAI's usage object for the call `id`. count: of its cache, where that is not what the engine did.

    Every choice is a request of its own, with its own line in the ledger. With several, all counts are sums, so that a
    prompt counts once for each of its answers.
    """
    return openai.usage(together(lines, id), count)


def together(lines: Sequence[RequestLine], id: str) -> RequestLine:
    """One line for all requests of the call `id`: counts are sums."""
    if len(lines) == 1:
        return lines[0]
    return RequestLine(
        request_id=id,
        session=lines[0].session,
        model=lines[0].model,
        started_at=min(line.started_at for line in lines),
        use=sum((line.use for line in lines), NO_USE),
        resources=sum((line.resources for line in lines), Resources()),
        ttft_ms=min((line.ttft_ms for line in lines if line.ttft_ms is not None), default=None),
        total_ms=max((line.total_ms for line in lines if line.total_ms is not None), default=None),
        queue_ms=max((line.queue_ms for line in lines if line.queue_ms is not None), default=None),
        finish_reason=lines[0].finish_reason if len({line.finish_reason for line in lines}) == 1 else None,
        miss=next((line.miss for line in lines if line.miss), None),
    )
