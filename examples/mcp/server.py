"""An MCP server with two tools, in the standard library alone: `send` appends a letter to outbox.txt, `list` reads it."""

import json
import sys
import time
from pathlib import Path

OUTBOX = Path("outbox.txt")
TOOLS = [
    {"name": "send", "description": "Send a letter", "inputSchema": {"type": "object"}},
    {
        "name": "list",
        "description": "List the letters that were sent",
        "inputSchema": {"type": "object"},
        "annotations": {"readOnlyHint": True},
    },
]


def call(name, arguments):
    if name == "send":
        with OUTBOX.open("a") as outbox:
            outbox.write(f"{arguments['to']}\n")
        time.sleep(arguments.get("takes_s", 0))
        return f"sent to {arguments['to']}"
    return OUTBOX.read_text() if OUTBOX.exists() else ""


def result(method, params):
    if method == "initialize":
        info = {"name": "letters", "version": "1"}
        return {"protocolVersion": params["protocolVersion"], "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "tools/call":
        text = call(params["name"], params.get("arguments", {}))
        return {"content": [{"type": "text", "text": text}]}
    return {}


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        answer = {"jsonrpc": "2.0", "id": request["id"], "result": result(request["method"], request.get("params"))}
        print(json.dumps(answer), flush=True)
