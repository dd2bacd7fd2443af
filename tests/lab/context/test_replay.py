"""Sessions under policies, with costs reckoned by hand.

A million tokens cost $0.30 read from the cache, $3.75 written to it, $15 as output.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from longturn.conversation.edits.contract import ContextPolicy, Decision, Edit, NeedsSummary
from longturn.conversation.item import Item
from longturn.conversation.policies.registry import context_policy
from longturn.conversation.window import Window
from longturn.lab.context.heads import fixed_items
from longturn.lab.context.outcome import Outcome
from longturn.lab.context.providers import Provider
from longturn.lab.context.rates import Fitted
from longturn.lab.context.replay import Replay
from longturn.lab.context.sessions import read_sessions
from longturn.lab.context.summaries import INSTRUCTION_TOKENS, request
from tests.lab.context.recordings import PLAIN, Recording, part, read_file

WIDE = Window(200_000, 32_000)


def run(
    recording: Recording,
    folder: Path,
    policy: ContextPolicy | str | None = None,
    *,
    provider: str = "anthropic",
    fitted: Fitted = PLAIN,
    window: Window = WIDE,
) -> Outcome:
    sessions, _ = read_sessions(recording.write(folder))
    chosen = context_policy(policy) if isinstance(policy, str) else policy
    return Replay(sessions, fitted, chosen, Provider(provider), window).run()


def talk(pause: float) -> Recording:
    """A question of 2,000 tokens, an answer of 100, another question of 50 after a pause, an answer of 10."""
    recording = Recording()
    recording.user(0, part("text", 2000, "a"))
    recording.answer(5, "r1", part("text", 100, "b"))
    recording.user(5 + pause, part("text", 50, "c"))
    recording.answer(10 + pause, "r2", part("text", 10, "d"))
    return recording


@pytest.mark.parametrize(
    ("pause", "cached", "written", "money"),
    [
        (300, 2000, 2150, 2150 * 3.75 + 2000 * 0.30 + 110 * 15),
        (301, 0, 4150, 4150 * 3.75 + 110 * 15),
    ],
)
def test_money_of_a_conversation(tmp_path: Path, pause: float, cached: int, written: int, money: float) -> None:
    outcome = run(talk(pause), tmp_path, "none")
    assert outcome.use.logical == 4150
    assert outcome.use.cached_total == cached
    assert outcome.use.written == written
    assert outcome.use.output == 110
    assert float(outcome.money or 0) == pytest.approx(money / 1e6)
    assert (outcome.requests, outcome.epochs, outcome.over, outcome.largest) == (2, 0, 0, 2150)


def test_an_hour_costs_twice_to_write(tmp_path: Path) -> None:
    outcome = run(talk(3000), tmp_path, "none", fitted=replace(PLAIN, hour_from=0.0))
    assert float(outcome.money or 0) == pytest.approx((2150 * 6 + 2000 * 0.30 + 110 * 15) / 1e6)


def test_other_providers_count_by_their_own_rules(tmp_path: Path) -> None:
    openai = run(talk(3000), tmp_path, "none", provider="openai")
    assert (openai.use.cached_total, openai.use.written) == (1920, 0)  # 15 steps of 128
    assert float(openai.money or 0) == pytest.approx((2230 * 1.75 + 1920 * 0.175 + 110 * 14) / 1e6)
    gemini = run(talk(10), tmp_path, "none", provider="gemini")
    assert gemini.use.cached_total == 0  # at least 4,096
    own = run(talk(1e6), tmp_path, "none", provider="self")
    assert (own.use.cached_total, own.money) == (2000, None)


def test_requests_beyond_the_window_are_counted(tmp_path: Path) -> None:
    assert run(talk(10), tmp_path, "none", window=Window(2200, 51)).over == 1
    assert run(talk(10), tmp_path, "none", window=Window(2200, 50)).over == 0


def test_what_was_recorded_is_replayed_with_its_compaction(tmp_path: Path) -> None:
    recording = talk(10)
    recording.compacted(60, 300)
    recording.user(61, part("text", 40, "e"))
    recording.answer(70, "r3", part("text", 5, "f"))
    outcome = run(recording, tmp_path, fitted=replace(PLAIN, after=1500, static=1100, head=1100))
    assert (outcome.policy, outcome.epochs, outcome.edits) == ("recorded", 1, 1)
    # The call for the summary continues what was sent: 3,260 tokens and the instruction; it writes 300.
    assert outcome.aside_calls == 1
    assert outcome.aside_use.logical == 3260 + INSTRUCTION_TOKENS
    assert outcome.aside_use.cached_total == 3250
    assert outcome.aside_use.output == 300
    # 1,500 tokens that were put back unseen, the summary, and the question.
    assert outcome.use.logical == 3100 + 3250 + outcome.aside_use.logical + 1500 + 300 + 40
    assert outcome.use.cached_total == 3100 + 3250 + 1100


def reading(second: tuple[str, int, dict[str, int]]) -> Recording:
    """Reads file f (500 tokens, content v1), then g (300), and then f again as told: content, tokens, lines."""
    content, chars, lines = second
    recording = Recording()
    recording.user(0, part("text", 100, "go"))
    read_file(recording, 1, "1", "f", 500, "v1", "r1")
    read_file(recording, 10, "2", "g", 300, "w", "r2")
    recording.answer(20, "r3", part("tool_use", 10, "again", tool="Read", call="3", file="f", **lines))
    recording.user(21, part("tool_result", chars, content, call="3"))
    recording.answer(30, "r4", part("text", 20, "done"))
    return recording


class Colds:
    """A policy that changes nothing and remembers when it was told that the cache is cold."""

    name = "colds"

    def __init__(self) -> None:
        self.told: list[bool] = []

    def born(self, items: Sequence[Item], new: Sequence[Item], window: Window) -> Sequence[Edit]:
        return ()

    def due(
        self, items: Sequence[Item], expected: int, reported: int | None, window: Window, cold: bool = False
    ) -> Decision:
        self.told.append(cold)
        return Decision()


@pytest.mark.parametrize(
    ("provider", "pause", "cold"),
    [("anthropic", 300, False), ("anthropic", 301, True), ("openai", 301, False), ("self", 1e7, False)],
)
def test_policies_are_told_when_the_cache_is_cold(tmp_path: Path, provider: str, pause: float, cold: bool) -> None:
    policy = Colds()
    run(talk(pause), tmp_path, policy, provider=provider)
    assert policy.told == [False, cold]


def test_another_model_finds_nothing(tmp_path: Path) -> None:
    recording = talk(10)
    recording.user(30, part("text", 10, "e"))
    recording.answer(40, "r3", part("text", 10, "f"), model="claude-opus-4-8")
    policy = Colds()
    outcome = run(recording, tmp_path, policy)
    assert policy.told == [False, False, True]
    assert outcome.use.cached_total == 2000


@pytest.mark.parametrize(
    ("second", "content", "file"),
    [
        (("v1", 500, {}), 500, 0),
        (("v2", 480, {}), 0, 480),  # 40 lines, all of which were there
        (("v2", 480, {"offset": 500}), 0, 0),  # lines that were never read
        (("v2", 240, {"offset": 32, "limit": 20}), 0, 120),  # of 20 lines, the first 10 were among 41
    ],
)
def test_regret_is_what_was_dropped_and_read_again(
    tmp_path: Path, second: tuple[str, int, dict[str, int]], content: int, file: int
) -> None:
    recording = reading(second)
    cleared = run(recording, tmp_path, "clear-tools:trigger=1,keep=1")
    assert (cleared.regret_content, cleared.regret_file) == (content, file)
    assert cleared.regret == content + file
    assert cleared.epochs == 2
    kept = run(recording, tmp_path, "none")
    assert (kept.regret, kept.epochs) == (0, 0)


def test_editing_what_is_not_sent_any_more_is_told(tmp_path: Path) -> None:
    recording = reading(("x", 20, {}))
    recording.user(40, part("text", 20, "more"))
    recording.answer(50, "r5", part("tool_use", 30, "edit", tool="Edit", call="5", file="g"))
    recording.user(51, part("tool_result", 20, "ok", call="5"))
    recording.answer(52, "r6", part("tool_use", 30, "again", tool="Edit", call="6", file="g"))
    recording.user(53, part("tool_result", 20, "ok", call="6"))
    assert run(recording, tmp_path, "clear-tools:trigger=1,keep=1").blind_edits == 300
    assert run(recording, tmp_path, "none").blind_edits == 0


def test_a_slide_loses_the_cache_behind_the_head(tmp_path: Path) -> None:
    recording = Recording()
    recording.user(0, part("text", 1000, "a"))
    for number in range(1, 5):
        recording.answer(number * 10, f"r{number}", part("text", 100, f"b{number}"))
        recording.user(number * 10 + 5, part("text", 1000, f"a{number}"))
    recording.answer(60, "r5", part("text", 100, "end"))
    fitted = replace(PLAIN, head=1500, static=1500)
    outcome = run(recording, tmp_path, "slide", fitted=fitted, window=Window(6000, 1000))
    assert (outcome.epochs, outcome.over, outcome.largest) == (1, 0, 4700)
    # 5,800 of 5,000 would be sent fourth: only the head and the newest question are left.
    assert outcome.use.logical == 2500 + 3600 + 4700 + 2500 + 3600
    assert outcome.use.cached_total == 0 + 2500 + 3600 + 1500 + 2500


def test_summaries_are_asked_for_as_each_program_does() -> None:
    fitted = replace(PLAIN, shared=100, static=300)
    fixed = fixed_items("s", "m", 500, fitted)
    long = Item(message=2, part=0, role="tool", kind="result", turn=0, tokens=5000, whole_tokens=5000, content="r")
    said = Item(message=1, part=0, role="user", kind="text", turn=0, tokens=70, whole_tokens=70, content="u")
    later = Item(message=9, part=0, role="user", kind="text", turn=1, tokens=7, whole_tokens=7, content="v")
    view = [*fixed, said, long, later]
    need = NeedsSummary(first=1, last=2, tail=9, reason="")

    def tokens(policy: str) -> int:
        return sum(item.tokens for item in request(policy, need, view, len(fixed), per_token=2.0))

    assert tokens("longturn") == 500 + 70 + 5000 + 7 + INSTRUCTION_TOKENS
    assert tokens("codex") == 400 + 70 + 5000 + 7 + INSTRUCTION_TOKENS
    assert tokens("opencode") == 70 + 1000 + INSTRUCTION_TOKENS
