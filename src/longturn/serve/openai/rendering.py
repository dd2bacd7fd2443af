"""From the engine's outputs to a response object and its events."""

from __future__ import annotations

import time
import uuid
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from longturn.dialects import openai, responses
from longturn.dialects.tool_calls import ToolCallParser
from longturn.engine import Output
from longturn.ledger import RequestLine
from longturn.serve.caching.openai import OpenAICache, Plan, applied, regime_of
from longturn.serve.caching.openai_diagnostics import Record, diagnosed
from longturn.serve.openai.logprobs import token_logprobs
from longturn.serve.openai.prompt import Prompted
from longturn.serve.openai.stored import Stored, StoredResponses
from longturn.serve.openai.usage import together
from longturn.serve.wires import RESPONSES

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

Json = dict[str, Any]


class ResponsesRendering:
    """Renders the answer to one request, and stores it when it is complete, unless the request says otherwise.

    Of a request that only warms the cache nothing is shown but its usage.
    """

    wire = RESPONSES

    def __init__(
        self,
        prompt: Prompted,
        cache: OpenAICache,
        plan: Plan,
        tokenizer: PreTrainedTokenizerBase,
        stored: StoredResponses,
        owner: str,
        first: Sequence[Json] = (),
    ) -> None:
        """first: items that the answer begins with, which are there already."""
        self.id = f"resp_{uuid.uuid4().hex}"
        self._prompt, self._tokenizer, self._stored, self._owner = prompt, tokenizer, stored, owner
        self._cache, self._plan, self._first = cache, plan, first
        self._created = int(time.time())
        self._parser = ToolCallParser() if prompt.request.uses_tools else None
        self._output = responses.Output()
        self._started = False
        self._cut = False

    def push(self, index: int, output: Output) -> list[Json]:
        """See `Rendering`."""
        self._plan.see(index, output)
        events = [] if self._started else self._start()
        if self._prompt.prewarms:
            return events
        logprobs = openai.chat_logprobs(token_logprobs(self._tokenizer, output.samples))["content"]
        for part in self._parts(output):
            if isinstance(part, str):
                events += self._output.text(part, logprobs)
                logprobs = []
            else:
                events += self._output.call(part)
        if logprobs:
            # They go with their tokens, even where the text is held back.
            events += self._output.text("", logprobs)
        if output.finish_reason is not None:
            self._cut = output.finish_reason == "length"
            if len(self._output.items) == len(self._first) and not self._output.is_open:
                events += self._output.text("")
            events += self._output.closed("incomplete" if self._cut else "completed")
        return events

    def whole(self, lines: Sequence[RequestLine]) -> Json:
        """See `Rendering`."""
        line, count = together(lines, self.id), self._plan.count
        usage = responses.usage(line, count)
        if self._prompt.prewarms:
            # The one token that the engine could not do without is nobody's.
            usage |= {"output_tokens": 0, "total_tokens": usage["input_tokens"]}
        read = line.use.cached_total if count is None else count.read
        diagnostics = self._diagnosed(read)
        response = {**self._response("completed"), "usage": usage, "prompt_cache_diagnostics": diagnostics}
        if self._cut:
            response = responses.incomplete(response)
        request = self._prompt.request
        if request.conversation is not None:
            self._stored.conversations.add(request.conversation, self._owner, [*self._prompt.own, *self._output.items])
        if request.store is not False:
            self._stored.put(Stored(self._owner, response, self._prompt.own, request.previous_response_id))
        return response

    def end(self, lines: Sequence[RequestLine]) -> list[Json]:
        """See `Rendering`."""
        return self._output.ended(self.whole(lines))

    def failed(self, error: Exception) -> list[Json]:
        """See `Rendering`."""
        begun = [] if self._started else self._start()
        return [*begun, *self._output.failed(self._response("failed"), error)]

    def _start(self) -> list[Json]:
        self._started = True
        events = self._output.started(self._response("in_progress"))
        for item in self._first:
            events += self._output.item(item)
        return events

    def _response(self, status: str) -> Json:
        request = self._prompt.request
        response = responses.response(self.id, self._created, self._prompt.body, status, self._output.items)
        options = applied(request.model, request.prompt_cache_options)
        return {**response, "prompt_cache_options": options, "prompt_cache_diagnostics": None}

    def _diagnosed(self, read: int) -> Json | None:
        """Why the answer that the request names has left it no more to read. Remembers this request as well."""
        request, prompt = self._prompt.request, self._prompt.measured.prompt
        key = request.prompt_cache_key if regime_of(request.model) == "breakpoints" else None
        record = Record.of(prompt, key, self._plan.reusable)
        options, records = request.prompt_cache_options, self._cache.records
        diagnostics = None
        if options is not None and options.comparison_response_id is not None:
            earlier = records.find(self._owner, options.comparison_response_id)
            diagnostics = diagnosed(earlier, record, prompt, len(self._prompt.tokens), read)
        records.keep(self._owner, self.id, record)
        return diagnostics

    def _parts(self, output: Output) -> list[Any]:
        """What `output` adds for certain, in order: texts and calls."""
        if self._parser is None:
            return [output.text] if output.text else []
        parts = self._parser.push(output.text)
        return parts if output.finish_reason is None else [*parts, *self._parser.finish()]
