"""What is fitted to reported usage is what made that usage."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from longturn.errors import ConfigError
from longturn.lab.context.heads import head
from longturn.lab.context.rates import HOUR, MINUTES, fit
from longturn.lab.context.recorded import cross_check
from longturn.lab.context.sessions import Recorded, read_sessions
from tests.lab.context.recordings import START, Recording, part

SHARED = Path(__file__).parents[4] / "shared" / "traces"
HEAD, STATIC, SHARED_BY_OTHERS = 20_000, 12_000, 5_000


def recorded(folder: Path, *, pause: float = 60.0, sessions: int = 4, calls: int = 30, life: float = MINUTES) -> Path:
    """Usage as Anthropic would report it: results 1/2, calls 1/4, text 1/5 token a character, 10 a part."""
    random.seed(1)
    recording = Recording(*(f"s{n}" for n in range(sessions)))
    for number in range(sessions):
        time, previous, total = number * 1e6, 0, HEAD
        said = part("text", 500, f"asked {number}")
        total += 110
        recording.user(time, said, session=number)
        for call in range(calls):
            time += 1
            hit = previous if call % 7 or pause < life else SHARED_BY_OTHERS
            read = SHARED_BY_OTHERS if not call else hit
            size = random.randrange(40, 400) * 4
            words = random.randrange(10, 200) * 5
            recording.answer(
                time,
                f"{number} {call}",
                part("text", words, f"text {number} {call}"),
                part("tool_use", size, f"call {number} {call}", tool="Bash", call=f"{number} {call}"),
                session=number,
                usage=(3, read, total - read - 3),
            )
            previous = total
            got = random.randrange(100, 2000) * 2
            time += pause if call % 7 == 6 else 20
            recording.user(
                time, part("tool_result", got, f"result {number} {call}", call=f"{number} {call}"), session=number
            )
            total += words // 5 + 10 + size // 4 + 10 + got // 2 + 10
    return recording.write(folder)


def read(path: Path) -> list[Recorded]:
    return read_sessions(path)[0]


def test_characters_per_token_and_head_are_found(tmp_path: Path) -> None:
    sessions = read(recorded(tmp_path))
    fitted = fit(sessions)
    assert fitted.rates.result == pytest.approx(1 / 2, rel=1e-3)
    assert fitted.rates.call == pytest.approx(1 / 4, rel=1e-3)
    assert fitted.rates.text == pytest.approx(1 / 5, rel=1e-3)
    assert fitted.rates.part == pytest.approx(10, rel=1e-2)
    assert fitted.head == pytest.approx(HEAD, abs=10)
    assert fitted.shared == SHARED_BY_OTHERS
    assert head(sessions[0], fitted).tokens == pytest.approx(HEAD, abs=10)


def test_without_usage_the_usual_rates_stand(tmp_path: Path) -> None:
    recording = Recording()
    recording.user(0, part("text", 28, "a"))
    recording.answer(1, "r", part("text", 28, "b"))
    sessions = read(recording.write(tmp_path))
    fitted = fit(sessions)
    assert fitted.rates.result == 1 / 2.8
    assert (fitted.head, fitted.hour_from) == (0, None)
    with pytest.raises(ConfigError, match="--no-check"):
        cross_check(sessions)


@pytest.mark.parametrize(("pause", "life", "found"), [(900.0, MINUTES, MINUTES), (900.0, HOUR, HOUR)])
def test_how_long_entries_live_is_seen_in_the_pauses(tmp_path: Path, pause: float, life: float, found: float) -> None:
    fitted = fit(read(recorded(tmp_path, pause=pause, life=life)))
    assert fitted.ttl(START.timestamp() + 1e5) == found


@pytest.mark.parametrize("pause", [60.0, 900.0])
def test_the_recorded_policy_gives_the_recorded_usage(tmp_path: Path, pause: float) -> None:
    checks = cross_check(read(recorded(tmp_path, pause=pause)))
    assert [check.sessions for check in checks] == [2, 2]
    for check in checks:
        assert abs(check.input_error) < 0.005
        assert abs(check.cached_error) < 0.005
        assert abs(check.worst_error) >= abs(check.input_error)
        assert check.good


def test_a_wrong_life_of_entries_is_noticed(tmp_path: Path) -> None:
    """The check can fail: the same sessions, whose pauses are said to have lost nothing."""
    sessions = read(recorded(tmp_path, pause=900.0, life=HOUR))
    others = read(recorded(tmp_path, pause=900.0, life=MINUTES))
    mixed = [others[0], sessions[1], others[2], sessions[3]]
    assert not all(check.good for check in cross_check(mixed))


def test_a_resumed_session_has_older_history(tmp_path: Path) -> None:
    sessions = read(recorded(tmp_path))
    call = sessions[0].calls[0]
    call.usage.cache_creation_input_tokens = 90_000
    fitted = fit(sessions[1:])
    opening = head(sessions[0], fitted)
    assert opening.tokens == fitted.head
    [older] = opening.older
    assert older.tokens == pytest.approx(call.usage.prompt - HEAD, abs=200)
    assert not older.fixed


@pytest.mark.parametrize("name", ["coding_agent_a_structure.jsonl.gz", "coding_agent_b_structure.jsonl.gz"])
def test_real_sessions_are_reproduced(name: str) -> None:
    """Both ways: fitted to every other session, checked on the rest."""
    if not (SHARED / name).exists():
        pytest.skip(f"{name} is not beside this checkout")
    for check in cross_check(read(SHARED / name)):
        assert abs(check.input_error) <= 0.03
        assert abs(check.cached_error) <= 0.05
