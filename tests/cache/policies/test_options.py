"""Options as users write them: what is wrong is named before anything is built."""

from __future__ import annotations

import dataclasses

import pytest

from longturn.cache.policies.base import Sizes
from longturn.cache.policies.options import split
from longturn.cache.policies.registry import POLICIES, all_options, make_policy
from longturn.errors import ConfigError

COUNTS = [
    (name, field.name)
    for name, policy in POLICIES.items()
    for field in dataclasses.fields(policy.options)
    if field.metadata.get("tokens") and field.default
]


def test_names_and_options_are_split() -> None:
    assert split("vllm") == ("vllm", {})
    assert split(" vllm : block_size = 32,") == ("vllm", {"block_size": "32"})
    for text in ("vllm:block_size", "vllm:=3", "vllm:a=1,a=2"):
        with pytest.raises(ConfigError, match="is no option: write NAME:key=value"):
            split(text)


def test_names_that_are_none() -> None:
    for wrong in ("", "VLLM", "nope"):
        for ask in (lambda name: all_options(name, {}), lambda name: make_policy(name, {}, Sizes(100))):
            with pytest.raises(ConfigError, match="choose one of lightllm, llamacpp"):
                ask(wrong)


@pytest.mark.parametrize(("name", "option"), COUNTS)
@pytest.mark.parametrize("value", [0, -1, -64, "x", "1.5", "", "true"])
def test_sizes_that_cannot_be(name: str, option: str, value: object) -> None:
    """Either they mean something, as no limit, or they are refused with the option's name."""
    refused = ""
    try:
        make_policy(name, {option: value}, Sizes(2000, 1000))
    except ConfigError as error:
        refused = str(error)
    # 0 and less are no limit, or none of it, where an option allows them.
    assert option in refused or "a page has" in refused or value in (0, -1, -64)


def test_values_of_the_wrong_kind() -> None:
    wrong = {
        "trtllm:partial_reuse=yes": "write true or false",
        "sglang:eviction=best": "choose one of lru, lfu",
        "vllm:blocksize=16": "its options are block_size",
        "none:block_size=16": "its options are none",
    }
    for text, message in wrong.items():
        name, options = split(text)
        with pytest.raises(ConfigError, match=message):
            all_options(name, options)


def test_symbols_of_several_tokens_scale_counts_alone() -> None:
    cache = make_policy("vllm", {"block_size": 100}, Sizes(10, unit=64))
    assert cache.page_size == 2
    with pytest.raises(ConfigError, match="give at least one block of 64 tokens"):
        make_policy("vllm", {}, Sizes(0, unit=64))
