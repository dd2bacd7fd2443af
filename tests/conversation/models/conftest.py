from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conversation.models.replies import Provider, provider


@pytest.fixture
def api() -> Iterator[Provider]:
    with provider() as server:
        yield server
