"""The MCP servers of a chat, open from its first turn to its last."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from typing import TYPE_CHECKING, Self

from longturn.errors import ConfigError

if TYPE_CHECKING:
    from longturn.conversation.tools.contract import Tool


class Servers:
    """Starts servers by name and command or URL; `tools`: all that they offer. Close it after use.

    One task opens and closes them, as their task groups demand; turns run in tasks of their own.
    """

    def __init__(self, runner: asyncio.Runner, servers: Sequence[tuple[str, str]]) -> None:
        self.tools: list[Tool] = []
        self._runner = runner
        self._servers = servers
        self._stop = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    def __enter__(self) -> Self:
        if self._servers:
            self._runner.run(self._start())
        return self

    def __exit__(self, *_: object) -> None:
        if self._task is not None:
            self._runner.run(self._end(self._task))

    async def _start(self) -> None:
        ready: asyncio.Future[list[Tool]] = asyncio.get_running_loop().create_future()
        self._task = asyncio.create_task(self._host(ready))
        self.tools = await ready

    async def _host(self, ready: asyncio.Future[list[Tool]]) -> None:
        try:
            from longturn.conversation.tools.mcp_servers import mcp_tools

            async with AsyncExitStack() as stack:
                tools: list[Tool] = []
                for name, where in self._servers:
                    tools += await stack.enter_async_context(mcp_tools(name, where))
                ready.set_result(tools)
                await self._stop.wait()
        except ModuleNotFoundError as error:
            ready.set_exception(ConfigError(f"MCP needs its package ({error}): pip install 'longturn[conversation]'"))
        except Exception as error:
            if ready.done():
                raise
            ready.set_exception(error)

    async def _end(self, task: asyncio.Task[None]) -> None:
        self._stop.set()
        await task
