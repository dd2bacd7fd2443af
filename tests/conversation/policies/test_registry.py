"""Context policies by name."""

from __future__ import annotations

import pytest

from longturn.conversation.policies.registry import CONTEXT_POLICIES, context_policy
from longturn.errors import ConfigError


def test_every_policy_has_the_name_it_is_found_by() -> None:
    assert {name: context_policy(name).name for name in CONTEXT_POLICIES} == {name: name for name in CONTEXT_POLICIES}


@pytest.mark.parametrize(
    ("text", "says"), [("nine", "choose one of clear-tools, codex"), ("none:a=1", "no option called 'a'")]
)
def test_what_cannot_be_is_named(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        context_policy(text)
