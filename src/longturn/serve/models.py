"""GET /v1/models: the one model that is served, in the form of the client's provider."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request

from longturn.dialects import anthropic, gemini, openai
from longturn.serve.front import Front, FrontOf, SaltOf
from longturn.serve.wires import ANTHROPIC, GEMINI, wire_of

router = APIRouter()


@router.get("/v1/models")
@router.get("/v1beta/models")
async def list_models(http: Request, front: FrontOf, _: SaltOf) -> dict[str, Any]:
    """All models."""
    served, wire = _served(http, front), wire_of(http.scope)
    if wire is GEMINI:
        return {"models": [served]}
    return anthropic.model_list([served]) if wire is ANTHROPIC else openai.model_list([served])


# A hub id has a slash in it.
@router.get("/v1/models/{name:path}")
@router.get("/v1beta/models/{name:path}")
async def retrieve_model(name: str, http: Request, front: FrontOf, _: SaltOf) -> dict[str, Any]:
    """One model."""
    front.check_model(name)
    return _served(http, front)


def _served(http: Request, front: Front) -> dict[str, Any]:
    model, wire = front.service.model, wire_of(http.scope)
    if wire is GEMINI:
        return gemini.model_object(model.name, model.context)
    if wire is ANTHROPIC:
        created = datetime.fromtimestamp(model.created, UTC).isoformat().replace("+00:00", "Z")
        return anthropic.model_object(model.name, created, model.context)
    return openai.model_object(model.name, model.created, model.context)
