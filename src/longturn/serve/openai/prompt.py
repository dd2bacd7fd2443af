"""From a request of /v1/responses, and the stored answers that it continues, to a prompt."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from longturn.cache import Tokens
from longturn.dialects import responses
from longturn.dialects.responses import ResponsesRequest
from longturn.engine import SamplingParams
from longturn.errors import PromptTooLong
from longturn.serve.caching.openai_prompt import Measured, measure
from longturn.serve.chat_prompt import call_form
from longturn.serve.front import Front
from longturn.serve.limits import chat_length
from longturn.serve.openai.stored import StoredResponses

Json = dict[str, Any]


@dataclass(frozen=True)
class Prompted:
    """A request and what became of it.

    body: as it was sent, but with all items of the conversation as its input; own: the items of this request alone.
    """

    request: ResponsesRequest
    body: Mapping[str, Any]
    own: Sequence[Json]
    measured: Measured

    @property
    def tokens(self) -> Tokens:
        """The prompt, int32 [n]."""
        return self.measured.tokens

    @property
    def prewarms(self) -> bool:
        """Whether it shall only be cached, and not be answered."""
        options = self.request.prompt_cache_options
        return options is not None and options.prewarm is True


def prompted(front: Front, stored: StoredResponses, owner: str, body: Mapping[str, Any]) -> Prompted:
    """The prompt of a request with all that came before it. Raises RequestError, UnknownModel or PromptTooLong."""
    body = stored.resolved(body, owner)
    request = responses.parse(body)
    front.check_model(request.model)
    own = responses.listed(body.get("input") or [])
    before = stored.before(request, owner)
    body = {**body, "input": [*before, *own]}
    if before:
        request = responses.parse(body)
    try:
        return Prompted(request, body, own, _measured(front, body, request))
    except PromptTooLong:
        if request.truncation != "auto":
            raise
        return _truncated(front, body, own)


def with_item(front: Front, prompt: Prompted, item: Json) -> Prompted:
    """The same conversation with one more item at its end, which the answer begins with."""
    body = {**prompt.body, "input": [*prompt.body["input"], item]}
    request = responses.parse(body)
    return replace(prompt, request=request, body=body, measured=_measured(front, body, request))


def sampled(front: Front, prompt: Prompted) -> SamplingParams:
    """How the answer shall be sampled. Raises RequestError for a bad value."""
    request = prompt.request
    wanted = 1 if prompt.prewarms else request.max_output_tokens
    length = chat_length(wanted, len(prompt.tokens), front.service.model.context, param="input")
    grammar = request.grammar_for(call_form(front.service.tokenizer))
    return SamplingParams(**request.sampling(), max_tokens=length, grammar=grammar)


def _measured(front: Front, body: Mapping[str, Any], request: ResponsesRequest) -> Measured:
    """Raises PromptTooLong where no room would be left for an answer."""
    found = measure(front, "openai", body, request, lambda body: responses.parse(body).talk(), "input")
    chat_length(None, len(found.tokens), front.service.model.context, param="input")
    return found


def _truncated(front: Front, body: Mapping[str, Any], own: Sequence[Json]) -> Prompted:
    """The prompt without as many of the first items as it takes to fit. Raises PromptTooLong if the last one does not.

    A result goes with its call.
    """
    items = body["input"]
    starts = [at for at, item in enumerate(items) if item["type"] != "function_call_output"]
    low, high, best = 1, len(starts) - 1, None
    while low <= high:
        middle = (low + high) // 2
        shorter = {**body, "input": items[starts[middle] :]}
        request = responses.parse(shorter)
        try:
            best = Prompted(request, shorter, own, _measured(front, shorter, request))
            high = middle - 1
        except PromptTooLong:
            low = middle + 1
    if best is None:
        message = "Even the last item of the input alone is longer than the model's context: shorten it."
        raise PromptTooLong(message, param="input")
    return best
