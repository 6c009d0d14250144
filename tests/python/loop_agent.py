"""A bare loop around the OpenAI SDK. Tools append to a log: three by `outlast.tool`, one by an MCP server.

Usage: loop_agent.py HOME OUTLAST. The model's messages are written to HOME/said.json at the end.
"""

import asyncio
import json
import os
import sys
from pathlib import Path

import mcp
import openai

import outlast

HOME, OUTLAST = Path(sys.argv[1]), sys.argv[2]
LOG = HOME / "log"
SERVER = Path(__file__).with_name("mcp_server.py")
PEOPLE = ("ann", "bob")
#: Seconds that a tool goes on behind its effect.
TAKES = 0.15
TOOLS = ("mail", "pay", "send", "look")
SCRIPT = "".join(f'mock: tool {tool} {{"text": "{name}"}}\n' for name in PEOPLE for tool in TOOLS) + "mock: reply done"


def note(line):
    with open(LOG, "a") as log:
        print(line, file=log, flush=True)
        os.fsync(log.fileno())
    return line


async def worked(line):
    """Writes a tool's effect, and lets the tool go on for a moment, so that kills come in the middle of it."""
    note(line)
    await asyncio.sleep(TAKES)
    return line


@outlast.tool(effect="idempotent")
async def pay(text):
    return await worked(f"pay {text} {outlast.current().idempotency_key}")


@outlast.tool(in_doubt="tell")
async def send(text):
    return await worked(f"send {text}")


@outlast.tool(effect="read")
async def look(text):
    return str(LOG.exists())


async def loop():
    recorder = ["--store", os.environ["OUTLAST_STORE"], "mcp", "--name", "mail", "--", sys.executable, str(SERVER), str(LOG)]
    client = openai.AsyncOpenAI()
    messages = [{"role": "user", "content": f"Pay them, and tell them.\n{SCRIPT}"}]
    tools = [{"type": "function", "function": {"name": name, "parameters": {"type": "object"}}} for name in TOOLS]
    async with mcp.Client(mcp.StdioServerParameters(command=OUTLAST, args=recorder)) as mail:
        while True:
            answer = await client.chat.completions.create(model="gpt-4.1-mini", messages=messages, tools=tools)
            message = answer.choices[0].message
            messages.append(message.model_dump(exclude_none=True))
            if not message.tool_calls:
                return messages
            for call in message.tool_calls:
                name, arguments = call.function.name, json.loads(call.function.arguments)
                if name == "mail":
                    result = await mail.call_tool("append", {**arguments, "takes": TAKES})
                    said = result.content[0].text
                else:
                    said = await {"pay": pay, "send": send, "look": look}[name](**arguments)
                messages.append({"role": "tool", "tool_call_id": call.id, "content": said})


async def main():
    async with outlast.connect().run("r"):
        (HOME / "said.json").write_text(json.dumps(await loop()))


asyncio.run(main())
