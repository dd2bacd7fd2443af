"""The tools over artifacts and history, as tools of the box."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from longturn.conversation.artifacts.tools import MEMORY_TOOLS, Memory, MemoryTool
from longturn.conversation.tools.contract import Outcome, Tool


def memory_tools(memory: Memory) -> list[Tool]:
    """`artifact_read`, `artifact_search` and `recall`. Their work is done in threads."""
    return [Tool(tool.name, tool.description, tool.parameters, _running(tool, memory)) for tool in MEMORY_TOOLS]


def _running(tool: MemoryTool, memory: Memory) -> Callable[[Mapping[str, Any]], Awaitable[Outcome]]:
    async def run(arguments: Mapping[str, Any]) -> Outcome:
        return Outcome(await asyncio.to_thread(tool.function, memory, arguments))

    return run
