"""Google's cachedContents: beginnings of prompts that are computed once and kept until they expire."""

from __future__ import annotations

import uuid
from typing import Annotated, Any

import numpy as np
from fastapi import APIRouter, Depends, Query, Request
from starlette.responses import Response

from longturn.cache import Hint, Tokens
from longturn.dialects import gemini
from longturn.dialects.gemini import CachedContentRequest, Prompted
from longturn.engine import SamplingParams
from longturn.errors import RequestError
from longturn.explain.limits import minimum
from longturn.serve.body import off_the_loop, read_body
from longturn.serve.bridge import Answers
from longturn.serve.caching.gemini import CachedContent, CachedContents
from longturn.serve.chat_prompt import chat_text
from longturn.serve.front import Front, FrontOf, SaltOf
from longturn.serve.json_response import JsonResponse
from longturn.serve.respond import unless_gone

Json = dict[str, Any]
router = APIRouter()

VERTEX = "projects/{project}/locations/{location}/"
PAGE = 100
"""Cached contents in one page of a list, unless the client says otherwise."""
# Any two texts that may follow: what their prompts have in common, every prompt has.
FOLLOWING = ("a", "\nb")


async def _cached_contents(request: Request) -> CachedContents:
    contents: CachedContents = request.app.state.cached_contents
    return contents


CachedContentsOf = Annotated[CachedContents, Depends(_cached_contents)]


@router.post("/v1/cachedContents")
@router.post("/v1beta/cachedContents")
@router.post(f"/v1/{VERTEX}cachedContents")
@router.post(f"/v1beta1/{VERTEX}cachedContents")
async def create(http: Request, front: FrontOf, contents: CachedContentsOf, salt: SaltOf) -> Response:
    """Compute the beginning of a prompt and keep it. Answers when it is there."""
    body = await read_body(http, front.body_limit)
    request, tokens = await off_the_loop(len(body), _prepare, front, body)
    now = contents.clock()
    expires = request.until(now) or now + gemini.DEFAULT_LIFE
    life = None if request.expire_time else expires - now
    try:
        pin = Hint("pin", tokens, seconds=(expires - now).total_seconds(), salt=salt)
        await unless_gone(http, _compute(front, pin))
        if life is not None:
            # Computing it is no part of its life.
            expires = contents.clock() + life
        content = contents.add(salt, request.model, request.display_name, request, tokens, expires)
        front.service.hint([Hint("pin", tokens, seconds=(expires - content.created).total_seconds(), salt=salt)])
    except BaseException:
        _pin_the_rest(front, contents, salt, tokens)
        raise
    return _shown(http, content)


@router.get("/v1/cachedContents")
@router.get("/v1beta/cachedContents")
@router.get(f"/v1/{VERTEX}cachedContents")
@router.get(f"/v1beta1/{VERTEX}cachedContents")
async def list_all(
    http: Request,
    contents: CachedContentsOf,
    salt: SaltOf,
    size: Annotated[int, Query(alias="pageSize", ge=0)] = PAGE,
    token: Annotated[str | None, Query(alias="pageToken")] = None,
) -> Response:
    """The client's own, oldest first, a page at a time."""
    found = contents.of(salt)
    start = next((number for number, content in enumerate(found) if content.id == token), 0)
    end = start + (size or PAGE)
    page: Json = {"cachedContents": [_json(http, content) for content in found[start:end]]}
    if end < len(found):
        page["nextPageToken"] = found[end].id
    return JsonResponse(page)


@router.get("/v1/cachedContents/{id}")
@router.get("/v1beta/cachedContents/{id}")
@router.get(f"/v1/{VERTEX}cachedContents/{{id}}")
@router.get(f"/v1beta1/{VERTEX}cachedContents/{{id}}")
async def get(http: Request, id: str, contents: CachedContentsOf, salt: SaltOf) -> Response:
    """One of the client's."""
    return _shown(http, contents.get(salt, id))


@router.patch("/v1/cachedContents/{id}")
@router.patch("/v1beta/cachedContents/{id}")
@router.patch(f"/v1/{VERTEX}cachedContents/{{id}}")
@router.patch(f"/v1beta1/{VERTEX}cachedContents/{{id}}")
async def update(http: Request, id: str, front: FrontOf, contents: CachedContentsOf, salt: SaltOf) -> Response:
    """Let it expire at another time; nothing else of it can change."""
    expires = gemini.parse_cache_life(await read_body(http, front.body_limit)).until(contents.clock())
    if expires is None:
        raise RequestError("Only ttl or expireTime can be changed: send one of them.", param="ttl")
    content = contents.extend(salt, id, expires)
    _pin_the_rest(front, contents, salt, content.tokens)
    return _shown(http, content)


@router.delete("/v1/cachedContents/{id}")
@router.delete("/v1beta/cachedContents/{id}")
@router.delete(f"/v1/{VERTEX}cachedContents/{{id}}")
@router.delete(f"/v1beta1/{VERTEX}cachedContents/{{id}}")
async def delete(id: str, front: FrontOf, contents: CachedContentsOf, salt: SaltOf) -> Response:
    """Forget it, and let go of its pages."""
    content = contents.delete(salt, id)
    _pin_the_rest(front, contents, salt, content.tokens)
    return JsonResponse({})


def _pin_the_rest(front: Front, contents: CachedContents, salt: str, tokens: Tokens) -> None:
    """Let go of `tokens`, but for what is kept by now: a pin is never cut short by another, only by a release."""
    front.service.hint([Hint("release", tokens, salt=salt), *contents.pins(salt)])


def _prepare(front: Front, body: bytes) -> tuple[CachedContentRequest, Tokens]:
    request = gemini.parse_cached_content(body)
    name = request.model.rpartition("models/")[2]
    front.check_model(name)
    tokens, least = _beginning(front, request), minimum("gemini", name)
    if len(tokens) < least:
        message = f"Cached content is too small. total_token_count={len(tokens)}, min_total_token_count={least}"
        raise RequestError(message, param="contents")
    return request, tokens


def _beginning(front: Front, prompted: Prompted) -> Tokens:
    """The tokens, int32 [n], with which every prompt begins that goes on from there."""
    one, other = (
        front.encoding.text(
            chat_text(front.service.tokenizer, prompted.followed_by(text).talk()),
            param="contents",
            add_special_tokens=False,
        )
        for text in FOLLOWING
    )
    size = min(len(one), len(other))
    differ = np.flatnonzero(one[:size] != other[:size])
    return one[: differ[0] if len(differ) else size]


async def _compute(front: Front, pin: Hint) -> None:
    """Have the engine compute what is to be pinned, for which it makes one token of an answer."""
    answers = Answers(front.service)
    id, params = f"cache-{uuid.uuid4().hex}", SamplingParams(max_tokens=1, temperature=0)
    try:
        answers.ask(id, pin.tokens, params, salt=pin.salt, hints=[pin])
        async for _ in answers:
            pass
    finally:
        answers.close()


def _shown(http: Request, content: CachedContent) -> Response:
    return JsonResponse(_json(http, content))


def _json(http: Request, content: CachedContent) -> Json:
    place = http.path_params
    prefix = f"projects/{place['project']}/locations/{place['location']}/" if "project" in place else ""
    return gemini.cached_content(
        f"{prefix}cachedContents/{content.id}",
        content.model,
        len(content.tokens),
        created=content.created,
        updated=content.updated,
        expires=content.expires,
        display_name=content.display_name,
    )
