"""An agent whose tool is behind Outlast's recorder: it asks the model, calls the tool, and says what it was given."""

import json
import os
import subprocess
import sys

import wire

here = os.path.dirname(__file__)
line = ["outlast", "mcp", "--name", "tools", "--", sys.executable, "-S", os.path.join(here, "tools.py")]
recorder = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
headers = [("authorization", f"Bearer {os.environ['OPENAI_API_KEY']}")]


def ask(number, method, params):
    text = json.dumps({"jsonrpc": "2.0", "id": number, "method": method, "params": params})
    recorder.stdin.write(f"{text}\n".encode())
    recorder.stdin.flush()
    while row := recorder.stdout.readline():
        answer = json.loads(row)
        if answer.get("id") == number and "method" not in answer:
            return answer["result"]
    sys.exit("the recorder has ended")


ask(0, "initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "agent", "version": "1"}})
recorder.stdin.write(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')
for number in range(1, int(os.environ["CRASH_CALLS"]) + 1):
    wire.ack(f"call {number}", wire.ask(number, os.environ["OPENAI_BASE_URL"], headers))
    result = ask(number, "tools/call", {"name": "charge", "arguments": {"number": number}})
    wire.ack(f"once {number}", result["content"][0]["text"])
recorder.stdin.close()
recorder.wait()
wire.ack("end", "")
