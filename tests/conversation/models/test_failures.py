import pytest

from longturn.conversation.models.failures import failure
from longturn.errors import ContextOverflow

OVERFLOWS = [
    "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000 tokens.",
    "prompt is too long: 204914 tokens > 200000 maximum",
    "input length and `max_tokens` exceed context limit: 190000 + 20000 > 200000",
    "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).",
    "Your input exceeds the context window of this model. Please adjust your input and try again.",
    "the request exceeds the available context size, try increasing it",
    "The prompt has 9,000 tokens and up to 100 output tokens do not fit the model's context of 8,192 tokens",
    "`inputs` tokens + `max_new_tokens` must be <= 4096. Given: 4000 `inputs` tokens and 200 `max_new_tokens`",
    "Please reduce the length of the messages or completion.",
    "This model's maximum prompt length is 131072 but the request contains 200000 tokens.",
]
OTHERS = [
    "Rate limit reached for gpt-x: Limit 30000 tokens per min. Requested 40000.",
    "max_tokens: 200000 > 128000, which is the maximum allowed number of output tokens",
    "You exceeded your current quota, please check your plan and billing details.",
    "Number of request tokens has exceeded your per-minute rate limit",
    "messages: at least one message is required",
]


@pytest.mark.parametrize("message", OVERFLOWS)
def test_overflows_in_many_words(message: str):
    error = failure(message, status=400)
    assert isinstance(error, ContextOverflow)
    assert not error.retryable


@pytest.mark.parametrize("message", OTHERS)
def test_what_is_no_overflow(message: str):
    assert not isinstance(failure(message, status=429), ContextOverflow)


def test_an_overflow_by_its_code_or_status():
    assert isinstance(failure("no", status=400, kind="context_length_exceeded"), ContextOverflow)
    assert isinstance(failure("no", status=413), ContextOverflow)


def test_what_may_be_tried_again():
    assert failure("busy", status=503).retryable
    assert failure("busy", status=529).retryable
    assert failure("busy", kind="overloaded_error").retryable
    assert not failure("no", status=404).retryable
    assert not failure("You exceeded your current quota", status=429, kind="insufficient_quota").retryable
    assert not failure("busy", status=503, headers={"x-should-retry": "false"}).retryable
    assert failure("odd", status=400, headers={"x-should-retry": "true"}).retryable


def test_when_to_try_again():
    assert failure("", status=429, headers={"retry-after": "2"}).retry_after == 2
    assert failure("", status=429, headers={"retry-after": "2", "retry-after-ms": "1500"}).retry_after == 1.5
    assert failure("", status=429, headers={"retry-after": "Mon, 30 Nov 2026 07:00:00 GMT"}).retry_after is None
