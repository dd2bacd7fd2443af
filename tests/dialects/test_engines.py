"""The table, and telling engines apart."""

from __future__ import annotations

import pytest

from longturn.dialects.engines import ENGINES, detect, named
from longturn.errors import ConfigError

SEVEN = ("vllm", "sglang", "trtllm", "tgi", "lmdeploy", "lightllm", "llamacpp")


@pytest.mark.parametrize("name", [*SEVEN, "longturn"])
def test_every_engine_is_known_by_its_metrics(name: str) -> None:
    engine = named(name)
    counter = sorted(engine.counters)[0]
    page = f'# HELP {counter} Tokens.\n# TYPE {counter} counter\n{counter}{{model_name="m"}} 5\n'
    assert detect(["", "python_info 1\n", page], None) is engine
    assert all(name.startswith(engine.prefix) for name in engine.counters)


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        ("vllm", "vllm"),
        ("sglang", "sglang"),
        ("llamacpp", "llamacpp"),
        ("tensorrt_llm", "trtllm"),
        ("lmdeploy", "lmdeploy"),
    ],
)
def test_an_engine_without_metrics_is_known_by_the_owner_of_its_model(owner: str, name: str) -> None:
    assert detect(["python_info 1\n"], owner) is ENGINES[name]


def test_metrics_tell_more_than_an_owner() -> None:
    assert detect(["sglang:prompt_tokens_total 1\n"], "vllm") is ENGINES["sglang"]


def test_what_is_not_known() -> None:
    assert detect(["# vllm: was here\n", "other_total 1\n"], "HuggingFaceTB/SmolLM2") is None
    assert detect([], None) is None
    with pytest.raises(ConfigError, match="use one of longturn, vllm"):
        named("vlm")


def test_only_what_reports_cached_tokens_is_asked_for_them() -> None:
    never = {name for name, engine in ENGINES.items() if engine.usage_option is None}
    assert never == {"tgi"}
    assert {name for name in SEVEN if not ENGINES[name].cached} == never
