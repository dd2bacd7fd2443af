"""OpenAI Responses: the one face of this dialect."""

from longturn.dialects.responses_items import compactable, listed, new_id, opened, sealed
from longturn.dialects.responses_request import ConversationRequest, ResponsesRequest, parse, parse_conversation
from longturn.dialects.responses_response import Output, deleted, incomplete, input_tokens, items, response
from longturn.dialects.responses_usage import usage, use

__all__ = [
    "ConversationRequest",
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
    "parse_conversation",
    "response",
    "sealed",
    "usage",
    "use",
]
