"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's Messages."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Request
from starlette.responses import Response

from longturn.dialects import anthropic
from longturn.dialects.anthropic import MessagesRequest
from longturn.dialects.reading import object_of
from longturn.engine import SamplingParams
from longturn.errors import RequestError
from longturn.explain.exchange import betas_named
from longturn.serve.anthropic.compaction import Compacted, compact, due, paused, replaced
from longturn.serve.anthropic.prompt import Prepared, prepare
from longturn.serve.anthropic.rendering import MessagesRendering
from longturn.serve.body import off_the_loop, read_body
from longturn.serve.caching.anthropic import CachedPrompt
from longturn.serve.caching.diagnostics import Digest, miss_reason
from longturn.serve.caching.entries import Entries
from longturn.serve.caching.remembered import Remembered
from longturn.serve.chat_prompt import call_form
from longturn.serve.front import Front, FrontOf, SaltOf
from longturn.serve.json_response import JsonResponse
from longturn.serve.limits import chat_length
from longturn.serve.respond import Call, respond

Json = dict[str, Any]
router = APIRouter()


@dataclass(frozen=True)
class AnthropicCache:
    """What this server remembers for Anthropic's clients: entries of prompt caching, and digests of requests."""

    entries: Entries = field(default_factory=Entries)
    remembered: Remembered[Digest] = field(default_factory=Remembered)


async def _cache(request: Request) -> AnthropicCache:
    cache: AnthropicCache = request.app.state.anthropic_cache
    return cache


CacheOf = Annotated[AnthropicCache, Depends(_cache)]


@router.post("/v1/messages")
async def create_message(http: Request, front: FrontOf, cache: CacheOf, salt: SaltOf) -> Response:
    """Answer a conversation.

    Tools are shown to the model and its calls are parsed; `tool_choice` "any" and "tool" force it to call. With "none"
    it is shown them all the same, which keeps the cached prefix, and nothing is parsed.
    """
    version, body = _version(http), await read_body(http, front.body_limit)
    betas = http.headers.get("anthropic-beta", "")

    def parse(fields: Json) -> MessagesRequest:
        return anthropic.parse(fields, version)

    def prepared() -> Prepared[MessagesRequest]:
        return prepare(front, _with_betas(body, betas), parse)

    ready = await off_the_loop(len(body), prepared)
    ended = {"context_management": {"applied_edits": list(ready.applied)}} if ready.request.context_management else {}
    compacted = None
    if compaction := due(ready, front.service.model.context):
        compacted = await compact(http, front, cache.entries, salt, ready, compaction, parse)
        if compaction.pauses:
            return paused(ready.request, compaction, compacted, ended)
        if compacted.summary is not None:
            ready = prepare(front, replaced(ready.body, compacted), parse)
    return await respond(http, front, _call(front, cache, salt, ready, compacted, ended), salt)


@router.post("/v1/messages/count_tokens")
async def count_tokens(http: Request, front: FrontOf, _: SaltOf) -> Response:
    """How many tokens the prompt of a request would have, after its context is edited; nothing is compacted."""
    version, body = _version(http), await read_body(http, front.body_limit)

    def count() -> Response:
        ready = prepare(front, object_of(body), lambda fields: anthropic.parse_count(fields, version))
        counted: Json = {"input_tokens": len(ready.tokens)}
        if ready.request.context_management:
            counted["context_management"] = {"original_input_tokens": ready.original}
        return JsonResponse(counted)

    return await off_the_loop(len(body), count)


def _version(http: Request) -> str:
    """The version of the API that the client speaks; one that says none speaks the first."""
    version = http.headers.get("anthropic-version", anthropic.OLD)
    if version not in anthropic.VERSIONS:
        known = " or ".join(anthropic.VERSIONS)
        raise RequestError(f"anthropic-version: {version!r} is not a valid version, use {known}.")
    return version


def _with_betas(body: bytes, betas: str) -> Json:
    """The body with the beta features that its header names: they are part of what is cached."""
    return {**object_of(body), "betas": betas_named(betas) or None}


def _call(
    front: Front,
    cache: AnthropicCache,
    salt: str,
    ready: Prepared[MessagesRequest],
    compacted: Compacted | None,
    ended: Json,
) -> Call:
    request, n = ready.request, len(ready.tokens)
    # The engine computes a prompt only together with a first token of its answer.
    length = chat_length(max(request.max_tokens, 1), n, front.service.model.context)
    grammar = request.grammar_for(call_form(front.service.tokenizer))
    params = SamplingParams(max_tokens=length, grammar=grammar, **request.sampling())
    cached = CachedPrompt(ready.prompt, ready.tokens, ready.ends, cache.entries, salt)
    cut = length < request.max_tokens
    rendering = MessagesRendering(request, n, cached, cut=cut, compacted=compacted, ended=ended)
    if request.diagnostics:
        digest = Digest.of(ready.prompt, n)
        rendering.started = _diagnosed(cache.remembered, salt, request.diagnostics.previous_message_id, digest)
        cache.remembered.keep(salt, rendering.id, digest)
    return Call([(ready.tokens, params)], rendering, stream=bool(request.stream), hints=cached.hints)


def _diagnosed(remembered: Remembered[Digest], salt: str, previous: str | None, digest: Digest) -> Json:
    """The `diagnostics` field of an answer; null where there is nothing to compare with, or nothing to tell."""
    reason = miss_reason(remembered.find(salt, previous), digest) if previous is not None else None
    return {"diagnostics": reason and {"cache_miss_reason": reason}}
