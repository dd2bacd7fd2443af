"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's Messages."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from longturn.dialects import anthropic
from longturn.dialects.reading import object_of
from longturn.engine import SamplingParams
from longturn.errors import RequestError
from longturn.serve.body import off_the_loop, read_body
from longturn.serve.chat_prompt import call_form, chat_text
from longturn.serve.front import Front, FrontOf, SaltOf
from longturn.serve.json_response import JsonResponse
from longturn.serve.limits import chat_length
from longturn.serve.messages_rendering import MessagesRendering
from longturn.serve.respond import Call, respond

Json = dict[str, Any]
router = APIRouter()


@router.post("/v1/messages")
async def create_message(http: Request, front: FrontOf, salt: SaltOf) -> Response:
    """Answer a conversation.

    Tools are shown to the model and its calls are parsed; `tool_choice` "any" and "tool" force it to call. With "none"
    it is shown them all the same, which keeps the cached prefix, and nothing is parsed.
    """
    version, body = _version(http), await read_body(http, front.body_limit)
    return await respond(http, front, await off_the_loop(len(body), _prepare, front, body, version), salt)


@router.post("/v1/messages/count_tokens")
async def count_tokens(http: Request, front: FrontOf, _: SaltOf) -> Response:
    """How many tokens the prompt of a request would have."""
    version, body = _version(http), await read_body(http, front.body_limit)
    return await off_the_loop(len(body), _count, front, body, version)


def _version(http: Request) -> str:
    """The version of the API that the client speaks; one that says none speaks the first."""
    version = http.headers.get("anthropic-version", anthropic.OLD)
    if version not in anthropic.VERSIONS:
        known = " or ".join(anthropic.VERSIONS)
        raise RequestError(f"anthropic-version: {version!r} is not a valid version, use {known}.")
    return version


def _prepare(front: Front, body: bytes, version: str) -> Call:
    request = anthropic.parse(object_of(body), version)
    front.check_model(request.model)
    model, tokenizer = front.service.model, front.service.tokenizer
    text = chat_text(tokenizer, anthropic.talk(request))
    tokens = front.encoding.text(text, param="messages", add_special_tokens=False)
    # The engine computes a prompt only together with a first token of its answer.
    length = chat_length(max(request.max_tokens, 1), len(tokens), model.context)
    params = SamplingParams(max_tokens=length, grammar=request.grammar_for(call_form(tokenizer)), **request.sampling())
    rendering = MessagesRendering(request, len(tokens), cut=length < request.max_tokens)
    return Call([(tokens, params)], rendering, stream=bool(request.stream))


def _count(front: Front, body: bytes, version: str) -> Response:
    request = anthropic.parse_count(object_of(body), version)
    front.check_model(request.model)
    text = chat_text(front.service.tokenizer, anthropic.talk(request))
    tokens = front.encoding.text(text, param="messages", add_special_tokens=False)
    return JsonResponse({"input_tokens": len(tokens)})
