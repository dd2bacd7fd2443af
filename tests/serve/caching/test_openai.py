"""What a request reads, writes and pins in OpenAI's caches, by the rules alone."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longturn.dialects.openai_usage import CacheCount
from longturn.dialects.segments import parse
from longturn.engine import Output
from longturn.serve.caching.entries import Entries
from longturn.serve.caching.openai import Boundary, OpenAICache, Plan, boundaries, regime_of

TOKENS = np.arange(6000, dtype=np.int32)
NEWER, OLDER = "gpt-5.6-sol", "gpt-4.1"


@pytest.mark.parametrize(
    ("regime", "names"),
    [
        ("breakpoints", ["gpt-5.6", "gpt-5.6-terra", "gpt-5.10", "gpt-6-luna", "gpt-6.1-sol", "openai/gpt-6-astra"]),
        (
            "intervals",
            ["gpt-5", "gpt-5-mini", "gpt-5.5-pro", "gpt-4o", "gpt-4.1-nano", "o3", "o4-mini", "chatgpt-4o-latest"],
        ),
        (
            "engine",
            ["demo", "gpt-oss-20b", "openai/gpt-oss-120b", "Qwen/Qwen3-0.6B", "gpt2", "olmo", "my-gpt-5.6", "gpt-x"],
        ),
    ],
)
def test_the_name_says_which_rules_hold(regime: str, names: list[str]):
    assert {name: regime_of(name) for name in names} == dict.fromkeys(names, regime)


def body(
    model: str = NEWER, users: int = 1, marks: Sequence[int] = (), head: bool = False, mode: str | None = None
) -> dict:
    """A request of so many user messages, some of them marked."""
    items = [{"role": "developer", "content": "Be brief."}] if head else []
    for number in range(users):
        part = {"type": "input_text", "text": f"{number}"}
        marked = {"prompt_cache_breakpoint": {"mode": "explicit"}} if number in marks else {}
        items.append({"role": "user", "content": [{**part, **marked}]})
    options = {"prompt_cache_options": {"mode": mode}} if mode else {}
    return {"model": model, "input": items, **options}


def read_and_written(**shape: object) -> tuple[list[int], list[int]]:
    found = boundaries(parse("openai", body(**shape)), "30m")
    assert [each.index for each in found] == sorted({each.index for each in found})
    return [each.index for each in found], [each.index for each in found if each.life]


def test_the_newest_end_and_three_marks_are_written():
    assert read_and_written(users=3) == ([0, 1, 2], [2])
    assert read_and_written(users=9, marks=range(5))[1] == [2, 3, 4, 8]
    # A mark at the end that is implied anyhow is one boundary.
    assert read_and_written(users=2, marks=[1])[1] == [1]


def test_explicit_mode_reads_and_writes_marks_alone():
    assert read_and_written(users=3, mode="explicit") == ([], [])
    assert read_and_written(users=9, marks=range(6), mode="explicit") == ([0, 1, 2, 3, 4, 5], [2, 3, 4, 5])


def test_how_far_back_is_read():
    read, _ = read_and_written(users=40)
    assert read == list(range(19, 40))
    read, _ = read_and_written(users=40, head=True)
    assert read == [0, *range(20, 41)]
    read, _ = read_and_written(users=100, marks=range(100), mode="explicit")
    assert read == [0, 1, *range(50, 100)]


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class World:
    """A cache, a clock, and requests of which only the numbers matter."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.cache = OpenAICache(Entries(clock=self.clock))

    def plan(self, model: str, length: int, ends: dict[Boundary, int], **more: object) -> Plan:
        prompt = parse("openai", {**body(model), **more})
        return self.cache.plan(prompt, TOKENS[:length], ends, scope="", retention=more.get("prompt_cache_retention"))

    def ask(self, length: int, real: int, ends: dict[Boundary, int] | None = None, model: str = NEWER, **more: object):
        plan = self.plan(model, length, ends or {}, **more)
        assert plan.count == CacheCount(0)
        plan.see(0, Output("id", "", (1,), cached={"device": real}))
        # Later outputs say the same again.
        plan.see(0, Output("id", "", (1,), cached={"device": real}))
        return plan.count


def test_a_boundary_expires_and_reuse_renews_it():
    world, ends = World(), {Boundary(0, "30m"): 2000}
    assert world.ask(2100, 0, ends) == CacheCount(0, 2000, {"30m": 2000, "12h": 0})
    for _ in range(3):
        world.clock.now += 1700
        assert world.ask(2100, 2099, ends).read == 2000
    world.clock.now += 1801
    assert world.ask(2100, 2099, ends) == CacheCount(0, 2000, {"30m": 2000, "12h": 0})


def test_what_was_evicted_is_not_claimed():
    world = World()
    world.ask(3100, 0, {Boundary(0, "30m"): 1500, Boundary(1, "12h"): 3000})
    ends = {Boundary(0): 1500, Boundary(1, "12h"): 3000}
    assert world.ask(3100, 1600, ends) == CacheCount(1500, 1500, {"30m": 0, "12h": 1500})
    assert world.ask(3100, 1000, ends).read == 0
    # Pages end where they end.
    assert world.ask(3100, 2992, ends) == CacheCount(2992, 0, {"30m": 0, "12h": 0})


def test_short_prefixes_are_not_kept():
    world = World()
    assert world.ask(1100, 0, {Boundary(0, "30m"): 1023}) == CacheCount(0, 0, {"30m": 0, "12h": 0})
    assert world.ask(1100, 0, {Boundary(0, "30m"): 1024}).written == 1024


def test_older_models_keep_any_prefix_and_not_for_ever():
    world = World()
    assert world.ask(2000, 0, model="gpt-4o") == CacheCount(0)
    assert world.ask(1500, 1499, model="gpt-4o") == CacheCount(1408)
    assert world.ask(1500, 1200, model="gpt-4o") == CacheCount(1152)
    world.clock.now += 3601
    assert world.ask(1500, 1499, model="gpt-4o") == CacheCount(0)
    # Some keep a day unless told otherwise, and a request may ask for it.
    world.ask(2000, 0, model=OLDER)
    world.ask(2000, 0, model="o3", prompt_cache_retention="24h")
    world.ask(2000, 0, model="gpt-5", prompt_cache_retention="in_memory")
    world.clock.now += 7200
    assert world.ask(2000, 1999, model=OLDER).read == 1920


def test_only_what_is_asked_for_is_pinned():
    world = World()

    def pins(model: str, ends: dict[Boundary, int], **more: object) -> list[tuple[int | None, float]]:
        return [(hint.stop, hint.seconds) for hint in world.plan(model, 2000, ends, **more).hints]

    assert pins(OLDER, {}) == pins("demo", {}) == []
    assert (
        pins(OLDER, {}, prompt_cache_retention="24h")
        == pins("demo", {}, prompt_cache_retention="24h")
        == [(None, 86400)]
    )
    ends = {Boundary(0): 100, Boundary(1, "12h"): 500, Boundary(2, "30m"): 1500}
    assert pins(NEWER, ends) == [(1500, 1800)]
    assert pins("demo", ends) == [(500, 43200), (1500, 1800)]


@given(
    st.lists(st.tuples(st.integers(1, 6000), st.floats(0, 1), st.sets(st.integers(1, 6000), max_size=6)), max_size=12)
)
def test_counts_never_exceed_what_happened(requests: list[tuple[int, float, set[int]]]):
    world = World()
    for length, share, places in requests:
        real = int(share * (length - 1))
        ends = {Boundary(n, "30m"): min(end, length) for n, end in enumerate(sorted(places))}
        count = world.ask(length, real, ends)
        assert 0 <= count.read <= real
        assert count.read + count.written <= length
        assert sum(count.by_life.values()) == count.written
        count = world.ask(length, real, model="gpt-4o")
        assert count.read <= real
        assert count.read % 128 == 0
        assert count.read == 0 or count.read >= 1024
