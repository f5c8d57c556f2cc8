"""A small MCP server for tests: sums, a note of which process it is, errors, and a slow tool."""

import os
import time
from typing import Annotated

from mcp import MCPError
from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import CallToolResult
from pydantic import BaseModel

desk = MCPServer("desk", version="1.5")


class Weather(BaseModel):
    """What `forecast` says it returns."""

    celsius: float


@desk.tool()
def add(first: int, second: int) -> str:
    """Adds two
    whole numbers."""
    return str(first + second)


@desk.tool()
def shout(text: str) -> str:
    """Repeats a text in capitals."""
    return text.upper() + os.environ.get("DESK_MARK", "")


@desk.tool()
def refuse() -> str:
    """Never works."""
    raise ToolError("this tool is closed today")


@desk.tool()
def crash() -> str:
    """Ends in an error of the protocol."""
    raise MCPError(-32603, "an internal error")


@desk.tool()
def forecast() -> Annotated[CallToolResult, Weather]:
    """Returns a text where its schema has a number."""
    return CallToolResult(content=[], structured_content={"celsius": "12"})


@desk.tool()
def process() -> str:
    """The number of the server's process."""
    return str(os.getpid())


@desk.tool(name="sleep-for")
def sleep_for(seconds: float) -> str:
    """Waits."""
    time.sleep(seconds)
    return "awake"


if __name__ == "__main__":
    desk.run()
