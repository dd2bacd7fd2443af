"""GET /v1/models: the one model that is served."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter

from longturn.dialects import openai
from longturn.serve.front import Front, FrontOf, SaltOf

router = APIRouter()


@router.get("/v1/models")
async def list_models(front: FrontOf, _: SaltOf) -> dict[str, Any]:
    """All models."""
    return openai.model_list([_served(front)])


# A hub id has a slash in it.
@router.get("/v1/models/{name:path}")
async def retrieve_model(name: str, front: FrontOf, _: SaltOf) -> dict[str, Any]:
    """One model."""
    front.check_model(name)
    return _served(front)


def _served(front: Front) -> dict[str, Any]:
    model = front.service.model
    return openai.model_object(model.name, model.created, model.context)
