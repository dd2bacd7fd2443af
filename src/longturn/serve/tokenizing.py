"""POST /tokenize and /detokenize, as vLLM has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import APIRouter, Request
from starlette.responses import Response

from longturn.dialects import openai
from longturn.errors import RequestError
from longturn.serve.body import off_the_loop, read_body
from longturn.serve.chat_prompt import chat_text
from longturn.serve.front import Front, FrontOf, SaltOf
from longturn.serve.json_response import JsonResponse

router = APIRouter()


@router.post("/tokenize")
async def tokenize(http: Request, front: FrontOf, _: SaltOf) -> Response:
    """The tokens of a `prompt`, or of `messages` (and `tools`) as /v1/chat/completions would see them."""
    body = await read_body(http, front.body_limit)
    return await off_the_loop(len(body), _tokenize, front, body)


@router.post("/detokenize")
async def detokenize(http: Request, front: FrontOf, _: SaltOf) -> Response:
    """The text of `tokens`, special ones included."""
    body = await read_body(http, front.body_limit)
    return await off_the_loop(len(body), _detokenize, front, body)


def _tokenize(front: Front, body: bytes) -> Response:
    fields = _object(front, body)
    if "messages" in fields:
        text = chat_text(front.service.tokenizer, openai.parse_chat(fields).talk())
        tokens = front.encoding.text(text, param="messages", add_special_tokens=False)
    else:
        [prompt, *more] = openai.parse_completion(fields).prompts
        if more or not isinstance(prompt, str):
            raise RequestError("prompt must be one string.", param="prompt")
        tokens = front.encoding.text(prompt)
    context = front.service.model.context
    return JsonResponse({"count": len(tokens), "max_model_len": context, "tokens": tokens.tolist()})


def _detokenize(front: Front, body: bytes) -> Response:
    tokens = _object(front, body).get("tokens")
    if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
        raise RequestError("tokens must be a list of token ids.", param="tokens")
    ids = front.encoding.prompt(tokens)
    return JsonResponse({"prompt": front.service.tokenizer.decode(ids, clean_up_tokenization_spaces=False)})


def _object(front: Front, body: bytes) -> Mapping[str, Any]:
    """The body as an object; `model` may be left out."""
    try:
        fields = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise RequestError(f"The body is not valid JSON: {error}.") from None
    if not isinstance(fields, dict):
        raise RequestError("The body must be a JSON object.")
    fields.setdefault("model", front.service.model.name)
    return fields
