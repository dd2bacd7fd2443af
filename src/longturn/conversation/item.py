"""What a view consists of: one item per part, with all that edits and policies may look at, and no text.

Policies decide on items alone, so the same policy serves a real conversation and a replay of recorded structure, in
which there is no text.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Kind = Literal["system", "tools", "text", "reasoning", "call", "result", "file", "summary"]
Shape = Literal["whole", "placeholder", "reference", "preview"]


@dataclass(frozen=True, slots=True)
class Item:
    """One part as it is sent.

    message: sequence number of its message in the history; part: its place therein; role: of the message; turn: which
    user turn it belongs to, counting from 0; tokens: as it is sent now; whole_tokens: of the original; content: equal
    where the original content is equal; tool, call, resource: of calls and results; shape: `whole`, or what is sent
    instead: a fixed placeholder, a reference to an equal item (`refers_to`: its message and part), or a preview of an
    artifact; synthetic: written by the program.
    """

    message: int
    part: int
    role: str
    kind: Kind
    turn: int
    tokens: int
    whole_tokens: int
    content: str
    tool: str | None = None
    call: str | None = None
    resource: str | None = None
    shape: Shape = "whole"
    refers_to: tuple[int, int] | None = None
    synthetic: bool = False
    error: bool = False

    @property
    def at(self) -> tuple[int, int]:
        """Where it is in the history: message and part."""
        return self.message, self.part
