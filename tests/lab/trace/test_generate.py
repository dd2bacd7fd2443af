"""The generator: every knob does what it says."""

from __future__ import annotations

import itertools
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longturn.errors import ConfigError
from longturn.lab.trace import TraceRequest, open_trace, write_requests
from longturn.lab.trace.generate import VOCABULARY, Generated, Workload
from tests.lab.trace.files import goes_on, output_ids, prompt_ids

SMALL = Workload(sessions=60, turns=5, system_tokens=40, user_tokens=8, output_tokens=12)


def sessions(workload: Workload) -> dict[str, list[TraceRequest]]:
    found: dict[str, list[TraceRequest]] = defaultdict(list)
    for request in Generated(workload):
        found[request.session].append(request)
    return found


WORKLOADS = st.builds(
    Workload,
    sessions=st.integers(1, 8),
    turns=st.floats(1, 6),
    system_tokens=st.integers(0, 70),
    sharing=st.floats(0, 1),
    system_prompts=st.integers(1, 3),
    user_tokens=st.floats(1, 30),
    output_tokens=st.floats(1, 30),
    think=st.floats(0, 5),
    rate=st.floats(0.1, 10),
    branching=st.floats(0, 1),
    retries=st.floats(0, 0.5),
    compaction=st.sampled_from([0, 80, 200]),
    seed=st.integers(0, 5),
    unit=st.sampled_from([1, 16, 64]),
)


@settings(max_examples=60, deadline=None)
@given(WORKLOADS)
def test_any_workload_is_a_trace(workload: Workload) -> None:
    trace = Generated(workload)
    requests = list(trace)
    unit = workload.unit
    assert requests == list(trace)
    assert len({request.id for request in requests}) == len(requests)
    assert len({request.session for request in requests}) == workload.sessions
    times = [request.time for request in requests]
    assert times == sorted(times)
    for request in requests:
        assert len(request.prompt) == -(-request.prompt_tokens // unit)
        both = request.prompt_tokens + request.output_tokens
        assert len(output_ids(request)) == both // unit - request.prompt_tokens // unit
        assert unit > 1 or max(prompt_ids(request)) < VOCABULARY


def test_without_special_turns_every_prompt_goes_on() -> None:
    for requests in sessions(SMALL).values():
        assert all(goes_on(before, after) for before, after in itertools.pairwise(requests))


def test_in_blocks_every_prompt_goes_on_from_the_whole_ones() -> None:
    for requests in sessions(replace(SMALL, unit=16)).values():
        for before, after in itertools.pairwise(requests):
            known = prompt_ids(before)[: before.prompt_tokens // 16] + output_ids(before)
            assert prompt_ids(after)[: len(known)] == known


def test_means_are_as_asked() -> None:
    found = sessions(replace(SMALL, sessions=800, think=20, rate=2))
    requests = [request for listed in found.values() for request in listed]
    assert len(requests) / len(found) == pytest.approx(5, rel=0.1)
    assert np.mean([request.output_tokens for request in requests]) == pytest.approx(12, rel=0.1)
    assert np.mean([request.think for request in requests if request.think is not None]) == pytest.approx(20, rel=0.1)
    starts = sorted(listed[0].time for listed in found.values())
    assert np.mean(np.diff(starts)) == pytest.approx(0.5, rel=0.1)
    assert np.mean([listed[0].prompt_tokens for listed in found.values()]) == pytest.approx(48, rel=0.05)


def test_sharing_says_how_many_have_a_common_system_prompt() -> None:
    found = sessions(replace(SMALL, sessions=400, sharing=0.5, system_prompts=2))
    heads = Counter(tuple(prompt_ids(listed[0])[:40]) for listed in found.values())
    (_, first), (_, second), (_, third) = heads.most_common(3)
    assert first + second == pytest.approx(200, abs=30)
    assert first == pytest.approx(second, abs=40)
    assert third == 1


def test_branching_goes_back_to_an_earlier_message() -> None:
    found = sessions(replace(SMALL, branching=0.3))
    follow_ups = [pair for listed in found.values() for pair in itertools.pairwise(listed)]
    edits = [(before, after) for before, after in follow_ups if not goes_on(before, after)]
    assert len(edits) / len(follow_ups) == pytest.approx(0.3, abs=0.08)
    for before, after in edits:
        assert 40 <= before.prompt.shared_with(after.prompt) < before.prompt_tokens


def test_retries_ask_the_same_again() -> None:
    found = sessions(replace(SMALL, retries=0.25))
    pairs = [pair for listed in found.values() for pair in itertools.pairwise(listed)]
    retries = [(before, after) for before, after in pairs if before.prompt == after.prompt]
    n_requests = sum(map(len, found.values()))
    assert len(retries) / n_requests == pytest.approx(0.25, abs=0.06)
    assert all(before.output != after.output for before, after in retries)
    for listed in found.values():  # the last answer is the one that counts
        for before, after in itertools.pairwise(listed):
            assert before.prompt == after.prompt or goes_on(before, after)


def test_compaction_keeps_prompts_in_the_window() -> None:
    found = sessions(replace(SMALL, turns=20, compaction=160))
    pairs = [pair for listed in found.values() for pair in itertools.pairwise(listed)]
    compactions = [(before, after) for before, after in pairs if not goes_on(before, after)]
    assert compactions
    for before, after in compactions:
        assert before.prompt.shared_with(after.prompt) == 40
        assert after.prompt_tokens > 40 + 20
    longest = max(request.prompt_tokens for listed in found.values() for request in listed)
    assert 120 < longest <= 160


@pytest.mark.parametrize("name", ["trace.jsonl", "trace.jsonl.gz"])
def test_what_is_written_is_read_again(tmp_path: Path, name: str) -> None:
    trace = Generated(SMALL)
    n_requests = write_requests(trace, tmp_path / name)
    read = list(open_trace(tmp_path / name))
    assert len(read) == n_requests
    assert read == list(trace)


def test_unknown_answers_are_written_as_tokens_of_their_own(tmp_path: Path) -> None:
    class Silent:
        name, unit, notes = "silent", 1, []

        def __iter__(self):  # type: ignore[no-untyped-def]
            return (replace(request, output=None) for request in Generated(SMALL))

    write_requests(Silent(), tmp_path / "file")
    read = list(open_trace(tmp_path / "file"))
    assert [request.output_tokens for request in read] == [request.output_tokens for request in Generated(SMALL)]
    answered = [token for request in read for token in output_ids(request)]
    assert len(set(answered)) == len(answered)
    assert min(answered) > VOCABULARY


def test_traces_in_blocks_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="blocks of 16 tokens"):
        write_requests(Generated(replace(SMALL, unit=16)), tmp_path / "file")


@pytest.mark.parametrize(
    "knobs",
    [
        {"sessions": 0},
        {"turns": 0.5},
        {"sharing": 1.1},
        {"branching": -0.1},
        {"retries": 1.0},
        {"rate": 0},
        {"think": float("nan")},
        {"unit": 0},
        {"system_tokens": 100, "compaction": 100},
    ],
)
def test_impossible_knobs_are_refused(knobs: dict[str, float]) -> None:
    name = list(knobs)[-1]
    with pytest.raises(ConfigError, match=rf"{name}|window"):
        Workload(**knobs)  # type: ignore[arg-type]
