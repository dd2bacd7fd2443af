"""A hit never changes the answer: random conversations, with what is cached and where it lies left to chance."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from longturn.engine.build import build
from tests.engine.rig import PAGE_BYTES, Asked, Rig, options, random_tokens, rig

CONVERSATIONS = 50


def conversation(seed: int, message: int) -> Iterator[list[int]]:
    """Prompts of the turns of one conversation. Send each answer in; it becomes part of the history, or is edited."""
    rng = random.Random(seed)
    history = random_tokens(rng.randint(1, 2 * message), seed)
    trunk = history
    for turn in range(rng.randint(3, 5)):
        said = yield history
        assert said is not None
        history = history + said
        match rng.randrange(6):
            case 0:  # a branch: the user goes back to the first message
                trunk, history = history, trunk
            case 1 if len(history) > 8:  # an edit in the middle, behind which nothing is as before
                at = rng.randrange(len(history))
                history = [*history[:at], rng.randint(33, 125), *history[at + 1 :]]
            case 2 if len(history) > 8:  # a tool result is cut out
                at = rng.randrange(len(history))
                history = history[:at] + history[at + rng.randint(1, 60) :]
            case 3:  # the answer is asked for again
                history = history[: -len(said)] or history
        history = history + random_tokens(rng.randint(1, message), 1000 * seed + turn)


def converse(one: Rig, cold: Rig, seed: int, *, message: int, answer: int, **params: int) -> set[str]:
    """Hold one conversation, comparing each answer; returns the tiers that took part."""
    rng = random.Random(-seed - 1)
    seen: set[str] = set()
    turns = conversation(seed, message)
    prompt = next(turns)
    while True:
        one.clear(*rng.choice([(), (), ("device",), ("device", "host")]))
        warm, miss = one.ask(prompt, answer, **params), cold.ask(prompt, answer, **params)
        same(warm, miss)
        seen |= set(warm.cached)
        try:
            prompt = turns.send(warm.tokens)
        except StopIteration:
            return seen


def same(warm: Asked, miss: Asked) -> None:
    assert miss.cached == {}
    assert warm.tokens == miss.tokens
    assert warm.text == miss.text
    # With logprobs they are those of the five best tokens, to the last bit.
    if warm.request.params.logprobs is not None:
        assert warm.logprobs == miss.logprobs


@pytest.mark.parametrize("device_tokens", [900, 4000])
def test_the_same_tokens_in_float32(llama: Path, tmp_path: Path, device_tokens: int) -> None:
    tiers = {"host_bytes": 200 * PAGE_BYTES, "disk_bytes": 16 << 20, "disk_dir": tmp_path}
    with rig(llama, **tiers, device_tokens=device_tokens) as one, rig(llama, cache=False) as cold:
        seen: set[str] = set()
        for seed in range(CONVERSATIONS // 2):
            seen |= converse(one, cold, seed + device_tokens, message=80, answer=8)
        assert seen == {"device", "host", "disk"}
        one.idle()


def test_the_same_bits_in_deterministic_bfloat16(llama: Path, tmp_path: Path) -> None:
    tiers = {"host_bytes": 200 * PAGE_BYTES, "disk_bytes": 16 << 20, "disk_dir": tmp_path}
    exact = {"dtype": "bfloat16", "deterministic": True}
    with rig(llama, **tiers, **exact) as one, rig(llama, **exact, cache=False) as cold:
        seen: set[str] = set()
        for seed in range(8):
            seen |= converse(one, cold, seed, message=250, answer=6, logprobs=5)
        assert seen == {"device", "host", "disk"}
        one.idle()


def test_the_same_bits_in_any_company(llama: Path) -> None:
    """Deterministic answers do not feel who else is served either."""
    exact = {"dtype": "bfloat16", "deterministic": True}
    prompts = [random_tokens(n, n) for n in (700, 300, 30, 513)]
    with rig(llama, **exact) as one, rig(llama, **exact, cache=False) as cold:
        together = []
        for prompt in prompts:
            together.append(one.submit(prompt, 20, logprobs=5))
            one.step(2)
        one.run(*together)
        for asked in together:
            same(asked, cold.ask(asked.prompt, 20, logprobs=5))


@pytest.mark.model
@pytest.mark.parametrize("exact", [False, True])
def test_the_demo_model(tmp_path: Path, exact: bool) -> None:
    built = build(
        options(
            Path("demo"),
            dtype="bfloat16" if exact else "float32",
            deterministic=exact,
            device_tokens=3000,
            host_bytes=128 << 20,
            disk_bytes=256 << 20,
            disk_dir=tmp_path,
        )
    )
    try:
        one = Rig(built)
        lines = "".join(f"Line {i} of a long story about a lighthouse. " for i in range(25 if exact else 8))
        prompt = one.engine.tokenizer.encode(lines)
        one.ask(prompt, 1)
        for tier, cleared in (("device", ()), ("host", ("device",)), ("disk", ("device", "host"))):
            one.clear(*cleared)
            asked = one.ask(prompt, 6, logprobs=5 if exact else None)
            assert set(asked.cached) == {tier}
            # A miss stores all of it anew, for the next turn.
            one.clear("device", "host", "disk")
            same(asked, one.ask(prompt, 6, logprobs=5 if exact else None))
            prompt = prompt + asked.tokens + one.engine.tokenizer.encode(" And then,")
        one.idle()
    finally:
        built.close()
