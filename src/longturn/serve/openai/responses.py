"""OpenAI's Responses: POST /v1/responses, and what is stored of them."""

from __future__ import annotations

import contextlib
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from longturn.dialects import responses
from longturn.dialects.reading import object_of
from longturn.errors import PromptTooLong, RequestError
from longturn.serve.body import off_the_loop, read_body
from longturn.serve.caching.openai import CacheOf, OpenAICache
from longturn.serve.front import Front, FrontOf, SaltOf
from longturn.serve.json_response import JsonResponse
from longturn.serve.openai.compaction import Summary, asking, compacted, due, summarised
from longturn.serve.openai.prompt import Prompted, prompted, sampled, with_item
from longturn.serve.openai.rendering import ResponsesRendering
from longturn.serve.openai.stored import StoredOf, StoredResponses
from longturn.serve.paging import PagingOf
from longturn.serve.respond import Call, respond

Json = dict[str, Any]
router = APIRouter()


@router.post("/v1/responses")
async def create_response(http: Request, front: FrontOf, stored: StoredOf, cache: CacheOf, salt: SaltOf) -> Response:
    """Answer a conversation, of which earlier answers may be stored here, and which may be compacted first."""
    body = await read_body(http, front.body_limit)
    prompt = await off_the_loop(len(body), _read, front, stored, salt, body)
    summary = None
    # What fits only without being asked to summarise itself is answered as it is.
    if due(prompt):
        with contextlib.suppress(PromptTooLong):
            whole = {**prompt.body, "previous_response_id": None, "conversation": None}
            asked = await off_the_loop(len(body), asking, front, stored, salt, whole)
            summary = await summarised(http, front, cache, asked, salt)
            prompt = await off_the_loop(len(body), with_item, front, prompt, summary.item)
    return await respond(http, front, _call(front, stored, cache, salt, prompt, summary), salt)


@router.post("/v1/responses/compact")
async def compact(http: Request, front: FrontOf, stored: StoredOf, cache: CacheOf, salt: SaltOf) -> Response:
    """Compact a conversation into what the user has said and a summary of the rest."""
    body = await read_body(http, front.body_limit)
    asked = await off_the_loop(len(body), lambda: asking(front, stored, salt, object_of(body)))
    return JsonResponse(compacted(asked, await summarised(http, front, cache, asked, salt)))


@router.post("/v1/responses/input_tokens")
async def count_input_tokens(http: Request, front: FrontOf, stored: StoredOf, salt: SaltOf) -> Response:
    """How many tokens a request has; `model` may be left out."""
    body = await read_body(http, front.body_limit)
    counted = await off_the_loop(len(body), _read, front, stored, salt, body, front.service.model.name)
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
async def list_input_items(id: str, stored: StoredOf, salt: SaltOf, paging: PagingOf) -> Response:
    """The items that an answer was made from, those of the answers before it included, latest first."""
    found = stored.get(id, salt)
    return JsonResponse(paging.of([*stored.history(found.previous, salt), *found.input]))


def _read(front: Front, stored: StoredResponses, owner: str, body: bytes, model: str | None = None) -> Prompted:
    """The prompt of a request. model: of one that names none."""
    given = object_of(body)
    return prompted(front, stored, owner, given if model is None else {"model": model, **given})


def _call(
    front: Front, stored: StoredResponses, cache: OpenAICache, owner: str, prompt: Prompted, summary: Summary | None
) -> Call:
    request = prompt.request
    plan = prompt.measured.plan(cache, request, owner)
    first = () if summary is None else (summary.item,)
    return Call(
        [(prompt.tokens, sampled(front, prompt))],
        ResponsesRendering(prompt, cache, plan, front.service.tokenizer, stored, owner, first),
        stream=bool(request.stream),
        session=request.session,
        salt=request.cache_salt,
        priority=request.priority or 0,
        hints=plan.hints,
    )
