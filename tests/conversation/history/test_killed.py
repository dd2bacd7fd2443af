from tests.conversation.history.killing import kill_one_of_two


def test_nothing_acknowledged_is_lost(place: str) -> None:
    assert kill_one_of_two(place, rounds=1) > 3
