"""What a test sent to language models, and where the cached prefix moved."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from threading import Lock

import pytest

from longturn.errors import ConfigError
from longturn.explain import MECHANISMS, Verdict
from longturn.explain.told import told
from longturn.pytest_plugin.following import followed
from longturn.pytest_plugin.recorded import Recorded

NOTHING_MOVED = ("none", "below_minimum")


@dataclass(frozen=True)
class Break:
    """A request that could not use all that an earlier one of its conversation had left in a cache.

    reason: what the test says of it; None where it says nothing.
    """

    earlier: Recorded
    later: Recorded
    verdict: Verdict
    reason: str | None = None

    def __str__(self) -> str:
        return "\n".join([f"{self.later} after request {self.earlier.number}:", *told(self.verdict)])


class CachedPrefix:
    """The value of the fixture `cached_prefix`.

    requests: those to language models, in the order of their answers. breaks: where the prefix moved.
    Only what requests contain is looked at: what a mocked server says of its cache means nothing.
    """

    def __init__(self) -> None:
        self.requests: list[Recorded] = []
        self._breaks: list[Break] = []
        self._judged = 0
        self._lock = Lock()

    def record(self, path: str, content: bytes) -> None:
        """Take a request into account, if it is one to a language model. Called from any thread."""
        with self._lock:
            if (one := Recorded.read(len(self.requests) + 1, path, content)) is not None:
                self.requests.append(one)

    @property
    def breaks(self) -> list[Break]:
        """Where the prefix moved so far, in order, with and without a reason."""
        self._judge()
        return list(self._breaks)

    @contextmanager
    def expect_break(self, reason: str, *mechanisms: str) -> Iterator[None]:
        """Inside this, the prefix has to move at least once, and may, because of `reason`.

        mechanisms: of `longturn.explain.MECHANISMS`; only these are expected then. Raises ConfigError where one is not
        of them or the reason is empty. Fails the test where nothing has moved.
        """
        if not reason.strip():
            raise ConfigError("expect_break needs a reason: say why the prefix moves here")
        if unknown := sorted(set(mechanisms) - set(MECHANISMS)):
            raise ConfigError(f"no mechanism is called {', '.join(unknown)}: use some of {', '.join(MECHANISMS)}")
        self._judge()
        before = len(self._breaks)
        yield
        self._judge(expected=True)
        inside = range(before, len(self._breaks))
        meant = [i for i in inside if not mechanisms or self._breaks[i].verdict.mechanism in mechanisms]
        if not meant:
            pytest.fail(f"no prefix moved because of {reason!r}: take that expect_break out", pytrace=False)
        for i in meant:
            self._breaks[i] = replace(self._breaks[i], reason=self._breaks[i].reason or reason)

    def check(self) -> None:
        """Fail the test where the prefix moved without a reason. Done by itself when the test has ended."""
        if unstated := [one for one in self.breaks if one.reason is None]:
            times = "once" if len(unstated) == 1 else f"{len(unstated)} times"
            text = [
                f"the cached prefix moved {times} without a stated reason",
                *map(str, unstated),
                'If it is meant, make the request inside `with cached_prefix.expect_break("why"):`.',
            ]
            pytest.fail("\n\n".join(text), pytrace=False)

    def _judge(self, *, expected: bool = False) -> None:
        """Look at the requests that came since the last time."""
        for one in self.requests[self._judged :]:
            found = followed(one, self.requests[: self._judged], expected)
            self._judged += 1
            if found is not None and _moved(*found):
                self._breaks.append(Break(found[0], one, found[1]))


def _moved(earlier: Recorded, verdict: Verdict) -> bool:
    """Whether there was something to lose. Where no request has ever set a mark, nothing new is lost without one."""
    if verdict.mechanism == "no_marks":
        return bool(earlier.exchange.prompt.marks)
    return verdict.mechanism not in NOTHING_MOVED
