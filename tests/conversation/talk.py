"""Histories for tests: entries with numbers, written in a few words."""

from __future__ import annotations

import json
from collections.abc import Sequence

from longturn.conversation.edits.contract import Edit
from longturn.conversation.entries import Edited, Entry, Said
from longturn.conversation.parts import Message, Part, Role, Text, ToolCall, ToolResult, Tools


def tool(name: str) -> dict[str, object]:
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", "properties": {}}}}


class Talk:
    """Entries as a conversation goes."""

    def __init__(self, system: str = "You help.", tools: Sequence[str] = ("read", "bash")) -> None:
        self.entries: list[Entry] = []
        self.say("system", Text(system), Tools(tuple(tool(name) for name in tools)))
        self.calls = 0

    @property
    def seq(self) -> int:
        return len(self.entries)

    def say(self, role: Role, *parts: Part, born: tuple[Edit, ...] = ()) -> int:
        self.entries.append(Said(self.seq, Message(f"m{self.seq}", role, parts), born))
        return self.seq - 1

    def user(self, text: str) -> int:
        return self.say("user", Text(text))

    def assistant(self, text: str) -> int:
        return self.say("assistant", Text(text))

    def call(self, *tools: str) -> list[str]:
        """An answer that calls `tools`; the ids of the calls."""
        ids = [f"call_{self.calls + n}" for n in range(len(tools))]
        self.calls += len(tools)
        arguments = json.dumps({"n": self.calls})
        self.say("assistant", *(ToolCall(call, name, arguments) for call, name in zip(ids, tools, strict=True)))
        return ids

    def result(self, call: str, text: str, resource: str | None = None, born: tuple[Edit, ...] = ()) -> int:
        return self.say("tool", ToolResult(call, text, resource), born=born)

    def read(self, path: str, text: str) -> int:
        """A call of `read` and its result; the number of the result."""
        return self.result(self.call("read")[0], text, path)

    def edit(self, *edits: Edit, reason: str = "because") -> int:
        self.entries.append(Edited(self.seq, edits, reason))
        return self.seq - 1
