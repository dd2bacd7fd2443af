"""POST /tokenize and /detokenize, as vLLM has them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from fastapi import APIRouter, Request

from longturn.dialects import openai
from longturn.errors import RequestError
from longturn.serve.body import off_the_loop, read_body
from longturn.serve.chat_prompt import chat_tokens
from longturn.serve.completions import prompt_tokens
from longturn.serve.front import Front, FrontOf, SaltOf

router = APIRouter()


@router.post("/tokenize")
async def tokenize(http: Request, front: FrontOf, _: SaltOf) -> dict[str, Any]:
    """The tokens of a `prompt`, or of `messages` (and `tools`) as /v1/chat/completions would see them."""
    body = await read_body(http, front.body_limit)
    return await off_the_loop(len(body), _tokenize, front, body)


@router.post("/detokenize")
async def detokenize(http: Request, front: FrontOf, _: SaltOf) -> dict[str, Any]:
    """The text of `tokens`, special ones included."""
    body = await read_body(http, front.body_limit)
    return await off_the_loop(len(body), _detokenize, front, body)


def _tokenize(front: Front, body: bytes) -> dict[str, Any]:
    fields = _object(front, body)
    tokenizer, model = front.service.tokenizer, front.service.model
    if "messages" in fields:
        tokens = chat_tokens(tokenizer, openai.parse_chat(fields))
    else:
        [prompt, *more] = openai.parse_completion(fields).prompts
        if more or not isinstance(prompt, str):
            raise RequestError("prompt must be one string.", param="prompt")
        tokens = prompt_tokens(prompt, tokenizer, model.vocab_size)
    return {"count": len(tokens), "max_model_len": model.context, "tokens": tokens.tolist()}


def _detokenize(front: Front, body: bytes) -> dict[str, Any]:
    tokens = _object(front, body).get("tokens")
    if not isinstance(tokens, list) or not all(type(token) is int for token in tokens):
        raise RequestError("tokens must be a list of token ids.", param="tokens")
    tokenizer = front.service.tokenizer
    # The same check as for a prompt; nothing at all is no mistake here.
    ids = prompt_tokens(tokens, tokenizer, front.service.model.vocab_size) if tokens else tokens
    return {"prompt": tokenizer.decode(ids, clean_up_tokenization_spaces=False)}


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
