"""What operators ask a server: is it well, what has it counted, what does its cache hold."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from prometheus_client.exposition import choose_encoder
from starlette.responses import Response

from longturn.errors import ConfigError, Refusal
from longturn.serve.front import FrontOf, SaltOf
from longturn.serve.json_response import JsonResponse

router = APIRouter()

# These routes wait for the engine to finish its step, so they are plain functions, which FastAPI runs in threads.


@router.get("/health")
@router.head("/health", include_in_schema=False)
def health(front: FrontOf) -> Response:
    """200 while the engine can serve, 503 with the reason otherwise. Open to everybody."""
    service = front.service
    if service.alive:
        return JsonResponse({"status": "ok", "model": service.model.name})
    error = service.error
    reason = "the engine is stopped" if error is None else f"the engine has failed ({type(error).__name__})"
    return JsonResponse({"status": "down", "reason": reason}, 503)


@router.get("/metrics")
def metrics(http: Request, front: FrontOf, _: SaltOf) -> Response:
    """All metrics in Prometheus' or OpenMetrics' text format."""
    encode, content_type = choose_encoder(http.headers.get("accept", ""))
    return Response(encode(front.metrics.registry), media_type=content_type)


@router.get("/v1/cache")
def cache(front: FrontOf, _: SaltOf) -> dict[str, Any]:
    """Tiers and the most used prefixes by length; never what is in them."""
    state = front.service.state().cache
    return {
        "policy": state.policy,
        "tiers": [
            {"name": tier.name, "capacity": tier.capacity, "used": tier.used, "evictable": tier.evictable}
            for tier in state.tiers
        ],
        "prefixes": [{"tokens": tokens, "hits": hits, "in_use": locks} for tokens, hits, locks in state.prefixes],
    }


@router.delete("/v1/cache/{tier}")
def clear_tier(tier: str, front: FrontOf, _: SaltOf) -> dict[str, Any]:
    """Evict all of a tier that is not in use."""
    try:
        freed = front.service.clear_tier(tier)
    except ConfigError as error:
        raise Refusal(404, f"{error}.", "tier_not_found") from None
    return {"tier": tier, "freed_tokens": freed}
