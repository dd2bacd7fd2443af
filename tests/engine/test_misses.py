"""Each cause of a miss, provoked in the real policy under the real loop; only computing is modelled."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from longturn.cache import Event, Hint, LongturnCache, LongturnOptions, NoCache, PrefixCache
from longturn.cache.policies.base import Sizes
from longturn.cache.policies.registry import make_policy
from longturn.engine import Output, Request, SamplingParams
from longturn.engine.cost import CostModel, load_hardware_profile, load_model_profile
from longturn.engine.loop import Engine
from longturn.engine.misses import NODE_TOKENS, MissRecorder
from longturn.engine.modeled import ModeledMover, ModeledRunner, VirtualClock
from longturn.engine.sampling import Sampled
from longturn.engine.scheduler import Scheduler
from longturn.explain.miss import Miss
from longturn.lab.replay.timed import Wordless
from longturn.ledger import RequestLine
from tests.engine.rig import PAGE, PAGE_BYTES, random_tokens, rig

COST = CostModel(load_model_profile("smollm2-135m"), load_hardware_profile("h100-sxm"))
POOL = 400


class Same:
    """Answers with ones."""

    def sample(self, logits: Any, states: Sequence[Any]) -> list[Sampled]:
        return [Sampled(1) for _ in states]


class Modeled:
    """An engine that computes nothing: `ask` serves a prompt and gives its verdict."""

    def __init__(self, make: Callable[[VirtualClock], PrefixCache], most_tokens: int = 100_000) -> None:
        self.clock = clock = VirtualClock()
        clock.advance(1.0)
        self.cache = cache = make(clock)
        mover = ModeledMover(COST, clock, cache.page_size)
        self.misses = MissRecorder(cache.page_size, clock, most_tokens)
        self.lines: list[RequestLine] = []
        shares = not isinstance(cache, NoCache)
        self.engine = Engine(
            cache=cache,
            mover=mover,
            runner=ModeledRunner(COST, clock, cache.page_size),
            scheduler=Scheduler(cache, mover, max_running=8, chunk_tokens=256, shares=shares, clock=clock),
            tokenizer=Wordless(),  # type: ignore[arg-type]
            model="m",
            eos_ids=(),
            max_length=cache.longest,
            page_size=cache.page_size,
            sampler=Same(),
            clock=clock,
            misses=self.misses,
            on_line=self.lines.append,
        )
        self.asked = 0

    def submit(self, tokens: Sequence[int], *, n: int = 1, **fields: Any) -> Request:
        self.asked += 1
        request = Request(
            np.array(tokens, dtype=np.int32),
            SamplingParams(max_tokens=n, ignore_eos=True),
            _unheard,
            id=f"r{self.asked}",
            arrived=self.clock(),
            **fields,
        )
        self.engine.add(request)
        return request

    def run(self) -> None:
        for _ in range(10_000):
            if not self.engine.scheduler.all():
                break
            if not self.engine.step():
                self.engine.mover.finish_fetches(self.cache, 5.0)
            self.cache.check_integrity()
        else:
            raise AssertionError("not done")
        self.clock.advance(1.0)

    def ask(self, tokens: Sequence[int], **fields: Any) -> RequestLine:
        request = self.submit(tokens, **fields)
        self.run()
        return next(line for line in self.lines if line.request_id == request.id)

    def why(self, tokens: Sequence[int], **fields: Any) -> Miss | None:
        """The verdict itself, of which the line has the words."""
        said: list[Miss | None] = []
        admitted = self.misses.admitted
        self.misses.admitted = lambda *args: said.append(admitted(*args)) or said[-1]  # type: ignore[method-assign]
        line = self.ask(tokens, **fields)
        self.misses.admitted = admitted  # type: ignore[method-assign]
        [miss] = said
        assert line.miss == (None if miss is None else str(miss))
        return miss


def _unheard(output: Output) -> None:
    pass


def ours(**changes: Any) -> Modeled:
    options = LongturnOptions(**{"device_tokens": POOL, "page_size": PAGE, **changes})
    return Modeled(lambda clock: LongturnCache(options, clock=clock))


def other(name: str, **options: Any) -> Modeled:
    return Modeled(lambda clock: make_policy(name, options, Sizes(POOL, real=True, clock=clock)))


def prompt(n: int, seed: int = 0) -> list[int]:
    return np.random.default_rng(seed).integers(10, 1000, n).tolist()


# -- nothing is missed -----------------------------------------------------------------------------------------------


def test_a_conversation_that_appends_misses_nothing() -> None:
    one = ours()
    talk = prompt(60)
    assert one.ask(talk).miss == "never_stored: nothing like it has been stored"
    for turn in range(3):
        talk += prompt(20, 1 + turn)
        line = one.ask(talk)
        assert line.miss is None
        assert line.use.cached_total == 60 + 20 * turn
    assert one.ask(talk).miss is None


def test_another_session_over_the_same_beginning_misses_nothing() -> None:
    one = ours()
    head = prompt(40)
    one.ask(head + prompt(40, 1), session="a")
    assert one.ask(head + prompt(40, 2), session="b").miss is None


# -- each cause ------------------------------------------------------------------------------------------------------


def test_evicted_by_whom_and_when() -> None:
    one = ours()
    talk = prompt(200)
    one.ask(talk)
    one.ask(prompt(100, 1))
    one.clock.advance(5.0)
    big = one.submit(prompt(250, 2))
    one.run()
    one.clock.advance(7.0)
    miss = one.why(talk + prompt(5, 3))
    assert miss is not None
    assert (miss.cause, miss.tier, miss.by) == ("evicted", "device", big.id)
    # One and a half requests lie between: that of 250 tokens and the seconds of `run` and `advance`.
    assert miss.ago == pytest.approx(8.0, abs=0.1)
    assert miss.at + miss.tokens == 200
    assert one.lines[-1].use.cached_total == miss.at
    assert one.lines[-1].miss == (
        f"evicted: {miss.tokens} tokens from token {miss.at} on left device 8.0 s ago to make room for request r3"
    )


def test_evicted_in_the_same_step() -> None:
    one = ours()
    talk = prompt(300)
    one.ask(talk)
    big = one.submit(prompt(250, 1), priority=1)
    small = one.submit(talk[:250], priority=0)
    one.run()
    line = next(line for line in one.lines if line.request_id == small.id)
    assert line.miss is not None
    assert line.miss.startswith("evicted: ")
    assert line.miss.endswith(f"to make room for request {big.id}")


def test_evicted_from_host_memory() -> None:
    one = ours(host_pages=30)
    talk = prompt(320)
    one.ask(talk)
    one.ask(prompt(320, 1))
    miss = one.why(talk)
    assert miss is not None
    assert (miss.cause, miss.tier, miss.by) == ("evicted", "host", "r2")
    # 30 pages: 20 of the second, and the first ten of the first.
    assert (miss.at, miss.tokens) == (160, 159)
    assert dict(one.lines[-1].use.cached)["host"] > 0


def test_other_clients_are_not_named() -> None:
    one = ours()
    talk = prompt(200)
    one.ask(talk, salt="me")
    one.ask(prompt(390, 1), salt="you/1")
    miss = one.why(talk, salt="me")
    assert miss is not None
    assert (miss.cause, miss.by) == ("evicted", None)
    one.ask(prompt(390, 2), salt="me/other")
    again = one.why(talk, salt="me")
    assert again is not None
    assert (again.cause, again.by) == ("evicted", "r4")


def test_two_conversations_of_the_same_depth_are_not_confused() -> None:
    one = ours()
    head, a, b = prompt(100), prompt(60, 1), prompt(60, 2)
    one.ask(head + a)
    one.ask(head + b)
    # Leaves of the same depth: that of `a` goes first, for r3, that of `b` for r4.
    one.ask(prompt(239, 3))
    one.ask(prompt(58, 4))
    for tail, by in ((a, "r3"), (b, "r4")):
        miss = one.why(head + tail)
        assert miss is not None
        assert (miss.cause, miss.by, miss.at >= 100) == ("evicted", by, True)


def test_expired() -> None:
    one = ours()
    talk = prompt(200)
    pin = Hint("pin", np.array(talk, dtype=np.int32), seconds=30.0)
    one.ask(talk, hints=[pin])
    one.ask(prompt(150, 1))
    one.ask(prompt(190, 2))
    assert one.ask([*talk, 5]).miss is None, "pinned: others went"
    one.clock.advance(31.0)
    one.ask(prompt(390, 3))
    miss = one.why(talk)
    assert miss is not None
    assert (miss.cause, miss.tier, miss.by) == ("expired", "device", "r5")
    assert "after their protection had ended" in str(miss)


def test_cleared() -> None:
    one = ours()
    talk = prompt(200)
    one.ask(talk)
    one.cache.clear("device")
    one.clock.advance(3.0)
    miss = one.why(talk)
    assert miss is not None
    assert (miss.cause, miss.at, miss.tokens, miss.by) == ("cleared", 0, 199, None)
    assert str(miss).endswith("by hand")
    with_host = ours(host_pages=30)
    talk = talk[: 12 * PAGE + 1]
    with_host.ask(talk)
    with_host.cache.clear("device")
    assert with_host.ask(talk).miss is None, "host memory still has it"
    with_host.cache.clear("device")
    with_host.cache.clear("host")
    cleared = with_host.why(talk)
    assert cleared is not None
    assert (cleared.cause, cleared.tier) == ("cleared", "host")


def test_below_one_page() -> None:
    paged = other("vllm")
    page = paged.cache.page_size
    assert page > 1
    talk = prompt(5 * page + 3)
    paged.ask(talk)
    miss = paged.why(talk)
    assert miss == Miss("below_page", 5 * page, 2)
    short = prompt(page - 2, 1)
    paged.ask(short)
    assert paged.why(short) == Miss("below_page", 0, page - 3)
    # Below the device only whole pages are kept.
    one = ours(host_pages=60)
    one.ask(prompt(3 * PAGE + 7, 2))
    one.ask(prompt(390, 3))
    assert one.why(prompt(3 * PAGE + 7, 2)) == Miss("below_page", 3 * PAGE, 6)


def test_salted_apart() -> None:
    one = ours()
    talk = prompt(100)
    one.ask(talk, salt="me/a")
    assert one.why(talk, salt="me/b") == Miss("salted_apart", 0, 99)
    assert one.why(talk, salt="me") == Miss("salted_apart", 0, 99)
    # Of other clients' prompts nothing is told, not even that they were the same.
    assert one.why(talk, salt="you") == Miss("never_stored", 0)


def test_never_stored() -> None:
    assert ours().why(prompt(100)) == Miss("never_stored", 0)
    # Computed before, but by an engine that keeps nothing.
    nothing = Modeled(lambda clock: NoCache(POOL))
    nothing.ask(prompt(100))
    assert nothing.why(prompt(100)) == Miss("never_stored", 0, 99)


def test_diverged() -> None:
    one = ours()
    talk = prompt(100)
    one.ask(talk, session="s")
    changed = [*talk[:30], 7, *talk[31:]]
    assert one.why(changed, session="s") == Miss("diverged", 30, 70)
    # Another turn goes on from the changed one, and the first is still known.
    assert one.why([*changed, *prompt(10, 1)], session="s") is None
    assert one.why([*talk[:60], *prompt(30, 2)], session="s") == Miss("diverged", 60, 40)


def test_diverged_and_evicted_is_evicted_first() -> None:
    one = ours()
    talk = prompt(200)
    one.ask(talk, session="s")
    one.ask(prompt(390, 1))
    miss = one.why([*talk[:150], *prompt(50, 2)], session="s")
    assert miss is not None
    assert (miss.cause, miss.at, miss.tokens) == ("evicted", 0, 150)


def test_policies_that_do_not_name_what_they_evict() -> None:
    paged = other("vllm")
    talk = prompt(200)
    paged.ask(talk)
    paged.ask(prompt(390, 1))
    miss = paged.why(talk)
    assert miss is not None
    assert (miss.cause, miss.tier, miss.by, miss.ago) == ("evicted", "device", None, None)


# -- real pages on disk ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("host_pages", [0, 30], ids=["read at once", "fetched while waiting"])
def test_pages_that_are_damaged_or_gone_on_disk(llama: Path, tmp_path: Path, host_pages: int) -> None:
    with rig(llama, host_bytes=host_pages * PAGE_BYTES, disk_dir=tmp_path, disk_bytes=100 * PAGE_BYTES) as one:
        talk = random_tokens(10 * PAGE, 1)
        one.ask(talk)
        one.clear("device", *["host"] * bool(host_pages))
        one.disk.flush()
        for path in tmp_path.rglob("*"):
            if path.is_file() and path.stat().st_size >= PAGE_BYTES:
                data = bytearray(path.read_bytes())
                data[len(data) // 2 :] = bytes(len(data) - len(data) // 2)
                path.write_bytes(data)
        line = one.ask(talk).line
        assert line.miss is not None
        assert line.miss.startswith("damaged: ")
        assert "from disk" in line.miss
        one.clear("device", *["host"] * bool(host_pages), "disk")
        line = one.ask(talk).line
        assert line.miss is not None
        assert line.miss.startswith("cleared: ")
        assert " left disk " in line.miss


# -- what it remembers -----------------------------------------------------------------------------------------------


def test_memory_is_bounded() -> None:
    one = ours()
    one.misses._most_tokens = 5000
    for seed in range(200):
        one.ask(prompt(150, seed), salt=f"client{seed % 7}/{seed}")
        assert one.misses.held <= 5000 + 150 + NODE_TOKENS
    trees = [tree for trees in one.misses._trees.values() for tree in trees.values()]
    assert len(trees) < 30
    nodes = [node for tree in trees for node in tree.nodes()]
    assert one.misses.held == sum(len(node.tokens) + NODE_TOKENS for node in nodes)
    for tree in trees:
        for node in tree.nodes():
            assert tree.edge(node.tokens) in node.parent.children
    # The newest is still known, the oldest not.
    one.ask(prompt(390, 1000), salt="client3/x")
    newest, oldest = one.why(prompt(150, 199), salt="client3/199"), one.why(prompt(150, 0), salt="client0/0")
    assert newest is not None
    assert newest.cause == "evicted"
    assert oldest == Miss("never_stored", 0)


def test_events_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("longturn.engine.misses.MOST_EVENTS", 50)
    one = MissRecorder(16, lambda: 0.0)
    for n in range(500):
        one.note([Event(0.0, "evicted", "device", 16, 1, 0, None, of=n % 9)])
    assert sum(map(len, one._gone.values())) == len(one._order) == 50


STEPS = st.tuples(
    st.integers(0, 5),
    st.integers(1, 12),
    st.sampled_from(["", "x", "x/1"]),
    st.sampled_from(["wait", "go on", "cancel", "clear device", "clear host"]),
)


@given(
    st.lists(STEPS, max_size=40),
    st.sampled_from(["write_through", "write_through_selective", "write_back"]),
    st.sampled_from([0, 6, 30]),
)
@example(
    [(5, 1, "", "wait"), (0, 1, "", "wait"), (1, 12, "x", "wait"), (0, 1, "", "go on"), (5, 1, "", "cancel")],
    "write_through",
    0,
)
def test_every_miss_is_accounted_for(steps: list[tuple[int, int, str, str]], policy: str, host_pages: int) -> None:
    one = ours(device_tokens=220, host_pages=host_pages, write_policy=policy)
    base = prompt(60)
    for seed, tens, salt, then in steps:
        one.submit([*base[: 10 * (seed + 1)], *prompt(10 * tens, seed)], salt=salt, n=5)
        if then == "cancel":
            one.engine.step()
            one.engine.cancel(f"r{one.asked}")
        if then != "go on":
            one.run()
        if then.startswith("clear") and host_pages:
            one.cache.clear(then.removeprefix("clear "))
            one.engine.mover.carry_out(one.cache)
    one.run()
    for line in one.lines:
        if line.miss is None:
            continue
        cause, _, words = line.miss.partition(": ")
        if cause == "never_stored":
            assert words == "nothing like it has been stored", "nothing left this cache without an event"
        if cause in ("evicted", "expired"):
            assert re.search(r" left (device|host) [0-9.,]+ s ago", words)
            found = re.match(r"([0-9,]+) tokens from token ([0-9,]+) on", words)
            assert found is not None
            lost, at = (int(number.replace(",", "")) for number in found.groups())
            assert at == line.use.cached_total
            assert lost > 0
            # One that was cancelled had not yet computed all that it had lost.
            assert lost <= line.use.computed or line.finish_reason == "cancelled"
