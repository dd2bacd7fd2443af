"""The serial replay: what is counted adds up, whatever the policy, the unit and the trace are."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longturn.cache.policies.registry import POLICIES
from longturn.errors import ConfigError
from longturn.lab.bounds import infinite
from longturn.lab.replay import Replay, replay_hits
from longturn.lab.replay.tokens import TokenWriter
from longturn.lab.trace import Blocks, Trace
from longturn.lab.trace.generate import Generated, Workload
from longturn.lab.trace.reuse import reuse
from tests.lab.live.traces import Listed, chats, request

BUSY = Workload(sessions=8, turns=4, system_tokens=60, user_tokens=30, output_tokens=25, branching=0.2, retries=0.1)
ROOMY = 1_000_000


def cached(replay: Replay) -> list[int]:
    return [sum(one.cached.values()) for one in replay.served]


def in_tokens(trace: Trace) -> Listed:
    """The same trace with its blocks written out as token ids."""
    writer = TokenWriter(trace.unit, 1 << 30)
    requests = []
    for one in trace:
        prompt, answer = writer.request(one)
        requests.append(replace(one, prompt=Blocks.of(prompt), output=Blocks.of(answer)))
    return Listed(requests)


@pytest.mark.parametrize("host", [0, 600])
@pytest.mark.parametrize("unit", [1, 8])
@pytest.mark.parametrize("policy", POLICIES)
def test_totals_add_up(policy: str, unit: int, host: int) -> None:
    trace = Generated(replace(BUSY, unit=unit))
    replay = replay_hits(trace, policy, {}, 800, host)
    requests = list(trace)
    assert [one.id for one in replay.served] == [one.id for one in requests]
    assert [one.logical for one in replay.served] == [one.prompt_tokens for one in requests]
    totals = replay.totals()
    served = [one for one in replay.served if not one.rejected]
    assert totals["rejected"] == len(requests) - len(served)
    assert totals["logical"] == sum(one.logical for one in served)
    assert totals["logical"] == totals["cached"] + totals["computed"]
    assert totals["cached"] == sum(totals["by_tier"].values()) == sum(cached(replay))
    assert all(n < one.logical for n, one in zip(cached(replay), replay.served, strict=True))
    assert set(totals["by_tier"]) <= {"device", "host"}
    shown = replay.to_json()
    assert shown["cached_tokens"] == [
        POLICIES[policy].refused if one.rejected else one.reported for one in replay.served
    ]
    assert (shown["host_tokens"], shown["mode"], shown["times"]) == (host or None, "hits", {})


@pytest.mark.parametrize("host", [0, 600])
def test_a_storage_below_host_memory_is_counted_too(host: int) -> None:
    replay = replay_hits(
        Generated(BUSY), "sglang-hicache", {"storage": "unlimited", "prefetch_threshold": 1}, 400, host
    )
    totals = replay.totals()
    assert totals["logical"] == totals["cached"] + totals["computed"]
    assert totals["cached"] == sum(totals["by_tier"].values())
    assert host == 0 or set(totals["by_tier"]) == {"device", "host", "disk"}


@pytest.mark.parametrize(("policy", "options"), [("longturn", {}), ("sglang", {}), ("vllm", {"block_size": 8})])
def test_blocks_agree_with_their_tokens_within_a_block(policy: str, options: dict[str, int]) -> None:
    trace = Generated(replace(BUSY, unit=8))
    blocks = cached(replay_hits(trace, policy, options, ROOMY))
    tokens = cached(replay_hits(in_tokens(trace), policy, options, ROOMY))
    assert sum(tokens) > 0
    for n_blocks, n_tokens in zip(blocks, tokens, strict=True):
        assert 0 <= n_tokens - n_blocks < 8
    if policy == "vllm":
        assert blocks == tokens


def test_whole_blocks_alone_are_as_good() -> None:
    """A format that leaves out the last tokens of prompts loses nothing but these."""
    trace = Generated(replace(BUSY, unit=8))
    whole = [replace(one, prompt=one.prompt.part(0, one.prompt_tokens // 8)) for one in trace]
    assert cached(replay_hits(Listed(whole, 8), "vllm", {"block_size": 8}, ROOMY)) == cached(
        replay_hits(trace, "vllm", {"block_size": 8}, ROOMY)
    )


def test_a_policy_with_room_for_all_hits_what_can_be() -> None:
    trace = chats(4, 3)
    replay = replay_hits(trace, "longturn", {}, ROOMY)
    bound = infinite(reuse(trace, answers=True))
    assert replay.totals()["cached"] / replay.totals()["logical"] == pytest.approx(bound, abs=0.01)


def test_unknown_answers_take_room_and_are_not_hit() -> None:
    """Prompt 20, answer 10, next prompt 40 that continues both; the device holds just one of them all."""
    known = Listed([request("a", range(20), range(20, 30)), request("a", range(40), 5)])
    unknown = Listed([replace(known.requests[0], output=None), known.requests[1]])
    assert cached(replay_hits(known, "longturn", {}, 100)) == [0, 29]
    replay = replay_hits(unknown, "longturn", {}, 100)
    assert cached(replay) == [0, 20]
    assert any("answers of 2 requests are not in the trace" in premise for premise in replay.premises)
    # Another prompt of 20 fits beside the first one only if that has no answer.
    again = [request("b", range(100, 120), 5), request("c", range(19), 1)]
    short = Listed([request("a", range(20), 1), *again])
    long = Listed([request("a", range(20), 30), *again])
    assert cached(replay_hits(short, "longturn", {}, 50))[2] == 18
    assert cached(replay_hits(long, "longturn", {}, 50))[2] < 18


def test_huge_ids() -> None:
    rng = np.random.default_rng(1)
    head = rng.integers(2**62, 2**63 - 1, 4).tolist()
    trace = Listed([request("a", [*head, 2**40], unit=512), request("b", [*head, 7, 8], unit=512)], unit=512)
    replay = replay_hits(trace, "vllm", {"block_size": 512}, 512 * 20)
    assert cached(replay) == [0, 4 * 512]


def test_salts_are_kept_apart() -> None:
    trace = Listed([request("a", range(50), salt="x"), request("b", range(50), salt="y"), request("c", range(50))])
    for policy in POLICIES:
        assert cached(replay_hits(trace, policy, {}, 2000)) == [0, 0, 0]


@pytest.mark.parametrize("policy", POLICIES)
def test_requests_that_do_not_fit_are_refused(policy: str) -> None:
    """They change nothing for the others."""
    small = [request("a", range(100)), request("a", range(130))]
    trace = Listed([small[0], request("b", range(1000, 6000)), small[1]])
    replay = replay_hits(trace, policy, {}, 1024)
    assert [one.rejected for one in replay.served] == [False, True, False]
    assert replay.totals()["logical"] == 230
    assert cached(replay)[::2] == cached(replay_hits(Listed(small), policy, {}, 1024))


def test_premises_say_what_was_taken_for_granted() -> None:
    replay = replay_hits(chats(), "vllm", {}, 1000)
    assert replay.premises[0] == "made up for a test"
    assert "one after the other" in replay.premises[1]
    replay = replay_hits(Generated(replace(BUSY, unit=8)), "vllm", {}, 1000)
    assert "the cache works on the trace's blocks of 8 tokens" in replay.premises


def test_progress_counts_every_request() -> None:
    seen: list[int] = []
    replay_hits(chats(2, 2), "none", {}, 1000, progress=seen.append)
    assert seen == [1, 2, 3, 4]


def test_a_device_smaller_than_a_block() -> None:
    with pytest.raises(ConfigError, match="at least one block of 8 tokens"):
        replay_hits(Generated(replace(BUSY, unit=8)), "longturn", {}, 7)


def test_options_are_shown_as_they_were_given() -> None:
    replay = replay_hits(Generated(replace(BUSY, unit=8)), "trtllm", {"tokens_per_block": "16"}, 800)
    assert replay.to_json()["options"] == {
        "tokens_per_block": 16,
        "partial_reuse": True,
        "copy_on_partial_reuse": True,
    }


TEXTS = st.lists(st.integers(0, 1), min_size=1, max_size=40)
RANDOM = st.lists(st.tuples(TEXTS, TEXTS, st.sampled_from(["", "", "x"])), min_size=2, max_size=12)


@pytest.mark.parametrize("policy", POLICIES)
@settings(deadline=None, max_examples=30)
@given(rows=RANDOM, device=st.integers(64, 300), host=st.sampled_from([0, 64, 1000]), again=st.booleans())
def test_no_hit_is_longer_than_what_was_there(
    policy: str, rows: list[tuple[list[int], list[int], str]], device: int, host: int, again: bool
) -> None:
    """Whatever is evicted, moved and split: only what an earlier request of the same salt has begun with is reused."""
    trace = Listed([request("s", prompt, output, salt=salt) for prompt, output, salt in rows * (1 + again)])
    seen: list[tuple[str, list[int]]] = []
    for one, served in zip(trace, replay_hits(trace, policy, {}, device, host).served, strict=True):
        prompt = one.prompt.ids().tolist()
        longest = max((_shared(prompt, text) for salt, text in seen if salt == one.salt), default=0)
        assert sum(served.cached.values()) <= min(longest, len(prompt) - 1)
        if not served.rejected:
            seen.append((one.salt, prompt + one.output.ids().tolist()))


def _shared(one: list[int], other: list[int]) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
