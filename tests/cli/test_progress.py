"""The progress of long work: shown at a terminal, never in a pipe."""

from __future__ import annotations

import contextlib
import os
import pty
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from longturn.cli.lab.progress import counting, stepping


@contextmanager
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """stderr as a terminal; what was written to it is in the list at the end."""
    reader, writer = pty.openpty()
    monkeypatch.setenv("TERM", "xterm")
    shown: list[str] = []
    with os.fdopen(writer, "w") as file:
        monkeypatch.setattr(sys, "stderr", file)
        yield shown
    # Once all is read, a terminal that nobody writes to any more is an error.
    with contextlib.suppress(OSError):
        while part := os.read(reader, 4096):
            shown.append(part.decode(errors="replace"))
    os.close(reader)


def test_steps_are_shown_at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as shown, stepping("comparing") as progress:
        for done in range(4):
            progress(done, 3)
    assert "comparing" in "".join(shown)
    assert "3/3" in "".join(shown)


def test_counts_are_shown_at_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    with terminal(monkeypatch) as shown, counting("replaying", 130) as progress:
        for n in range(1, 131):
            progress(n)
    assert "replaying" in "".join(shown)
    assert "130/130" in "".join(shown)


def test_a_pipe_gets_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with counting("replaying") as progress:
        progress(64)
    with stepping("comparing") as step:
        step(1, 2)
    assert capsys.readouterr() == ("", "")
