"""A small engine and traces for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.lab.live.servers import SmallEngine, served


@pytest.fixture
def small() -> SmallEngine:
    return SmallEngine()


@pytest.fixture
def url(small: SmallEngine) -> Iterator[str]:
    with served(small.app) as url:
        yield url
