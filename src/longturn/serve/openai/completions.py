"""POST /v1/completions."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from longturn.dialects import openai
from longturn.dialects.openai import CompletionRequest, TokenLogprob
from longturn.engine import Output
from longturn.ledger import RequestLine
from longturn.serve.body import off_the_loop, read_body
from longturn.serve.front import Front, FrontOf, SaltOf
from longturn.serve.limits import completion_length, params_of_choices
from longturn.serve.openai.logprobs import token_logprobs
from longturn.serve.openai.usage import usage_of
from longturn.serve.respond import Call, respond
from longturn.serve.wires import OPENAI

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Json = dict[str, Any]
router = APIRouter()


@router.post("/v1/completions")
async def create_completion(http: Request, front: FrontOf, salt: SaltOf) -> Response:
    """Continue one or several prompts, each a text or token ids."""
    body = await read_body(http, front.body_limit)
    return await respond(http, front, await off_the_loop(len(body), _prepare, front, body), salt)


def _prepare(front: Front, body: bytes) -> Call:
    request = openai.parse_completion(body)
    front.check_model(request.model)
    context = front.service.model.context
    sampling = {**request.sampling(), "grammar": request.answer_grammar()}
    choices = []
    for prompt in request.prompts:
        tokens = front.encoding.prompt(prompt)
        length = completion_length(sampling.get("max_tokens"), len(tokens), context)
        params = params_of_choices({**sampling, "max_tokens": length}, request.choices)
        choices += [(tokens, each) for each in params]
    return Call(
        choices,
        CompletionRendering(request, len(choices), front.service.tokenizer),
        stream=bool(request.stream),
        session=request.session,
        salt=request.cache_salt,
        priority=request.priority or 0,
    )


@dataclass
class _Choice:
    """One answer as it grows. offset: characters of its tokens so far, which is how logprobs count."""

    text: str = ""
    logprobs: list[TokenLogprob] = field(default_factory=list)
    offset: int = 0
    finish_reason: str = ""


class CompletionRendering:
    """Renders the answers to one completion request."""

    wire = OPENAI

    def __init__(self, request: CompletionRequest, choices: int, tokenizer: PreTrainedTokenizerBase) -> None:
        self.id = f"cmpl-{uuid.uuid4().hex}"
        self._tokenizer = tokenizer
        self._stream = openai.CompletionStream(self.id, request.model, int(time.time()), request.include_usage)
        self._choices = [_Choice() for _ in range(choices)]

    def push(self, index: int, output: Output) -> list[Json]:
        """See `Rendering`."""
        choice, chunks = self._choices[index], []
        logprobs = token_logprobs(self._tokenizer, output.samples)
        if output.text or logprobs:
            shown = openai.completion_logprobs(logprobs, choice.offset) if logprobs else None
            chunks.append(self._stream.text(index, output.text, shown))
        choice.text += output.text
        choice.logprobs += logprobs
        choice.offset += sum(len(entry.token) for entry in logprobs)
        if output.finish_reason is not None:
            choice.finish_reason = output.finish_reason
            chunks.append(self._stream.finish(index, output.finish_reason))
        return chunks

    def whole(self, lines: Sequence[RequestLine]) -> Json:
        """See `Rendering`."""
        choices = [
            openai.completion_choice(
                index,
                choice.text,
                choice.finish_reason,
                logprobs=openai.completion_logprobs(choice.logprobs) if choice.logprobs else None,
            )
            for index, choice in enumerate(self._choices)
        ]
        return openai.completion(self.id, self._stream.model, self._stream.created, choices, usage_of(lines, self.id))

    def end(self, lines: Sequence[RequestLine]) -> list[Json]:
        """See `Rendering`."""
        return [self._stream.usage(usage_of(lines, self.id))] if self._stream.include_usage else []

    def failed(self, error: Exception) -> list[Json]:
        """See `Rendering`."""
        return [openai.error_body(error)]
