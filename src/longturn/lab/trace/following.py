"""What the next request of a conversation shows of the answer before it."""

from __future__ import annotations

from dataclasses import replace

from longturn.lab.trace.form import TraceRequest

ANSWERS_SHOWN = (
    "Answers are known where the next request of the conversation repeats them, as far as whole blocks go; the first "
    "block holds the prompt's end and the answer's beginning."
)


def with_answer(request: TraceRequest, following: TraceRequest, unit: int) -> TraceRequest:
    """The request with the whole blocks of its answer that the `following` prompt repeats.

    Unchanged where `following` does not begin with all whole blocks of its prompt, or where the answer is known.
    """
    n_prompt = request.prompt_tokens // unit
    goes_on = request.prompt.part(0, n_prompt).shared_with(following.prompt) == n_prompt
    if request.output is not None or not goes_on:
        return request
    n_both = min(request.prompt_tokens + request.output_tokens, following.prompt_tokens) // unit
    return replace(request, output=following.prompt.part(n_prompt, max(n_prompt, n_both)))
