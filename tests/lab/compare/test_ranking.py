"""The order that the numbers give, on numbers small enough to reckon with by hand."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import permutations
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longturn.engine.cost import CostModel, load_hardware_profile, load_model_profile
from longturn.lab.compare import Source
from longturn.lab.compare.engines import BY_POLICY
from longturn.lab.compare.job import Job, Outcome, run
from longturn.lab.compare.ranking import SAME_SHARE, Ranking, _kendall, rank
from longturn.lab.trace import Trace, write_requests
from longturn.lab.trace.generate import Generated, Workload

COST = CostModel(load_model_profile("llama-3.1-8b"), load_hardware_profile("h100-sxm"))
ENGINES = list(BY_POLICY)


def outcome(
    policy: str,
    ttft: Sequence[float | None],
    *,
    loading: Sequence[float] | None = None,
    loaded: Sequence[int] | None = None,
    computed: Sequence[int] | None = None,
) -> Outcome:
    """What a serial run has found; a request of None was refused, the other lists leave it out."""
    times = np.array([time for time in ttft if time is not None])
    n = len(times)
    return Outcome(
        Job("host", 1, policy, {}, 1, 1, Source(Path("trace"))),
        {"logical": 100 * n, "cached": 50 * n, "by_tier": {}},
        np.array([time is not None for time in ttft]),
        np.array(computed or [50] * n),
        times,
        [],
        np.array(loaded or [0] * n),
        np.array(loading or [0.0] * n),
    )


def ranked(outcomes: Sequence[Outcome], sessions: Sequence[str] = ("a", "b", "c", "d")) -> Ranking:
    found = rank(outcomes, sessions)
    assert found is not None
    return found


def ranks(found: Ranking) -> list[tuple[str, int]]:
    return [(place.policy, place.rank) for place in found.places]


def test_the_mean_decides_and_ties_share_a_rank() -> None:
    """Means 1.00, 1.015, 1.03, 1.045 and 2: the second is level with the first, the fourth with the third."""
    times = {"vllm-offload": 1.0, "sglang-hicache": 1.015, "trtllm": 1.03, "tgi": 1.045, "lightllm": 2.0}
    found = ranked([outcome(policy, [ttft] * 4) for policy, ttft in reversed(times.items())])
    assert ranks(found) == [("vllm-offload", 1), ("sglang-hicache", 1), ("trtllm", 3), ("tgi", 3), ("lightllm", 5)]
    assert [place.behind for place in found.places] == pytest.approx([0, 0.015, 0.03, 0.045, 1.0])
    assert [place.published for place in found.places] == [5, 1, 2, 3, 6]
    assert found.places[0].title == "vLLM"
    assert found.places[0].cached_share == 0.5
    assert found.matters
    assert found.verdict == (
        "vLLM and SGLang HiCache are fastest; the slowest, LightLLM, takes 100% longer to the first token on average."
    )


def test_small_steps_do_not_add_up_to_a_tie() -> None:
    """Each is within 2% of the one before, but the last is not within 2% of the first."""
    steps = [1.0, 1.015, 1.03, 1.045]
    found = ranked([outcome(ENGINES[n], [step] * 4) for n, step in enumerate(steps)])
    assert [place.rank for place in found.places] == [1, 1, 3, 3]
    assert found.matters


def test_the_policy_does_not_matter() -> None:
    found = ranked([outcome(policy, [1.0 + n / 1000] * 4) for n, policy in enumerate(ENGINES)])
    assert {place.rank for place in found.places} == {1}
    assert not found.matters
    assert found.verdict == (
        "The policy does not matter here: the slowest is 0.7% behind the fastest, less than the 2% that count as level."
    )
    assert found.correlation is None
    assert found.disagreements == []


def test_what_other_sessions_could_turn_does_not_matter() -> None:
    """TensorRT-LLM is 5% slower on average, by one session out of four; on the others it is faster."""
    found = ranked([outcome("trtllm", [0.9, 0.9, 0.9, 1.5]), outcome("vllm-offload", [1.0] * 4)])
    assert ranks(found) == [("vllm-offload", 1), ("trtllm", 1)]
    assert found.places[1].behind == pytest.approx(0.05)
    assert found.places[1].low < 0 < found.places[1].high
    assert not found.matters
    assert "5.0% behind the fastest, which other sessions of the same kind could turn" in found.verdict


@settings(deadline=None)
@given(st.lists(st.lists(st.floats(0.1, 10), min_size=1, max_size=5), min_size=2, max_size=8), st.integers(0, 9))
def test_the_interval_holds_the_mean(sessions: list[list[float]], seed: int) -> None:
    names = [str(n) for n, turns in enumerate(sessions) for _ in turns]
    mine = [time for turns in sessions for time in turns]
    best = np.random.default_rng(seed).permutation(mine) * 0.9
    found = ranked([outcome("trtllm", mine), outcome("vllm-offload", best.tolist())], names)
    last = found.places[-1]
    assert last.policy == "trtllm"
    assert last.low is not None
    assert last.high is not None
    assert last.low <= last.behind + 1e-9 <= last.high + 2e-9
    assert (found.places[0].low, found.places[0].high) == (0.0, 0.0)


def test_one_session_has_no_interval() -> None:
    found = ranked([outcome("trtllm", [1.0, 2.0]), outcome("tgi", [2.0, 2.0])], ["a", "a"])
    assert [(place.low, place.high, place.interval) for place in found.places] == [(None, None, "-")] * 2
    assert [place.rank for place in found.places] == [1, 2]


def test_the_interval_is_over_sessions_not_requests() -> None:
    """A hundred requests of two sessions say no more than two sessions."""
    mine = [1.0] * 50 + [3.0] * 50
    wide = ranked([outcome("trtllm", mine), outcome("tgi", [1.0] * 100)], ["a"] * 50 + ["b"] * 50).places[1]
    narrow = ranked([outcome("trtllm", mine), outcome("tgi", [1.0] * 100)], [str(n) for n in range(100)]).places[1]
    assert (wide.low, wide.high) == (0.0, 2.0)
    assert 0.5 < narrow.low < 1.0 < narrow.high < 1.5


def test_means_are_over_what_none_has_refused() -> None:
    """TGI would be the fastest on all that it has served, vLLM is on what all have."""
    tgi = outcome("tgi", [2.0, None, 1.0, 1.0])
    vllm = outcome("vllm-offload", [1.9, 50.0, 0.9, None])
    found = ranked([tgi, vllm])
    assert found.requests == 2
    assert [(place.policy, place.ttft) for place in found.places] == [
        ("vllm-offload", pytest.approx(1.4)),
        ("tgi", pytest.approx(1.5)),
    ]


def test_nothing_to_rank() -> None:
    assert rank([], []) is None
    assert rank([outcome("tgi", [1.0])], ["a"]) is None
    assert rank([outcome("tgi", [1.0, None]), outcome("trtllm", [None, 1.0])], ["a", "b"]) is None


# -- Kendall ---------------------------------------------------------------------------------------------------------


def test_kendall_of_known_orders() -> None:
    assert _kendall([1, 2, 3, 4], [1, 2, 3, 4]) == 1
    assert _kendall([4, 3, 2, 1], [1, 2, 3, 4]) == -1
    assert _kendall([1, 2, 3, 4], [1, 2, 4, 3]) == pytest.approx(4 / 6)
    # Five of six pairs agree, one is tied in the first: 5 / sqrt(5 * 6).
    assert _kendall([1, 1, 3, 4], [1, 2, 3, 4]) == pytest.approx(5 / np.sqrt(30))
    assert _kendall([1, 1, 1], [1, 2, 3]) is None
    assert _kendall([], []) is None
    assert _kendall([1], [1]) is None


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(1, 5), st.integers(1, 5)), max_size=8))
def test_kendall_is_the_correlation_of_signs(pairs: list[tuple[int, int]]) -> None:
    a, b = (np.sign(np.subtract.outer(values, values)) for values in (list(zip(*pairs, strict=True)) or [(), ()]))
    scale = np.sqrt(float((a * a).sum()) * float((b * b).sum()))
    expected = float((a * b).sum()) / scale if scale else None
    assert _kendall([one for one, _ in pairs], [other for _, other in pairs]) == pytest.approx(expected)


def test_correlation_is_with_the_published_places() -> None:
    published = [policy for policy in ENGINES if policy != "longturn"]
    for order, tau in ((published, 1), (published[::-1], -1)):
        found = ranked([outcome(policy, [1.1**n] * 4) for n, policy in enumerate(order)])
        assert found.correlation == pytest.approx(tau)
        assert len(found.disagreements) == (0 if tau == 1 else 21)
    # Longturn has no published place and takes no part in it.
    found = ranked(
        [outcome("longturn", [9.0] * 4), *(outcome(policy, [1.1**n] * 4) for n, policy in enumerate(published))]
    )
    assert found.correlation == pytest.approx(1)


# -- why -------------------------------------------------------------------------------------------------------------


def test_compute_explains_a_difference() -> None:
    """vLLM computes 40 tokens in 0.4 s a request, SGLang 90 in 0.9 s, both bring up some in 0.1 s."""
    worse = outcome("sglang-hicache", [1.0] * 4, loading=[0.1] * 4, loaded=[10] * 4, computed=[90] * 4)
    better = outcome("vllm-offload", [0.5] * 4, loading=[0.1] * 4, loaded=[60] * 4, computed=[40] * 4)
    [found] = ranked([worse, better]).disagreements
    assert (found.better, found.worse, found.resource) == ("vLLM", "SGLang HiCache", "device compute")
    assert found.saved_seconds == pytest.approx(2.0)
    assert found.explanation == (
        "SGLang HiCache computes 360 tokens in 3.6 s, vLLM 160 in 1.6 s, with 200 more from below the device"
    )


def test_transfer_explains_a_difference() -> None:
    worse = outcome("sglang-hicache", [1.0] * 4, loading=[0.6] * 4, loaded=[5000] * 4, computed=[40] * 4)
    better = outcome("vllm-offload", [0.5] * 4, loading=[0.1] * 4, loaded=[1000] * 4, computed=[40] * 4)
    [found] = ranked([worse, better]).disagreements
    assert found.resource == "transfer"
    assert found.saved_seconds == pytest.approx(2.0)
    assert found.explanation == "SGLang HiCache brings up 20,000 tokens in 2.4 s, vLLM 4,000 in 0.4 s"


def test_what_was_refused_explains_nothing() -> None:
    """SGLang has refused the two long requests, so all in all it has computed far less."""
    worse = outcome("sglang-hicache", [1.0, 1.0, None, None], computed=[100, 100])
    better = outcome("vllm-offload", [0.5, 0.5, 90.0, 90.0], computed=[50, 50, 9000, 9000])
    [found] = ranked([worse, better]).disagreements
    assert found.saved_seconds == pytest.approx(1.0)
    assert found.explanation == "SGLang HiCache computes 200 tokens in 2.0 s, vLLM 100 in 1.0 s"


def test_levels_do_not_disagree() -> None:
    for order in permutations(["sglang-hicache", "trtllm", "tgi"]):
        found = ranked([outcome(policy, [1 + n * SAME_SHARE / 3] * 4) for n, policy in enumerate(order)])
        assert found.disagreements == []


# -- of real runs ----------------------------------------------------------------------------------------------------


def real(folder: Path, trace: Trace, device: int, host: int) -> Ranking:
    path = folder / "trace.jsonl"
    write_requests(trace, path)
    jobs = [Job("host", device, policy, {}, device, host, Source(path)) for policy in ENGINES]
    return ranked([run(job, COST) for job in jobs], [one.session for one in trace])


def test_it_does_not_matter_where_nothing_repeats(tmp_path: Path) -> None:
    trace = Generated(Workload(sessions=30, turns=1, sharing=0.0, system_tokens=500))
    found = real(tmp_path, trace, 20_000, 20_000)
    assert not found.matters
    assert {place.cached_share for place in found.places} == {0.0}


def test_it_does_not_matter_where_everything_fits(tmp_path: Path) -> None:
    """One session after the other with nothing in common: every engine has the last turn, up to a block."""
    trace = Generated(
        Workload(sessions=6, turns=4, sharing=0.0, system_tokens=3000, user_tokens=300, output_tokens=5, rate=0.00001)
    )
    found = real(tmp_path, trace, 200_000, 0)
    assert not found.matters
    assert min(place.cached_share for place in found.places) > 0.5


def test_it_matters_where_memory_is_short(tmp_path: Path) -> None:
    trace = Generated(Workload(sessions=10, turns=5, system_tokens=2000, sharing=0.2, user_tokens=300, rate=1))
    found = real(tmp_path, trace, 8_000, 16_000)
    assert found.matters
    assert found.places[0].cached_share > found.places[-1].cached_share
    assert found.to_json()["policy_matters"] is True
    assert {one.resource for one in found.disagreements} <= {"device compute", "transfer"}
