"""Finding follow-ups, with bounded memory."""

from __future__ import annotations

from dataclasses import replace

from longturn.lab.trace import Blocks, TraceRequest
from longturn.lab.trace.following import LOOK_AHEAD, FollowUps, with_answer


def request(name: str, ids: list[int], n_tokens: int, n_output: int = 0) -> TraceRequest:
    return TraceRequest(name, f"session of {name}", 0.0, Blocks.of(ids), n_tokens, n_output)


def test_the_longest_earlier_prompt_is_found() -> None:
    follow_ups = FollowUps()
    for name, keys in (("short", [1, 2]), ("long", [1, 2, 3, 4]), ("again", [1, 2])):
        assert list(follow_ups.hold(request(name, keys, len(keys)), keys[-1])) == []
    assert list(follow_ups.hold(request("closed", [9], 1), None)) == []
    found = follow_ups.before([1, 2, 3, 4, 5])
    assert found is not None
    assert (found.depth, found.session, found.place) == (4, "session of long", 1)
    newest = follow_ups.before([1, 2, 7])
    assert newest is not None
    assert (newest.depth, newest.place) == (2, 2)
    assert follow_ups.before([1, 2, 7], least=3) is None
    assert follow_ups.before([9]) is None


def test_requests_are_held_back_until_they_are_too_many() -> None:
    follow_ups = FollowUps()
    given: list[TraceRequest] = []
    for number in range(LOOK_AHEAD + 2):
        given += follow_ups.hold(request(str(number), [number], 1), number)
    assert [one.id for one in given] == ["0", "1"]
    for number in (1, 2):
        end = follow_ups.before([number])
        assert end is not None
        follow_ups.change(end, lambda held: replace(held, salt="seen"))
    rest = list(follow_ups.rest())
    assert [one.id for one in rest] == [str(number) for number in range(2, LOOK_AHEAD + 2)]
    assert [one.salt for one in rest[:2]] == ["seen", ""]
    assert given[1].salt == ""


def test_an_answer_is_shown_as_far_as_whole_blocks_go() -> None:
    asked = request("asked", [1, 2, 3], 40, 30)
    answered = with_answer(asked, request("next", [1, 2, 5, 6, 7], 75), unit=16)
    assert answered.output == Blocks.of([5, 6])
    assert with_answer(answered, request("other", [1, 2, 9, 9, 9], 75), unit=16) == answered
    assert with_answer(asked, request("shorter", [1, 2, 5], 50), unit=16).output == Blocks.of([5])
    assert with_answer(asked, request("edited", [1, 4, 5, 6], 60), unit=16).output is None
