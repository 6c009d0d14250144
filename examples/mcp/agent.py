"""An agent without a model: it sends three letters through `outlast mcp`, and its first life is killed in the second.

    outlast run -- python examples/mcp/agent.py
"""

import json
import os
import subprocess
import sys
import threading
from pathlib import Path

SERVER = Path(__file__).with_name("server.py")
recorder = subprocess.Popen(
    ["outlast", "mcp", "--name", "letters", "--trust", "--", sys.executable, SERVER],
    stdin=subprocess.PIPE,
    stdout=subprocess.PIPE,
    text=True,
)


def ask(id, method, params):
    recorder.stdin.write(json.dumps({"jsonrpc": "2.0", "id": id, "method": method, "params": params}) + "\n")
    recorder.stdin.flush()
    return json.loads(recorder.stdout.readline())["result"]


def call(id, name, **arguments):
    result = ask(id, "tools/call", {"name": name, "arguments": arguments})
    print(f"life {os.environ['OUTLAST_ATTEMPT']}: {name}: {result['content'][0]['text'].strip()}", flush=True)


def die_in_the_second_letter():
    while "bob" not in (Path("outbox.txt").read_text() if Path("outbox.txt").exists() else ""):
        threading.Event().wait(0.01)
    os.kill(os.getpid(), 9)


if os.environ["OUTLAST_ATTEMPT"] == "1":
    threading.Thread(target=die_in_the_second_letter, daemon=True).start()
ask(0, "tools/list", {})
call(1, "send", to="ann")
call(2, "send", to="bob", takes_s=30)
call(3, "list")
call(4, "send", to="cy")
