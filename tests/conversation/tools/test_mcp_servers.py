"""Tools of MCP servers: one in this process, and a real one started as a program."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from mcp.server.mcpserver import MCPServer

from longturn.conversation.parts import ToolCall
from longturn.conversation.tools.contract import Toolbox
from longturn.conversation.tools.mcp_servers import mcp_tools
from longturn.errors import ToolError

PROGRAM = """
from mcp.server.mcpserver import MCPServer
server = MCPServer("calc")

@server.tool()
def add(a: int, b: int) -> str:
    "Adds."
    return str(a + b)

server.run()
"""


def calc() -> MCPServer:
    server = MCPServer("calc")

    @server.tool(description="Adds.")
    def add(a: int, b: int) -> str:
        return str(a + b)

    @server.tool()
    def fail() -> str:
        raise RuntimeError("it broke")

    return server


async def test_tools_of_a_server():
    async with mcp_tools("calc", calc()) as tools:
        box = Toolbox(tools)
        assert [tool["function"]["name"] for tool in box.definitions] == ["calc__add", "calc__fail"]
        assert box.definitions[0]["function"]["description"] == "Adds."
        assert box.server("calc__add") == "calc"
        result = await box.run(ToolCall("c", "calc__add", json.dumps({"a": 2, "b": 3})))
        assert (result.text, result.error) == ("5", False)
        wrong = await box.run(ToolCall("c", "calc__add", json.dumps({"a": "x"})))
        assert wrong.error
        assert (await box.run(ToolCall("c", "calc__fail", "{}"))).error


async def test_a_server_that_is_a_program(tmp_path: Path):
    program = tmp_path / "calc.py"
    program.write_text(PROGRAM)
    async with mcp_tools("calc", f"{sys.executable} {program}") as tools:
        result = await Toolbox(tools).run(ToolCall("c", "calc__add", json.dumps({"a": 2, "b": 3})))
        assert result.text == "5"


@pytest.mark.parametrize("where", ["/no/such/program", "http://127.0.0.1:9/mcp", ""])
async def test_a_server_that_is_not_there(where: str):
    with pytest.raises(ToolError, match="MCP server calc cannot be used"):
        async with mcp_tools("calc", where):
            pass


async def test_errors_of_the_user_stay_what_they_are():
    with pytest.raises(OSError, match="mine"):
        async with mcp_tools("calc", calc()):
            raise OSError("mine")
