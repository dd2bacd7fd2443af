"""Tools of MCP servers: programs that are started here, or URLs."""

from __future__ import annotations

import shlex
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import mcp_types as types
from mcp import Client, MCPError, StdioServerParameters
from mcp.client.stdio import stdio_client

from longturn.conversation.tools.contract import Outcome, Tool
from longturn.errors import ToolError

# A server that says nothing must not hold up a turn for ever.
TIMEOUT = 300.0


@asynccontextmanager
async def mcp_tools(name: str, where: Any, *, timeout: float = TIMEOUT) -> AsyncIterator[list[Tool]]:
    """The tools of one server, while the context lasts; each is called `name__tool`.

    where: a command line, a URL, or what `mcp.Client` takes. Raises ToolError for a server that cannot be asked.
    """
    server = _program(where) if isinstance(where, str) and not where.startswith(("http://", "https://")) else where
    mine: Exception | None = None
    async with AsyncExitStack() as stack:
        try:
            client = await stack.enter_async_context(Client(server, read_timeout_seconds=timeout))
            tools = [_tool(name, client, tool) for tool in await _listed(client)]
        except* Exception as group:
            raise ToolError(f"the MCP server {name} cannot be used ({_first(group)}): check {where!r}") from group
        try:
            yield tools
        except Exception as error:
            # The client's task groups would wrap it, and nobody could catch it for what it is.
            mine = error
    if mine is not None:
        raise mine


def _program(line: str) -> Any:
    command, *arguments = shlex.split(line) or [""]
    # What it complains about belongs on the terminal, also where this program's own errors go elsewhere.
    return stdio_client(StdioServerParameters(command=command, args=arguments), errlog=sys.__stderr__ or sys.stderr)


async def _listed(client: Client) -> list[types.Tool]:
    found: list[types.Tool] = []
    page = await client.list_tools()
    found += page.tools
    while page.next_cursor:
        page = await client.list_tools(cursor=page.next_cursor)
        found += page.tools
    return found


def _tool(server: str, client: Client, tool: types.Tool) -> Tool:
    return Tool(
        f"{server}__{tool.name}", tool.description or "", tool.input_schema, _running(client, tool.name), server
    )


def _running(client: Client, name: str) -> Callable[[Mapping[str, Any]], Awaitable[Outcome]]:
    async def run(arguments: Mapping[str, Any]) -> Outcome:
        try:
            result = await client.call_tool(name, dict(arguments))
        except (MCPError, TimeoutError, OSError) as error:
            raise ToolError(f"the tool failed: {error}") from error
        return Outcome("\n".join(_words(block) for block in result.content), error=bool(result.is_error))

    return run


def _words(block: Any) -> str:
    """A block of a result as words: what is none is only named."""
    if isinstance(block, types.TextContent):
        return block.text
    if isinstance(block, types.EmbeddedResource) and isinstance(block.resource, types.TextResourceContents):
        return block.resource.text
    return f"[{block.type} content, which is not shown]"


def _first(group: BaseExceptionGroup[BaseException]) -> BaseException:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error
