"""What a view consists of: one item per part, with all that edits and policies may look at, and no text.

Policies decide on items alone, so the same policy serves a real conversation and a replay of recorded structure, in
which there is no text.
"""

from __future__ import annotations

from typing import Literal

import msgspec

Kind = Literal["system", "tools", "text", "reasoning", "call", "result", "file", "summary"]
Shape = Literal["whole", "placeholder", "reference", "preview", "extract"]
Place = tuple[int, int]
"""Where a part is in the history: sequence number of its message, and its number therein, from 0.

What edits and the fold add has numbers below 0: a summary -1 of the last message it stands for, its question -2, what
stands for a result that never came -10 - the number of its call.
"""


class Item(msgspec.Struct, frozen=True, omit_defaults=True):
    """One part as it is sent.

    message: sequence number of its message in the history; part: its place therein; role: of the message; turn: which
    user turn it belongs to, counting from 0; tokens: as it is sent now; whole_tokens: of the original; content: equal
    where the original content is equal, and of a result its artifact's digest; tool, call, resource: of calls and
    results; shape: `whole`, or what is sent instead: a fixed placeholder, a reference to an equal item (`refers_to`:
    its message and part), a preview of an artifact (`cut`: characters of head and tail), or an extract that was brought
    back later (`cut`: from and up to which character); synthetic: written by the program.
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
    refers_to: Place | None = None
    cut: tuple[int, int] | None = None
    synthetic: bool = False
    error: bool = False

    @property
    def at(self) -> Place:
        """Where it is in the history: message and part."""
        return self.message, self.part

    @property
    def fixed(self) -> bool:
        """Whether it is sent with every request, whatever is edited: system text and tools."""
        return self.kind in ("system", "tools")
