"""When requests are sent, and what becomes of a run that ends early."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise

import pytest

from longturn.dialects.engines import ENGINES
from longturn.lab.live.drive import Exchange, Pace, drive
from longturn.lab.live.history import History
from longturn.lab.live.workload import Call, prepare
from longturn.lab.wire import client
from tests.lab.live.servers import SmallEngine
from tests.lab.live.traces import Listed, chats, request


def calls_of(trace: Listed) -> list[Call]:
    return prepare(trace, requests=100, room=None, scale=None, answer=None, vocab=32_000, seed=1).calls


async def driven(url: str, trace: Listed, pace: Pace) -> list[Exchange]:
    exchanges: list[Exchange] = []
    async with client(url) as http:
        await drive(http, History(ENGINES["vllm"], "ids", "m"), calls_of(trace), pace, exchanges, lambda one: None)
    return exchanges


def by_session(exchanges: list[Exchange]) -> Iterator[list[Exchange]]:
    for session in {one.call.session for one in exchanges}:
        yield [one for one in exchanges if one.call.session == session]


async def test_one_at_a_time_keeps_the_traces_order(small: SmallEngine, url: str) -> None:
    lonely = [request("late", range(9), time=99.0)]
    exchanges = await driven(url, Listed([*chats(3, 3).requests, *lonely]), Pace())
    assert [one.call.index for one in exchanges] == list(range(10))
    assert all(one.reply.outcome == "ok" and one.due_s is None for one in exchanges)
    assert small.most == 1


@pytest.mark.parametrize("concurrency", [2, 8])
async def test_sessions_run_side_by_side_but_never_against_themselves(
    small: SmallEngine, url: str, concurrency: int
) -> None:
    small.slow = 0.02
    exchanges = await driven(url, chats(4, 3), Pace(concurrency=concurrency))
    assert len(exchanges) == 12
    assert small.most == min(concurrency, 4)
    for own in by_session(exchanges):
        assert [one.call.index for one in own] == sorted(one.call.index for one in own)
        for one, following in pairwise(own):
            assert one.reply.ended_s is not None
            assert one.reply.ended_s <= following.reply.started_s
    # Answers were in the history before the next prompt was made.
    assert all(one.reply.cached_tokens == len(one.sent) - 20 for one in exchanges if one.call.index >= 4)


async def test_recorded_times(url: str) -> None:
    trace = Listed([request(name, range(5), time=time) for name, time in (("a", 100.0), ("b", 101.0), ("c", 104.0))])
    exchanges = await driven(url, trace, Pace(arrivals="recorded", speed=20.0, concurrency=8))
    assert [one.due_s for one in exchanges] == pytest.approx([0.0, 0.05, 0.2])
    for one in exchanges:
        assert one.due_s is not None
        assert one.due_s <= one.reply.started_s < one.due_s + 0.1


async def test_a_full_server_is_late(small: SmallEngine, url: str) -> None:
    small.slow = 0.15
    trace = Listed([request(name, range(5), time=0.01 * n) for n, name in enumerate("abc")])
    exchanges = await driven(url, trace, Pace(arrivals="recorded"))
    assert exchanges[2].due_s == pytest.approx(0.02)
    assert exchanges[2].reply.started_s >= 0.3


async def test_think_times_begin_at_the_end_of_the_answer(small: SmallEngine, url: str) -> None:
    small.slow = 0.1
    first = request("a", range(5))
    told, untold = replace(first, id="1", time=50.0, think=2.0), replace(first, id="2", time=54.0, think=None)
    exchanges = await driven(url, Listed([first, told, untold]), Pace(arrivals="think", speed=20.0))
    ends = [one.reply.ended_s or 0.0 for one in exchanges]
    starts = [one.reply.started_s for one in exchanges]
    assert 0.1 <= starts[1] - ends[0] < 0.15
    assert 0.2 <= starts[2] - ends[1] < 0.25  # the distance in the trace, where it tells no pause


async def test_the_run_ends_in_time(small: SmallEngine, url: str) -> None:
    small.slow = 0.2
    exchanges = await driven(url, chats(4, 3), Pace(concurrency=2, duration=0.3))
    assert [one.reply.outcome for one in exchanges] == ["ok", "ok", "cut", "cut"]


async def test_waiting_for_an_arrival_ends_in_time_too(url: str) -> None:
    trace = Listed([request("a", range(5)), request("b", range(5), time=60.0)])
    async with asyncio.timeout(2):
        exchanges = await driven(url, trace, Pace(arrivals="recorded", duration=0.2))
    assert [one.call.session for one in exchanges] == ["a"]


async def test_a_failure_does_not_end_its_session(small: SmallEngine, url: str) -> None:
    small.window = 30
    trace = Listed([request("a", range(n)) for n in (10, 50, 12)])
    exchanges = await driven(url, trace, Pace())
    assert [one.reply.outcome for one in exchanges] == ["ok", "http 400", "ok"]


async def test_being_cancelled_leaves_what_there_is(small: SmallEngine, url: str) -> None:
    exchanges: list[Exchange] = []
    trace = Listed([request("a", range(5)), request("b", range(5)), request("c", range(5))])

    def slower(one: Exchange) -> None:
        small.slow = 30.0

    async with client(url) as http:
        history = History(ENGINES["vllm"], "ids", "m")
        run = asyncio.create_task(drive(http, history, calls_of(trace), Pace(), exchanges, slower))
        while len(small.bodies) < 2:
            await asyncio.sleep(0.01)
        run.cancel()
        with pytest.raises(asyncio.CancelledError):
            await run
    assert [one.reply.outcome for one in exchanges] == ["ok", "interrupted"]
