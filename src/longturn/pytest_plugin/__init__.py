"""The pytest plugin: the fixture `cached_prefix` fails a test in which the cached prefix moved without a stated reason.

pytest loads this in every suite of an environment that has Longturn, so it imports nothing until a test asks for it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from longturn.pytest_plugin.cached_prefix import CachedPrefix

__all__ = ["cached_prefix"]

_USED: pytest.StashKey[CachedPrefix] = pytest.StashKey()


@pytest.fixture
def cached_prefix(request: pytest.FixtureRequest) -> Iterator[CachedPrefix]:
    """Record the requests that the test makes to language models, and fail it where a cached prefix moved."""
    from longturn.pytest_plugin.cached_prefix import CachedPrefix
    from longturn.pytest_plugin.taps import tapped

    prefix = request.node.stash[_USED] = CachedPrefix()
    with tapped(prefix.record):
        yield prefix


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    """Check as part of the test itself, so that it fails, as its own assertions do, and is no error of the teardown."""
    result = yield
    if (prefix := item.stash.get(_USED, None)) is not None:
        prefix.check()
    return result
