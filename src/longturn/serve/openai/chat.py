"""POST /v1/chat/completions."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from longturn.dialects import openai
from longturn.dialects.openai import ChatRequest, TokenLogprob
from longturn.dialects.reading import object_of
from longturn.dialects.tool_calls import ToolCall, ToolCallParser
from longturn.engine import Output
from longturn.ledger import RequestLine
from longturn.serve.body import off_the_loop, read_body
from longturn.serve.caching.openai import CacheOf, OpenAICache, Plan
from longturn.serve.caching.openai_prompt import measure
from longturn.serve.chat_prompt import call_form
from longturn.serve.front import Front, FrontOf, SaltOf
from longturn.serve.limits import chat_length, params_of_choices
from longturn.serve.openai.logprobs import token_logprobs
from longturn.serve.openai.usage import usage_of
from longturn.serve.respond import Call, respond
from longturn.serve.wires import OPENAI

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Json = dict[str, Any]
router = APIRouter()


@router.post("/v1/chat/completions")
async def create_chat_completion(http: Request, front: FrontOf, cache: CacheOf, salt: SaltOf) -> Response:
    """Answer a conversation.

    Tools are shown to the model and its calls are parsed. `tool_choice` "required" and a named function force it to
    call. With "none" it is shown them all the same, which keeps the cached prefix, and nothing is parsed.
    """
    body = await read_body(http, front.body_limit)
    return await respond(http, front, await off_the_loop(len(body), _prepare, front, cache, salt, body), salt)


def _prepare(front: Front, cache: OpenAICache, salt: str, body: bytes) -> Call:
    given = object_of(body)
    request = openai.parse_chat(given)
    front.check_model(request.model)
    model, tokenizer = front.service.model, front.service.tokenizer
    measured = measure(front, "openai-chat", given, request, lambda body: openai.parse_chat(body).talk(), "messages")
    tokens, plan = measured.tokens, measured.plan(cache, request, salt)
    sampling = request.sampling()
    sampling["max_tokens"] = chat_length(sampling.get("max_tokens"), len(tokens), model.context)
    sampling["grammar"] = request.grammar_for(call_form(tokenizer))
    params = params_of_choices(sampling, request.choices)
    return Call(
        [(tokens, each) for each in params],
        ChatRendering(request, tokenizer, plan),
        stream=bool(request.stream),
        session=request.session,
        salt=request.cache_salt,
        priority=request.priority or 0,
        hints=plan.hints,
    )


@dataclass
class _Choice:
    """One answer as it grows. `parser` is None where no tools were shown."""

    parser: ToolCallParser | None
    text: str = ""
    calls: list[ToolCall] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    started: bool = False
    finish_reason: str = ""

    def parts(self, output: Output) -> list[str | ToolCall]:
        """What `output` adds for certain, in order."""
        if self.parser is None:
            return [output.text] if output.text else []
        parts = self.parser.push(output.text)
        return parts if output.finish_reason is None else [*parts, *self.parser.finish()]


class ChatRendering:
    """Renders the answers to one chat request."""

    wire = OPENAI

    def __init__(self, request: ChatRequest, tokenizer: PreTrainedTokenizerBase, plan: Plan) -> None:
        self.id = f"chatcmpl-{uuid.uuid4().hex}"
        self._tokenizer, self._plan = tokenizer, plan
        self._stream = openai.ChatStream(self.id, request.model, int(time.time()), request.include_usage)
        self._choices = [_Choice(ToolCallParser() if request.uses_tools else None) for _ in range(request.choices)]

    def push(self, index: int, output: Output) -> list[Json]:
        """See `Rendering`."""
        self._plan.see(index, output)
        choice, chunks = self._choices[index], []
        if not choice.started:
            choice.started = True
            chunks.append(self._stream.role(index))
        logprobs = token_logprobs(self._tokenizer, output.samples)
        choice.logprobs += logprobs
        unsent = openai.chat_logprobs(logprobs) if logprobs else None
        for part in choice.parts(output):
            if isinstance(part, str):
                choice.text += part
                chunks.append(self._stream.content(index, part, unsent))
                unsent = None
            else:
                chunks.append(self._stream.tool_call(index, len(choice.calls), part))
                choice.calls.append(part)
        if unsent:
            # They go with their tokens, even where the text is held back.
            chunks.append(self._stream.content(index, "", unsent))
        if output.finish_reason is not None:
            stopped = output.finish_reason == "stop"
            choice.finish_reason = "tool_calls" if choice.calls and stopped else output.finish_reason
            chunks.append(self._stream.finish(index, choice.finish_reason))
        return chunks

    def whole(self, lines: Sequence[RequestLine]) -> Json:
        """See `Rendering`."""
        choices = [
            openai.chat_choice(
                index,
                choice.text,
                choice.finish_reason,
                tool_calls=choice.calls,
                logprobs=openai.chat_logprobs(choice.logprobs) if choice.logprobs else None,
            )
            for index, choice in enumerate(self._choices)
        ]
        stream, usage = self._stream, usage_of(lines, self.id, self._plan.count)
        return openai.chat_completion(self.id, stream.model, stream.created, choices, usage)

    def end(self, lines: Sequence[RequestLine]) -> list[Json]:
        """See `Rendering`."""
        return [self._stream.usage(usage_of(lines, self.id, self._plan.count))] if self._stream.include_usage else []

    def failed(self, error: Exception) -> list[Json]:
        """See `Rendering`."""
        return [openai.error_body(error)]
