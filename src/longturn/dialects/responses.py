"""OpenAI Responses: the one face of this dialect."""

from longturn.dialects.responses_items import compactable, listed, new_id, opened, sealed
from longturn.dialects.responses_request import ResponsesRequest, parse
from longturn.dialects.responses_response import Output, deleted, incomplete, input_tokens, items, response
from longturn.dialects.responses_usage import usage, use

__all__ = [
    "Output",
    "ResponsesRequest",
    "compactable",
    "deleted",
    "incomplete",
    "input_tokens",
    "items",
    "listed",
    "new_id",
    "opened",
    "parse",
    "response",
    "sealed",
    "usage",
    "use",
]
