"""The memory tools over the Model Context Protocol, for agents of other makers."""

from __future__ import annotations

from functools import partial
from typing import Any

import anyio
import mcp_types as types
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

import longturn
from longturn.conversation.artifacts.tools import MEMORY_TOOLS, Memory
from longturn.errors import LongturnError


def memory_server(memory: Memory) -> Server[dict[str, Any]]:
    """A server that offers the three tools on `memory`. What goes wrong in a call is told to the model in words."""
    listed = [
        types.Tool(
            name=tool.name,
            description=tool.description,
            input_schema=dict(tool.parameters),
            annotations=types.ToolAnnotations(read_only_hint=True, open_world_hint=False),
        )
        for tool in MEMORY_TOOLS
    ]
    functions = {tool.name: tool.function for tool in MEMORY_TOOLS}

    async def list_tools(
        context: ServerRequestContext[dict[str, Any]], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        return types.ListToolsResult(tools=listed)

    async def call_tool(
        context: ServerRequestContext[dict[str, Any]], params: types.CallToolRequestParams
    ) -> types.CallToolResult:
        function = functions.get(params.name)
        if function is None:
            return _told(f"there is no tool {params.name!r}: use one of {', '.join(functions)}", error=True)
        try:
            # Disk and database block, and other calls must not wait for them.
            return _told(await anyio.to_thread.run_sync(partial(function, memory, params.arguments or {})))
        except LongturnError as error:
            return _told(str(error), error=True)

    return Server(
        "longturn",
        version=longturn.__version__,
        instructions="Gets back what a long conversation does not show any more: large outputs, and what was said.",
        on_list_tools=list_tools,
        on_call_tool=call_tool,
    )


async def serve_stdio(memory: Memory) -> None:
    """Serve one client over standard input and output until it leaves."""
    server = memory_server(memory)
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


def _told(text: str, *, error: bool = False) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(type="text", text=text)], is_error=error)
