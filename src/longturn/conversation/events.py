"""What is seen of a turn while it runs. All but pieces of an answer is in the history when it is told."""

from __future__ import annotations

from dataclasses import dataclass

from longturn.conversation.entries import Edited
from longturn.conversation.meters import Reading
from longturn.conversation.models.contract import Answer, Delta
from longturn.conversation.parts import ToolCall, ToolResult
from longturn.ledger import RequestLine


@dataclass(frozen=True, slots=True)
class Called:
    """The model calls a tool, which runs now."""

    call: ToolCall


@dataclass(frozen=True, slots=True)
class Resulted:
    """What a call gave."""

    result: ToolResult


@dataclass(frozen=True, slots=True)
class Summarising:
    """A summary is asked for. reason: for people."""

    reason: str


@dataclass(frozen=True, slots=True)
class Changed:
    """The view was edited. before, after: its tokens, as estimated."""

    edited: Edited
    before: int
    after: int


@dataclass(frozen=True, slots=True)
class Answered:
    """A whole answer. line: what it took; reading: where the window meter stands now."""

    answer: Answer
    line: RequestLine
    reading: Reading


Event = Delta | Called | Resulted | Summarising | Changed | Answered
