"""Google's Gemini API: generateContent, streamGenerateContent and countTokens."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fastapi import APIRouter, Request
from starlette.responses import Response

from longturn.cache import Tokens
from longturn.dialects import gemini
from longturn.dialects.gemini import GenerateRequest
from longturn.dialects.openai import TokenLogprob
from longturn.dialects.tool_calls import ToolCall, ToolCallParser
from longturn.engine import Output
from longturn.errors import Refusal
from longturn.explain.limits import minimum
from longturn.ledger import RequestLine, TokenUse
from longturn.serve.body import off_the_loop, read_body
from longturn.serve.caching.gemini import CachedContent, CachedContents, counted
from longturn.serve.chat_prompt import call_form, chat_text
from longturn.serve.front import Front, FrontOf, SaltOf
from longturn.serve.gemini.cached_contents import CachedContentsOf
from longturn.serve.json_response import JsonResponse
from longturn.serve.limits import chat_length, params_of_choices
from longturn.serve.openai.logprobs import token_logprobs
from longturn.serve.openai.usage import together
from longturn.serve.respond import Call, respond
from longturn.serve.wires import GEMINI, Wire, gemini_array

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Json = dict[str, Any]
router = APIRouter()

VERTEX = "/projects/{project}/locations/{location}"


@dataclass(frozen=True)
class Kept:
    """What the client of a request keeps."""

    contents: CachedContents
    salt: str

    def whole(self, request: GenerateRequest) -> tuple[GenerateRequest, CachedContent | None]:
        """The request with what it names before it, by a bare name or in full. Raises Refusal if it is gone."""
        if not request.cached_content:
            return request, None
        cached = self.contents.get(self.salt, request.cached_content.rpartition("/")[2])
        return request.after(cached.prompted), cached


# A hub id has a slash in it.
@router.post("/v1/models/{call:path}")
@router.post("/v1beta/models/{call:path}")
@router.post(f"/v1{VERTEX}/publishers/{{publisher}}/models/{{call:path}}")
@router.post(f"/v1beta1{VERTEX}/publishers/{{publisher}}/models/{{call:path}}")
async def call_model(
    http: Request, call: str, front: FrontOf, contents: CachedContentsOf, salt: SaltOf, alt: str | None = None
) -> Response:
    """Answer a prompt, whole or streamed, or count its tokens: what follows the colon after the model's name."""
    name, _, method = call.rpartition(":")
    body = await read_body(http, front.body_limit)
    kept = Kept(contents, salt)
    if method == "countTokens":
        return await off_the_loop(len(body), _count, front, name, body, kept)
    if method not in ("generateContent", "streamGenerateContent"):
        message = f"models have no method {method!r} here: use generateContent, streamGenerateContent or countTokens."
        raise Refusal(404, message, "unknown_url")
    stream = method == "streamGenerateContent"
    wire = gemini_array() if stream and alt != "sse" else GEMINI
    prepared = await off_the_loop(len(body), _prepare, front, name, body, kept, stream, wire)
    return await respond(http, front, prepared, salt)


def _prepare(front: Front, name: str, body: bytes, kept: Kept, stream: bool, wire: Wire) -> Call:
    front.check_model(name)
    request, cached = kept.whole(gemini.parse_generate(body))
    model, tokenizer = front.service.model, front.service.tokenizer
    tokens = _tokens(front, request)
    config = request.generation_config
    sampling = config.sampling()
    sampling["max_tokens"] = chat_length(sampling.get("max_tokens"), len(tokens), model.context)
    sampling["grammar"] = request.grammar_for(call_form(tokenizer))
    params = params_of_choices(sampling, config.candidate_count or 1)

    def count(found: int) -> int:
        if cached is not None and found < len(cached.tokens):
            # What was evicted all the same has been computed again by now.
            front.service.hint(kept.contents.pins(kept.salt))
        return counted(found, minimum("gemini", name), cached)

    rendering = GeminiRendering(request, name, len(tokens), tokenizer, wire, count)
    return Call([(tokens, each) for each in params], rendering, stream)


def _count(front: Front, name: str, body: bytes, kept: Kept) -> Response:
    front.check_model(name)
    request, cached = kept.whole(gemini.parse_count(body))
    return JsonResponse(gemini.counted(len(_tokens(front, request)), 0 if cached is None else len(cached.tokens)))


def _tokens(front: Front, request: GenerateRequest) -> Tokens:
    text = chat_text(front.service.tokenizer, request.talk())
    return front.encoding.text(text, param="contents", add_special_tokens=False)


@dataclass
class _Choice:
    """One answer as it grows. `parser` is None where no functions were declared."""

    parser: ToolCallParser | None
    said: list[str | ToolCall] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    length: int = 0
    finish_reason: str | None = None

    def take(self, output: Output) -> list[str | ToolCall]:
        """What `output` adds for certain, in order; it is also kept, its texts joined."""
        self.length += len(output.token_ids)
        self.finish_reason = output.finish_reason
        new: list[str | ToolCall] = [output.text] if self.parser is None else self.parser.push(output.text)
        if self.parser is not None and output.finish_reason is not None:
            new += self.parser.finish()
        for piece in new:
            if isinstance(piece, str) and self.said and isinstance(self.said[-1], str):
                self.said[-1] += piece
            else:
                self.said.append(piece)
        return new


class GeminiRendering:
    """Renders the answers to one generateContent request.

    n: tokens of its prompt; count: told how many of them the engine took from its cache, says how many count as cached.
    """

    def __init__(
        self,
        request: GenerateRequest,
        model: str,
        n: int,
        tokenizer: PreTrainedTokenizerBase,
        wire: Wire,
        count: Callable[[int], int],
    ) -> None:
        self.id = uuid.uuid4().hex
        self.wire = wire
        self._model, self._n, self._tokenizer = model, n, tokenizer
        self._choices = [
            _Choice(ToolCallParser() if request.uses_tools else None)
            for _ in range(request.generation_config.candidate_count or 1)
        ]
        self._cached: Mapping[str, int] | None = None
        self._count, self._counted = count, 0
        self._lines: list[RequestLine] = []

    def push(self, index: int, output: Output) -> list[Json]:
        """See `Rendering`."""
        choice = self._choices[index]
        said = choice.take(output)
        logprobs = token_logprobs(self._tokenizer, output.samples)
        choice.logprobs += logprobs
        self._note(output)
        if not (any(said) or logprobs or output.finish_reason):
            return []
        candidate = gemini.candidate(index, _parts(said), output.finish_reason, logprobs)
        return [gemini.answer(self.id, self._model, [candidate], self._usage())]

    def whole(self, lines: Sequence[RequestLine]) -> Json:
        """See `Rendering`."""
        candidates = [
            gemini.candidate(index, _parts(choice.said), choice.finish_reason, choice.logprobs)
            for index, choice in enumerate(self._choices)
        ]
        return gemini.answer(self.id, self._model, candidates, self._usage())

    def end(self, lines: Sequence[RequestLine]) -> list[Json]:
        """See `Rendering`: the chunk with the last answer's end has said it all."""
        return []

    def failed(self, error: Exception) -> list[Json]:
        """See `Rendering`."""
        return [gemini.error_body(error)]

    def _note(self, output: Output) -> None:
        if output.line is not None:
            self._lines.append(output.line)
        found = output.cached if output.line is None else output.line.use.cached
        # Of several answers the first finds what was cached before; the others find its prompt.
        if found is not None and (self._cached is None or sum(found.values()) < sum(self._cached.values())):
            self._cached = found
            self._counted = self._count(sum(found.values()))

    def _usage(self) -> Json:
        """What has been used up to now; with the ledger's line when all is known."""
        cached = self._cached or {}
        use = TokenUse(
            logical=self._n,
            cached=cached,
            computed=self._n - sum(cached.values()),
            output=sum(choice.length for choice in self._choices),
        )
        line = together(self._lines, self.id) if len(self._lines) == len(self._choices) else None
        return gemini.usage(use, self._counted, line)


def _parts(said: Sequence[str | ToolCall]) -> list[Json]:
    """At least one: clients take an answer without parts for an invalid one."""
    return [gemini.part(piece) for piece in said if piece] or [gemini.part("")]
