"""The table of engines that can be measured: what each reports, under which names, and how to make it report.

Metric names and start options are those of the engines' own source: vLLM 0.33 (`v1/metrics`), SGLang 0.5
(`srt/metrics`), TensorRT-LLM 1.4 (`metrics/collector.py`, `serve/openai_server.py`), TGI 3.3 (`router/src/server.rs`),
LMDeploy 0.16 (`metrics/loggers.py`), LightLLM (`server/metrics`), llama.cpp b11549 (`tools/server`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from longturn.errors import ConfigError

Way = Literal["ids", "text", "chat"]
"""How a prompt is sent: token ids or text to /v1/completions, or one user message to /v1/chat/completions."""


@dataclass(frozen=True, slots=True)
class Engine:
    """One engine, as a client sees it.

    prefix: how its metrics' names begin; logical, cached, computed: its counters of prompt tokens by their meaning in
    the ledger, as alternatives (the first that is there counts) of names that are added up; more: other counters worth
    showing; metrics_option, usage_option: what the server must be started with to have metrics, and to report cached
    tokens in each answer ("" where it always does, None where it never does); silent_zero: it leaves the field out of
    answers for which nothing was cached; ask: fields of a request that make it tell the token ids of its answer;
    window_at: the path and keys where it tells its window, if /v1/models does not.
    """

    name: str
    prefix: str
    way: Way
    logical: tuple[tuple[str, ...], ...] = ()
    cached: tuple[tuple[str, ...], ...] = ()
    computed: tuple[tuple[str, ...], ...] = ()
    more: tuple[str, ...] = ()
    metrics_path: str = "/metrics"
    metrics_option: str = ""
    usage_option: str | None = ""
    silent_zero: bool = False
    ask: Mapping[str, Any] = field(default_factory=dict)
    window_at: tuple[str, ...] = ()

    @property
    def counters(self) -> frozenset[str]:
        """Every name that is read."""
        groups = (*self.logical, *self.cached, *self.computed)
        return frozenset(name for group in groups for name in group) | frozenset(self.more)


ENGINES = {
    engine.name: engine
    for engine in (
        Engine(
            name="longturn",
            prefix="longturn_",
            way="ids",
            logical=(("longturn_logical_tokens_total",),),
            cached=(("longturn_cached_tokens_total",),),
            computed=(("longturn_computed_tokens_total",),),
            more=("longturn_cache_evicted_tokens_total", "longturn_cache_loaded_tokens_total"),
        ),
        Engine(
            name="vllm",
            prefix="vllm:",
            way="ids",
            logical=(("vllm:prompt_tokens_total",),),
            cached=(
                ("vllm:prompt_tokens_cached_total",),
                ("vllm:prefix_cache_hits_total", "vllm:external_prefix_cache_hits_total"),
            ),
            more=(
                "vllm:prefix_cache_queries_total",
                "vllm:prefix_cache_hits_total",
                "vllm:external_prefix_cache_queries_total",
                "vllm:external_prefix_cache_hits_total",
                "vllm:prompt_tokens_cached_by_source_total",
                "vllm:num_preemptions_total",
            ),
            usage_option="--enable-prompt-tokens-details",
            silent_zero=True,
            ask={"return_token_ids": True},
        ),
        Engine(
            name="sglang",
            prefix="sglang:",
            way="ids",
            logical=(("sglang:prompt_tokens_total",),),
            cached=(("sglang:cached_tokens_total",),),
            more=(
                "sglang:evicted_tokens_total",
                "sglang:load_back_tokens_total",
                "sglang:num_retracted_requests_total",
            ),
            metrics_option="--enable-metrics",
            usage_option="--enable-cache-report",
            silent_zero=True,
        ),
        Engine(
            name="trtllm",
            prefix="trtllm_",
            way="ids",
            logical=(("trtllm_prompt_tokens_total",),),
            cached=(("trtllm_prompt_cached_tokens_total",),),
            # In blocks: one that is used in part counts like a whole one.
            more=("trtllm_kv_cache_reused_blocks_total", "trtllm_kv_cache_missed_blocks_total"),
            # Its /metrics is a JSON list of iterations.
            metrics_path="/prometheus/metrics",
            metrics_option="return_perf_metrics: true in the file of --extra_llm_api_options",
        ),
        Engine(
            name="tgi",
            prefix="tgi_",
            way="text",
            logical=(("tgi_request_input_length_sum",),),
            usage_option=None,
            window_at=("/info", "max_total_tokens"),
        ),
        Engine(
            name="lmdeploy",
            prefix="lmdeploy:",
            # Its /v1/completions does not report cached tokens.
            way="chat",
            logical=(("lmdeploy:prompt_tokens_total",),),
            cached=(("lmdeploy:cached_tokens_total",), ("lmdeploy:request_cached_tokens_sum",)),
            metrics_option="--enable-metrics (on by default in newer releases)",
        ),
        Engine(
            name="lightllm",
            prefix="lightllm_",
            way="ids",
            logical=(("lightllm_prompt_tokens_total",),),
            cached=(("lightllm_cache_length_sum",),),
        ),
        Engine(
            name="llamacpp",
            prefix="llamacpp:",
            way="ids",
            # Processed tokens only: the cached ones are counted beside them.
            computed=(("llamacpp:prompt_tokens_total",),),
            cached=(("llamacpp:prompt_tokens_cached_total",),),
            metrics_option="--metrics",
            ask={"logprobs": 1},
            window_at=("/props", "default_generation_settings", "n_ctx"),
        ),
        Engine(name="openai", prefix="", way="text"),
    )
}
"""By name. `openai` is any other server that speaks OpenAI's wire format: no metrics of it are read."""

OWNERS = {"llamacpp": "llamacpp", "llama.cpp": "llamacpp", "tensorrt_llm": "trtllm"}
"""`owned_by` in /v1/models, where it is not the engine's name here."""


def named(name: str) -> Engine:
    """The engine of that name. Raises ConfigError."""
    if name not in ENGINES:
        raise ConfigError(f"no engine is called {name!r}: use one of {', '.join(ENGINES)}")
    return ENGINES[name]


def detect(metrics: Iterable[str], owner: str | None) -> Engine | None:
    """The engine whose metrics pages these are (their texts), else the one that owns the model, if any."""
    for text in metrics:
        lines = [line for line in text.splitlines() if line and not line.startswith("#")]
        for engine in ENGINES.values():
            if engine.prefix and any(line.startswith(engine.prefix) for line in lines):
                return engine
    return ENGINES.get(OWNERS.get(owner or "", owner or ""))


def metrics_paths() -> tuple[str, ...]:
    """Where engines keep their metrics, each path once."""
    return tuple(dict.fromkeys(engine.metrics_path for engine in ENGINES.values()))
