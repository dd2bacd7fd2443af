"""Usage objects of every provider, with the convention that each has: the classic bug is to mix them up."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longturn.dialects import anthropic_usage, gemini_usage, openai_usage, responses_usage
from longturn.errors import LedgerError
from longturn.ledger import RequestLine, TokenUse


def provider(logical: int, cached: int, **counts: int) -> TokenUse:
    return TokenUse(logical=logical, cached={"provider": cached}, computed=logical - cached, **counts)


def test_responses_include_cached_and_written_tokens():
    usage = {
        "input_tokens": 1500,
        "input_tokens_details": {"cached_tokens": 1024, "cache_write_tokens": 256},
        "output_tokens": 12,
        "output_tokens_details": {"reasoning_tokens": 7},
    }
    assert responses_usage.use(usage) == provider(1500, 1024, output=12, reasoning=7, written=256)
    bare = {"input_tokens": 5, "input_tokens_details": None, "output_tokens": 1}
    assert responses_usage.use(bare) == provider(5, 0, output=1)


def test_anthropic_excludes_them():
    usage = {
        "input_tokens": 8,
        "cache_creation_input_tokens": 248,
        "cache_read_input_tokens": 1800,
        "cache_creation": {"ephemeral_5m_input_tokens": 148, "ephemeral_1h_input_tokens": 100},
        "output_tokens": 30,
        "output_tokens_details": {"thinking_tokens": 20},
    }
    assert anthropic_usage.use(usage) == provider(2056, 1800, output=30, reasoning=20, written=248)
    assert anthropic_usage.use({"input_tokens": 5, "cache_read_input_tokens": None}) == provider(5, 0)


def test_anthropic_stream_replaces_and_does_not_add():
    start = {"input_tokens": 8, "cache_read_input_tokens": 1800, "output_tokens": 1}
    end = {"input_tokens": None, "output_tokens": 42}
    assert anthropic_usage.use(anthropic_usage.joined(start, end)) == provider(1808, 1800, output=42)


def test_gemini_includes_cached_tokens_and_excludes_thoughts():
    usage = {
        "promptTokenCount": 1500,
        "cachedContentTokenCount": 1024,
        "candidatesTokenCount": 2,
        "thoughtsTokenCount": 5,
        "toolUsePromptTokenCount": 100,
        "totalTokenCount": 1607,
    }
    found = gemini_usage.use(usage)
    assert found == provider(1600, 1024, output=7, reasoning=5)
    assert found.logical + found.output == usage["totalTokenCount"]
    assert gemini_usage.use({"promptTokenCount": 3}) == provider(3, 0)


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": 100, "prompt_cache_hit_tokens": 60, "prompt_cache_miss_tokens": 40, "completion_tokens": 4},
        {"prompt_tokens": 100, "cached_tokens": 60, "completion_tokens": 4},
        {"prompt_tokens": 100, "prompt_tokens_details": {"cached_tokens": 60}, "completion_tokens": 4},
    ],
    ids=["deepseek", "kimi", "openai"],
)
def test_servers_of_openais_kind_name_hits_differently(usage: dict):
    assert openai_usage.use(usage) == provider(100, 60, output=4)


def test_an_exclusive_count_taken_for_an_inclusive_one_is_refused():
    with pytest.raises(LedgerError):
        responses_usage.use({"input_tokens": 8, "input_tokens_details": {"cached_tokens": 1800}})
    with pytest.raises(LedgerError):
        gemini_usage.use({"promptTokenCount": 8, "cachedContentTokenCount": 1800})


@given(cached=st.integers(0, 5000), computed=st.integers(0, 5000), output=st.integers(0, 900), more=st.integers(0, 900))
def test_gemini_says_what_it_was_told(cached: int, computed: int, output: int, more: int):
    use = provider(cached + computed, cached, output=output + more, reasoning=more)
    usage = gemini_usage.usage(use, cached)
    assert gemini_usage.use(usage) == use
    assert usage["totalTokenCount"] == use.logical + use.output


def test_longturns_own_gemini_usage_carries_the_tiers():
    use = TokenUse(logical=10, cached={"host": 4}, computed=6, output=1)
    usage = gemini_usage.usage(use, 0, RequestLine("r", None, "m", 1.0, use))
    assert usage["cachedContentTokenCount"] == 0
    assert gemini_usage.use(usage) == use
