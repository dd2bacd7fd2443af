"""OpenAI's Responses: POST /v1/responses, and what is stored of them."""

from __future__ import annotations

from typing import Any, Literal

from fastapi import APIRouter, Request
from starlette.responses import Response

from longturn.dialects import responses
from longturn.dialects.reading import object_of
from longturn.errors import RequestError
from longturn.serve.body import off_the_loop, read_body
from longturn.serve.caching.openai import CacheOf, OpenAICache
from longturn.serve.front import Front, FrontOf, SaltOf
from longturn.serve.json_response import JsonResponse
from longturn.serve.respond import Call, respond
from longturn.serve.responses_prompt import Prompted, prompted, sampled
from longturn.serve.responses_rendering import ResponsesRendering
from longturn.serve.stored import StoredOf, StoredResponses

Json = dict[str, Any]
router = APIRouter()

PAGE = 20
LONGEST_PAGE = 100


@router.post("/v1/responses")
async def create_response(http: Request, front: FrontOf, stored: StoredOf, cache: CacheOf, salt: SaltOf) -> Response:
    """Answer a conversation, of which earlier answers may be stored here."""
    body = await read_body(http, front.body_limit)
    call = await off_the_loop(len(body), _prepare, front, stored, cache, salt, body)
    return await respond(http, front, call, salt)


@router.post("/v1/responses/input_tokens")
async def count_input_tokens(http: Request, front: FrontOf, stored: StoredOf, salt: SaltOf) -> Response:
    """How many tokens a request has; `model` may be left out."""
    body = await read_body(http, front.body_limit)
    counted = await off_the_loop(len(body), _read, front, stored, salt, body)
    return JsonResponse(responses.input_tokens(len(counted.tokens)))


@router.get("/v1/responses/{id}")
async def retrieve_response(id: str, stored: StoredOf, salt: SaltOf, stream: bool = False) -> Response:
    """A stored answer."""
    if stream:
        raise RequestError("A stored answer cannot be streamed: fetch it whole.", param="stream")
    return JsonResponse(stored.get(id, salt).response)


@router.delete("/v1/responses/{id}")
async def delete_response(id: str, stored: StoredOf, salt: SaltOf) -> Response:
    """Forget a stored answer."""
    stored.delete(id, salt)
    return JsonResponse(responses.deleted(id))


@router.get("/v1/responses/{id}/input_items")
async def list_input_items(
    id: str,
    stored: StoredOf,
    salt: SaltOf,
    after: str | None = None,
    limit: int = PAGE,
    order: Literal["asc", "desc"] = "desc",
) -> Response:
    """The items that an answer was made from, those of the answers before it included, latest first."""
    found = stored.get(id, salt)
    items = [*stored.history(found.previous, salt), *found.input]
    if order == "desc":
        items.reverse()
    ids = [item["id"] for item in items]
    if after is not None and after not in ids:
        raise RequestError(f"after names {after!r}, which is not among the items.", param="after")
    if not 1 <= limit <= LONGEST_PAGE:
        raise RequestError(f"limit must lie between 1 and {LONGEST_PAGE}.", param="limit")
    start = 0 if after is None else ids.index(after) + 1
    return JsonResponse(responses.items(items[start : start + limit], has_more=start + limit < len(items)))


def _read(front: Front, stored: StoredResponses, owner: str, body: bytes) -> Prompted:
    sent = {"model": front.service.model.name, **object_of(body)}
    return prompted(front, stored, owner, sent)


def _prepare(front: Front, stored: StoredResponses, cache: OpenAICache, owner: str, body: bytes) -> Call:
    prompt = prompted(front, stored, owner, object_of(body))
    request = prompt.request
    plan = prompt.measured.plan(cache, request, f"{owner}/{request.cache_salt}")
    return Call(
        [(prompt.tokens, sampled(front, prompt))],
        ResponsesRendering(prompt, cache, plan, front.service.tokenizer, stored, owner),
        stream=bool(request.stream),
        session=request.session,
        salt=request.cache_salt,
        priority=request.priority or 0,
        hints=plan.hints,
    )
