"""An MCP server of the standard library: its tools append to a log, and do with a call what its arguments say.

Usage: mcp_server.py LOG. Arguments of the tools `append` and `look`:
    text   what is appended: one line `TOOL TEXT KEY` for each call, with the idempotency key that came
    die    "before": the server kills itself before the effect; "after": after it, before the answer
    wait   a file that has to be there before the answer is given
    takes  so many seconds pass behind the effect
    fail   the result says that the tool failed
    tell   a variable whose value is in the answer
"""

import json
import os
import signal
import sys
import threading
import time

LOG = sys.argv[1]
lock = threading.Lock()


def send(message):
    with lock:
        sys.stdout.write(json.dumps(message) + "\n")
        sys.stdout.flush()


def note(line):
    with open(LOG, "a") as log:
        log.write(line + "\n")
        log.flush()
        os.fsync(log.fileno())


def tool(request):
    params = request["params"]
    told = params.get("arguments") or {}
    if told.get("die") == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    key = (params.get("_meta") or {}).get("outlast/idempotencyKey", "-")
    note(f"{params['name']} {told.get('text')} {key}")
    if told.get("die") == "after":
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(told.get("takes", 0))
    while told.get("wait") and not os.path.exists(told["wait"]):
        time.sleep(0.01)
    count = sum(1 for _ in open(LOG))
    said = os.environ.get(told["tell"], "") if told.get("tell") else f"line {count}"
    result = {"content": [{"type": "text", "text": said}], "newField": {"n": 1.50}}
    if told.get("fail"):
        result["isError"] = True
    send({"jsonrpc": "2.0", "id": request["id"], "result": result})


def answer(request):
    method, told = request.get("method"), request.get("id")
    if method == "initialize":
        note(f"initialize {request['params'].get('clientInfo', {}).get('name')}")
        version = request["params"].get("protocolVersion", "2025-11-25")
        capabilities = {"tools": {}, "resources": {}, "logging": {}}
        result = {"protocolVersion": version, "capabilities": capabilities, "serverInfo": {"name": "s", "version": "1"}}
        send({"jsonrpc": "2.0", "id": told, "result": result})
    elif method == "tools/list":
        schema = {"type": "object"}
        tools = [
            {"name": "append", "inputSchema": schema, "execution": {"unknown": True}},
            {"name": "look", "inputSchema": schema, "annotations": {"readOnlyHint": True}},
        ]
        send({"jsonrpc": "2.0", "id": told, "result": {"tools": tools}})
    elif method == "tools/call":
        threading.Thread(target=tool, args=(request,), daemon=True).start()
    elif method == "resources/list":
        resources = [{"uri": "file:///a", "name": "a"}]
        send({"jsonrpc": "2.0", "id": told, "result": {"resources": resources}})
    elif told is not None and method is not None:
        send({"jsonrpc": "2.0", "id": told, "result": {}})


for line in sys.stdin:
    answer(json.loads(line))
