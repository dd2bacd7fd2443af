"""Every policy under the real engine: many conversations at once, and each answer is that of an engine without cache.

Some requests are cancelled, some are preempted, tiers are cleared, and after every step the cache is sound.
"""

from __future__ import annotations

import contextlib
import random
from collections import Counter
from pathlib import Path

import pytest

from longturn.cache.policies.registry import POLICIES
from longturn.errors import ConfigError
from tests.engine.rig import TOKEN_BYTES, Asked, Reference, Rig, options, random_tokens, rig
from tests.engine.test_hit_equals_miss import conversation

# Beside the defaults, the choices that change where KV lies or how pages travel.
VARIANTS = (
    "lightllm:host_page_size=16",
    "llamacpp:slots=2,unified=false",
    "lmdeploy-pytorch:block_size=16",
    "lmdeploy-turbomind:block_size=16,cache_generation=all,cache_prompt=all",
    "lmdeploy-turbomind-classic:block_size=16",
    "sglang:page_size=8,chunked_prefill_size=32",
    "sglang-hicache:page_size=4,write_policy=write_back",
    "sglang-hicache:write_policy=write_through_selective",
    "sglang-hicache-classic:page_size=8",
    "tgi:block_size=8",
    "trtllm:tokens_per_block=8",
    "trtllm:partial_reuse=false",
    "vllm-offload:host_eviction=arc,offload_prompt_only=false",
    "vllm-offload:block_size=8,store_threshold=2",
    "longturn:page_size=8,eviction=slru,write_policy=write_back",
)
HOST_POLICIES = ("lightllm", "llamacpp", "sglang-hicache", "trtllm", "vllm-offload", "longturn")
ANSWER = 16
MET: Counter[str] = Counter()


class Talk:
    """One conversation: its request that runs, if any."""

    def __init__(self, seed: int, message: int) -> None:
        self.turns = conversation(seed, message)
        self.prompt: list[int] | None = next(self.turns)
        self.asked: Asked | None = None

    def answered(self, tokens: list[int]) -> None:
        self.asked, self.prompt = None, None
        with contextlib.suppress(StopIteration):
            self.prompt = self.turns.send(tokens)


def converse(one: Rig, right: Reference, seed: int) -> None:
    """Six conversations at once, short and long ones, over a device that holds two or three of them."""
    rng = random.Random(seed)
    talks = [Talk(10 * seed + n, 40 if n % 2 else 100) for n in range(6)]
    preempt = one.scheduler._preempt

    def counted(sequence: object) -> None:
        MET["preempted"] += 1
        preempt(sequence)  # type: ignore[arg-type]

    one.scheduler._preempt = counted  # type: ignore[method-assign,assignment]
    # What is met must not depend on how busy this machine is.
    one.stop_the_clock()
    for _ in range(3000):
        one.now += 0.01
        for talk in talks:
            if talk.asked is None and talk.prompt is not None and rng.random() < 0.3:
                # A conversation that has grown too long for the device is over.
                if len(talk.prompt) + ANSWER > one.engine.max_length:
                    talk.prompt = None
                    continue
                talk.asked = one.submit(talk.prompt, ANSWER)
        running = [talk for talk in talks if talk.asked is not None]
        if not running and all(talk.prompt is None for talk in talks):
            return
        if running and rng.random() < 0.01:
            gone = rng.choice(running)
            assert gone.asked is not None
            one.engine.cancel(gone.asked.request.id)
            assert gone.asked.reason == "cancelled"
            gone.asked = None
            MET["cancelled"] += 1
        if rng.random() < 0.005:
            one.clear(rng.choice(list(one.tiers())))
        one.step()
        for talk in running:
            if talk.asked is not None and talk.asked.done:
                assert talk.asked.reason == "length"
                assert talk.asked.tokens == right(talk.asked.prompt, ANSWER)
                assert sum(talk.asked.cached.values()) < len(talk.asked.prompt)
                for tier in talk.asked.cached:
                    MET[f"{one.cache.state().policy} {tier}"] += 1
                talk.answered(talk.asked.tokens)
    raise AssertionError("the conversations do not end")


@pytest.mark.parametrize("seed", [3, 4])
@pytest.mark.parametrize("policy", [*POLICIES, *VARIANTS])
def test_answers_are_right(policy: str, seed: int, llama: Path, right: Reference) -> None:
    with rig(llama, policy=policy, device_tokens=640, host_tokens=2000, max_running=4, chunk_tokens=128) as one:
        converse(one, right, seed)
        idle(one)


def idle(one: Rig) -> None:
    """Nobody is here any more: when all is cleared, nothing is held in any tier."""
    assert list(one.scheduler.all()) == []
    for tier in one.tiers():
        one.clear(tier)
    one.cache.check_integrity()
    assert set(one.tiers().values()) == {0}
    assert all(store.stats().pages == 0 for store in one.built.stores)


def test_the_conversations_have_met_everything() -> None:
    caching = [name for name in POLICIES if name != "none"]
    missing = [name for name in caching if not any(met.startswith(f"{name} ") for met in MET)]
    assert missing == []
    assert [name for name in HOST_POLICIES if not MET[f"{name} host"]] == []
    assert MET["preempted"] > 2
    assert MET["cancelled"] > 2


def test_a_host_tier_may_be_absent(llama: Path, right: Reference) -> None:
    for policy in HOST_POLICIES:
        with rig(llama, policy=policy, device_tokens=640, host_tokens=0) as one:
            prompt = random_tokens(100, 3)
            for _ in range(2):
                assert one.ask(prompt, 8).tokens == right(prompt, 8)
            assert one.built.stores == ()


def test_host_memory_is_given_in_tokens_or_bytes(llama: Path) -> None:
    for given in ({"host_tokens": 320}, {"host_bytes": 320 * TOKEN_BYTES}):
        with rig(llama, policy="vllm-offload", device_tokens=640, **given) as one:
            assert [(tier.name, tier.capacity) for tier in one.cache.state().tiers] == [("device", 640), ("host", 320)]


def test_salts_are_kept_apart(llama: Path, right: Reference) -> None:
    prompt = random_tokens(200, 9)
    for policy in POLICIES:
        with rig(llama, policy=policy, device_tokens=1000, host_tokens=640) as one:
            first, other = one.ask(prompt, 8, salt="a"), one.ask(prompt, 8, salt="b")
            again = one.ask(prompt, 8, salt="a")
            assert (first.cached, other.cached) == ({}, {})
            assert policy == "none" or sum(again.cached.values()) >= 128
            assert [asked.tokens for asked in (first, other, again)] == [right(prompt, 8)] * 3


def test_what_other_policies_do_not_have(tmp_path: Path) -> None:
    for change in (
        {"page_size": 32},
        {"eviction": "lfu"},
        {"write_policy": "write_back"},
        {"deterministic": True},
        {"disk_bytes": 1 << 20, "disk_dir": tmp_path},
    ):
        with pytest.raises(ConfigError, match="is for the policy longturn: give vllm its own options"):
            options(tmp_path, policy="vllm:block_size=16", **{"page_size": 16, **change})


def test_what_is_wrong_with_a_policy_is_said_before_a_model_is_loaded(tmp_path: Path) -> None:
    for policy, message in (
        ("nope", "no policy is called 'nope'"),
        ("vllm:nope=1", "its options are block_size"),
        ("vllm:block_size=0", "give at least 1"),
    ):
        with pytest.raises(ConfigError, match=message):
            options(tmp_path, policy=policy)


def test_what_the_device_shows_to_be_wrong(llama: Path) -> None:
    for policy, message in (
        ("vllm:block_size=4096", "less than a block"),
        ("sglang-hicache:storage=unlimited", "storage"),
    ):
        with pytest.raises(ConfigError, match=message), rig(llama, policy=policy, device_tokens=640):
            pass
