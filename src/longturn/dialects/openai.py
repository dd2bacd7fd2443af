"""OpenAI Chat Completions and Completions: the one face of this dialect."""

from longturn.dialects.openai_logprobs import TokenLogprob, chat_logprobs, completion_logprobs
from longturn.dialects.openai_request import ChatRequest, CompletionRequest, parse_chat, parse_completion
from longturn.dialects.openai_response import (
    ChatStream,
    CompletionStream,
    chat_choice,
    chat_completion,
    completion,
    completion_choice,
    error_body,
    error_status,
    model_list,
    model_object,
)
from longturn.dialects.openai_usage import usage, use

__all__ = [
    "ChatRequest",
    "ChatStream",
    "CompletionRequest",
    "CompletionStream",
    "TokenLogprob",
    "chat_choice",
    "chat_completion",
    "chat_logprobs",
    "completion",
    "completion_choice",
    "completion_logprobs",
    "error_body",
    "error_status",
    "model_list",
    "model_object",
    "parse_chat",
    "parse_completion",
    "usage",
    "use",
]
