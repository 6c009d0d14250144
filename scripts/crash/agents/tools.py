"""An MCP server of one tool, which does something in the world and gives the receipt."""

import json
import sys

import wire

for row in sys.stdin:
    asked = json.loads(row)
    if "id" not in asked:
        continue
    match asked["method"]:
        case "initialize":
            version = asked["params"]["protocolVersion"]
            result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": {"name": "tools", "version": "1"}}
        case "tools/list":
            result = {"tools": [{"name": "charge", "inputSchema": {"type": "object"}}]}
        case "tools/call":
            receipt = wire.effect(f"charge {asked['params']['arguments']['number']}")
            result = {"content": [{"type": "text", "text": receipt}]}
        case _:
            result = {}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
