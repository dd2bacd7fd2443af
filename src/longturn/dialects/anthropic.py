"""Anthropic's Messages: the one face of this dialect."""

from longturn.dialects.anthropic_errors import error_body, error_status
from longturn.dialects.anthropic_request import NEW, OLD, VERSIONS, CountRequest, MessagesRequest, parse, parse_count
from longturn.dialects.anthropic_response import (
    block_stop,
    compaction,
    compaction_block,
    message,
    message_delta,
    message_start,
    message_stop,
    model_list,
    model_object,
    new_call_id,
    new_message_id,
    text_block,
    text_delta,
    text_start,
    tool_use,
    tool_use_block,
)
from longturn.dialects.anthropic_talk import Parts, talk
from longturn.dialects.anthropic_usage import Cached, iteration, prompt_usage, usage, use

__all__ = [
    "NEW",
    "OLD",
    "VERSIONS",
    "Cached",
    "CountRequest",
    "MessagesRequest",
    "Parts",
    "block_stop",
    "compaction",
    "compaction_block",
    "error_body",
    "error_status",
    "iteration",
    "message",
    "message_delta",
    "message_start",
    "message_stop",
    "model_list",
    "model_object",
    "new_call_id",
    "new_message_id",
    "parse",
    "parse_count",
    "prompt_usage",
    "talk",
    "text_block",
    "text_delta",
    "text_start",
    "tool_use",
    "tool_use_block",
    "usage",
    "use",
]
