"""Every policy by name. A new one is a file beside this and a line in `POLICIES`."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from longturn.cache.contract import PrefixCache
from longturn.cache.policies.base import Sizes
from longturn.cache.policies.lightllm import LightLLMCache, LightLLMOptions
from longturn.cache.policies.llamacpp import LlamaCppCache, LlamaCppOptions
from longturn.cache.policies.lmdeploy_classic import ClassicCache, ClassicOptions
from longturn.cache.policies.lmdeploy_pytorch import PyTorchCache, PyTorchOptions
from longturn.cache.policies.lmdeploy_turbomind import TurboMindCache, TurboMindOptions
from longturn.cache.policies.longturn import LongturnCache, LongturnOptions
from longturn.cache.policies.none import NoCache
from longturn.cache.policies.options import choice, read, scaled, tokens
from longturn.cache.policies.sglang import SGLangCache, SGLangOptions
from longturn.cache.policies.sglang_hicache import HiCache, HiCacheOptions
from longturn.cache.policies.sglang_storage import StorageHiCache
from longturn.cache.policies.tgi import TgiCache, TgiOptions
from longturn.cache.policies.trtllm import TrtllmCache, TrtllmOptions
from longturn.cache.policies.vllm import VllmCache, VllmOptions
from longturn.cache.policies.vllm_offload import VllmOffloadCache, VllmOffloadOptions
from longturn.errors import ConfigError


@dataclass(frozen=True)
class LongturnChoices:
    """What `longturn` lets users choose beside its sizes."""

    page_size: int = tokens(16, "tokens in a page of the tiers below", least=1)
    eviction: Literal["lru", "lfu", "fifo", "slru", "priority", "cost"] = choice("lru", "eviction order")
    write_policy: Literal["write_through", "write_through_selective", "write_back"] = choice(
        "write_through", "when pages are copied to the tiers below"
    )


@dataclass(frozen=True)
class NoChoices:
    """A policy without options."""


@dataclass(frozen=True)
class Policy:
    """options: its dataclass; build: makes the cache from scaled options and sizes; models: what it is, in a line.

    refused: what replays print for a request that does not fit. The reference runs of SGLang and LightLLM, whose real
    schedulers shorten or delay such requests, leave them empty.
    """

    options: type[Any]
    build: Callable[[Any, Sizes], PrefixCache]
    models: str
    refused: str | None = "rejected"


def _longturn(options: LongturnChoices, sizes: Sizes) -> PrefixCache:
    fields = dataclasses.asdict(options)
    return LongturnCache(
        LongturnOptions(sizes.device, host_pages=sizes.host // options.page_size, **fields),
        clock=sizes.clock,
        pool=sizes.pool(sizes.device),
    )


def _hicache(options: HiCacheOptions, sizes: Sizes, *, classic: bool = False) -> PrefixCache:
    kind = HiCache if options.storage == "none" else StorageHiCache
    return kind(options, sizes, classic=classic)


POLICIES: dict[str, Policy] = {
    "lightllm": Policy(
        LightLLMOptions, LightLLMCache, "LightLLM: requests enter a radix tree when they end", refused=None
    ),
    "llamacpp": Policy(LlamaCppOptions, LlamaCppCache, "llama.cpp's server: slots, and whole prompts in host memory"),
    "lmdeploy-pytorch": Policy(PyTorchOptions, PyTorchCache, "LMDeploy's PyTorch engine: blocks, indexed late"),
    "lmdeploy-turbomind": Policy(TurboMindOptions, TurboMindCache, "LMDeploy's TurboMind: blocks, reused to the token"),
    "lmdeploy-turbomind-classic": Policy(ClassicOptions, ClassicCache, "LMDeploy's TurboMind up to 0.14"),
    "sglang": Policy(SGLangOptions, SGLangCache, "SGLang: radix tree of pages, whole leaves go", refused=None),
    "sglang-classic": Policy(
        SGLangOptions, partial(SGLangCache, classic=True), "SGLang as it was in 0.5.16", refused=None
    ),
    "sglang-hicache": Policy(
        HiCacheOptions, _hicache, "SGLang with host memory, and a storage in replays", refused=None
    ),
    "sglang-hicache-classic": Policy(
        HiCacheOptions, partial(_hicache, classic=True), "HiCache as it was in 0.5.16", refused=None
    ),
    "tgi": Policy(TgiOptions, TgiCache, "TGI v3: a radix trie of prompts, output room taken up front"),
    "trtllm": Policy(TrtllmOptions, TrtllmCache, "TensorRT-LLM V1: trie of blocks, reuse in part, host by swapping"),
    "vllm": Policy(VllmOptions, VllmCache, "vLLM: hash-chained blocks, least recently released go first"),
    "vllm-offload": Policy(
        VllmOffloadOptions, VllmOffloadCache, "vLLM with its host tier, LRU or ARC, written through"
    ),
    "longturn": Policy(LongturnChoices, _longturn, "Longturn's own: radix tree, reuse to the token, tails go first"),
    "none": Policy(NoChoices, lambda options, sizes: NoCache(sizes.device), "no cache: the baseline"),
}


def make_policy(name: str, given: Mapping[str, Any], sizes: Sizes) -> PrefixCache:
    """The policy called `name` with options as texts or values, for `sizes` (capacities in units of `sizes.unit`).

    Raises ConfigError for names and values that cannot be, saying what could.
    """
    policy = _named(name)
    if sizes.device < 1:
        raise ConfigError(f"policy {name} is given no device memory: give at least one block of {sizes.unit} tokens")
    return policy.build(scaled(read(policy.options, given, name), sizes.unit), sizes)


def all_options(name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """The options of a policy with its defaults, as they are before scaling. Raises ConfigError as `make_policy`."""
    return dataclasses.asdict(read(_named(name).options, given, name))


def _named(name: str) -> Policy:
    if name not in POLICIES:
        raise ConfigError(f"no policy is called {name!r}: choose one of {', '.join(POLICIES)}")
    return POLICIES[name]
