"""The seven engines, the policy that stands for each when all are given host memory, and the published opinion."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Engine:
    """title: for people; policy: what stands for it; published: its place in the published opinion, 1 the best."""

    title: str
    policy: str
    published: int | None


ENGINES = (
    Engine("SGLang HiCache", "sglang-hicache", 1),
    Engine("TensorRT-LLM", "trtllm", 2),
    Engine("TGI v3", "tgi", 3),
    Engine("LMDeploy", "lmdeploy-turbomind", 4),
    Engine("vLLM", "vllm-offload", 5),
    Engine("LightLLM", "lightllm", 6),
    Engine("llama.cpp", "llamacpp", 7),
    Engine("Longturn", "longturn", None),
)
BY_POLICY = {engine.policy: engine for engine in ENGINES}
# Policies that keep KV in host memory when they are given some.
HOST_POLICIES = frozenset(
    ("sglang-hicache", "sglang-hicache-classic", "trtllm", "vllm-offload", "lightllm", "longturn", "llamacpp")
)
