"""An MCP server of the standard library whose tool answers with a task, which outlives the server.

Usage: mcp_tasks_server.py DIRECTORY. The task's work is done when DIRECTORY has a file `finished`.
"""

import json
import sys
from pathlib import Path

PLACE = Path(sys.argv[1])


def result(method, params):
    if method == "initialize":
        tasks = {"list": {}, "cancel": {}, "requests": {"tools": {"call": {}}}}
        capabilities = {"tools": {}, "tasks": tasks}
        return {"protocolVersion": params["protocolVersion"], "capabilities": capabilities, "serverInfo": {"name": "t", "version": "1"}}
    if method == "tools/call":
        begun = sorted(PLACE.glob("task-*"))
        place = PLACE / f"task-{len(begun) + 1}"
        place.write_text(json.dumps(params["arguments"]))
        task = {"taskId": place.name, "status": "working"}
        # Until 2025-11-25 the client asks for a task; since then the server says that the result is one.
        return {"task": {**task, "ttl": 60_000}} if "task" in params else {"resultType": "task", **task, "ttlMs": 60_000}
    place = PLACE / params.get("taskId", "-")
    done = {"content": [{"type": "text", "text": f"did {place.read_text()}"}]} if place.exists() else None
    if method == "tasks/result":
        return done
    if method == "tasks/get":
        if not (PLACE / "finished").exists():
            return {"taskId": place.name, "status": "working"}
        return {"taskId": place.name, "status": "completed", "result": done}
    return {}


for line in sys.stdin:
    request = json.loads(line)
    if request.get("id") is not None and "method" in request:
        answer = {"jsonrpc": "2.0", "id": request["id"], "result": result(request["method"], request.get("params") or {})}
        print(json.dumps(answer), flush=True)
