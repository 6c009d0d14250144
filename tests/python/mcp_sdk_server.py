"""An MCP server of the official SDK, with a tool for each thing that passes between client and server."""

import os
import sys

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from pydantic import BaseModel

server = MCPServer("sdk")


class Answer(BaseModel):
    yes: bool


@server.tool()
def add(a: int, b: int) -> int:
    "Adds two numbers."
    return a + b


@server.tool()
def fails() -> str:
    "Fails."
    raise ValueError("it always does")


@server.tool()
def dies() -> str:
    "Ends the server."
    os._exit(9)


@server.tool()
async def slow(steps: int, ctx: Context) -> str:
    "Tells of its progress."
    for step in range(steps):
        await ctx.report_progress(step + 1, steps)
    return "done"


@server.resource("note://{name}")
def note(name: str) -> str:
    "A note."
    return f"note of {name}"


@server.prompt()
def greet(name: str) -> str:
    "Greets."
    return f"Greet {name}."


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    server.run()
