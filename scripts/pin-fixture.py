"""Writes the store that crates/outlast/tests/it/pins reads: `fixture.db`, as the build at hand writes it.

    OUTLAST_BIN=target/debug/outlast unshare --uts .venv/bin/python scripts/pin-fixture.py OUT.db

Run it for a new format only, never to make a test pass: the store stands for those that people have. It holds
at least one of everything that is stored: runs of all ways to begin and to end, answers of all dialects, steps,
items, state with history, approvals, policies, named budgets, snapshots, forks, checkpoints, a run that a dead
supervisor left behind. Everything runs in /tmp, so that the runs in it can be resumed on any machine.
"""

import http.client
import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
import urllib.parse
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOME = Path("/tmp/outlast-pins")
STORE = HOME / "runs.db"
OUTLAST = str(Path(os.environ.get("OUTLAST_BIN", ROOT / "target/debug/outlast")).resolve())
CLEAN = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": str(HOME), "OUTLAST_STORE": str(STORE), "USER": "ann"}

CHAT = "/v1/chat/completions"
SAID = [{"role": "user", "content": "why tea?\nmock: reply because it is warm"}]
OPENAI = {"authorization": "Bearer sk-pin"}
ANTHROPIC = {"x-api-key": "sk-pin", "anthropic-version": "2023-06-01"}
GEMINI = {"x-goog-api-key": "pin"}
TOLD = {"contents": [{"role": "user", "parts": [{"text": SAID[0]["content"]}]}]}
#: One call of each dialect, streamed and not: the test asks the same again.
CALLS = [
    (CHAT, OPENAI, {"model": "gpt-4o-mini", "max_tokens": 50, "messages": SAID}),
    (CHAT, OPENAI, {"model": "gpt-4o-mini", "max_tokens": 50, "messages": SAID, "stream": True}),
    ("/v1/responses", OPENAI, {"model": "gpt-4o-mini", "max_output_tokens": 50, "input": SAID[0]["content"]}),
    ("/v1/responses", OPENAI, {"model": "gpt-4o-mini", "max_output_tokens": 50, "input": SAID[0]["content"], "stream": True}),
    ("/v1/embeddings", OPENAI, {"model": "text-embedding-3-small", "input": "tea"}),
    ("/v1/messages", ANTHROPIC, {"model": "claude-haiku-4-5", "max_tokens": 50, "messages": SAID}),
    ("/v1/messages", ANTHROPIC, {"model": "claude-haiku-4-5", "max_tokens": 50, "messages": SAID, "stream": True}),
    ("/v1beta/models/gemini-2.5-flash:generateContent", GEMINI, TOLD),
    ("/v1beta/models/gemini-2.5-flash:streamGenerateContent?alt=sse", GEMINI, TOLD),
]  # fmt: skip

AGENT = """
import http.client, json, os, sys, urllib.parse
base = urllib.parse.urlsplit(os.environ["OPENAI_BASE_URL"])
def ask(text):
    body = {"model": "gpt-4o-mini", "max_tokens": 20, "messages": [{"role": "user", "content": text}]}
    to = http.client.HTTPConnection(base.hostname, base.port)
    key = {"authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "content-type": "application/json"}
    to.request("POST", base.path + "/chat/completions", json.dumps(body), key)
    print(to.getresponse().status, flush=True)
for text in sys.argv[1:]:
    ask(text)
"""

EMBEDDED = """
import dataclasses, outlast
from outlast import Budget, Retry
tries = iter([OSError("no route"), None])
def shaky():
    error = next(tries)
    if error: raise error
    return "at last"
def inner(n):
    return n + 1
rt = outlast.connect()
with rt.run("research-42", name="research", budget=Budget(usd=5, loops=100), tags={"team": "search"}) as run:
    plan = run.step("plan", lambda topic: {"topic": topic, "parts": ["past", "present"]}, "tea")
    for i, part in enumerate(plan["parts"]):
        run.loop(i)
        run.step("write", lambda p: "About the " + p, part)
    run.step("outer", lambda: run.step("inner", inner, 1))
    run.step("shaky", shaky, retries=Retry(2, base=0.001, cap=0.002))
    run.step("large", lambda: "x" * 3000)
    run.step("keyed", inner, 3, key="the-key")
    run.checkpoint("cursor", {"i": 1})
    run.context.set(task_id="1411")
    run.state.put("notes", {"seen": plan["parts"]})
    run.state.put("notes", {"seen": []})
    with outlast.reserve(usd=0.4, label="speech") as held:
        held.settle(usd=0.25)
try:
    with rt.run("order-7", name="order") as run:
        run.step("fine", inner, 1)
        def charge(order):
            raise OSError("cut off")
        run.step("charge", charge, 7, at_most_once=True)
except OSError:
    pass
def enrich(item):
    if item == "c": raise ValueError("not this one")
    if item == "d": raise outlast.Skip("no need")
    return {"length": len(item)}
out = outlast.map(["a", "b", "c", "d"], enrich, job="enrich-docs", key=str, store=rt, concurrency=1, retries=Retry(0))
print([(r.key, r.ok) for r in out])
rt.close()
"""


def outlast(*words, ok=(0,), env=None, **more):
    done = subprocess.run([OUTLAST, *words], cwd="/tmp", env={**CLEAN, **(env or {})}, capture_output=True, text=True, **more)
    print("$ outlast", *words[:8], "→", done.returncode, done.stderr.strip().replace("\n", " | ")[:200])
    assert done.returncode in ok, done.stdout + done.stderr
    return done.stdout


def until(found):
    over = time.monotonic() + 60
    while not (value := found()):
        assert time.monotonic() < over, "in vain"
        time.sleep(0.01)
    return value


class Server:
    def __init__(self, url):
        self.at = urllib.parse.urlsplit(url)

    def ask(self, method, path, body=None, headers=None, want=200):
        to = http.client.HTTPConnection(self.at.hostname, self.at.port, timeout=60)
        sent = {"content-type": "application/json", **(headers or {})}
        to.request(method, path, None if body is None else json.dumps(body), sent)
        answer = to.getresponse()
        text = answer.read().decode()
        assert answer.status == want, (method, path, answer.status, text)
        return json.loads(text) if text.startswith(("{", "[")) else text


def started(*words, wait, env):
    log = open(HOME / "server.log", "w+")
    process = subprocess.Popen([OUTLAST, *words], cwd="/tmp", env={**CLEAN, **env}, stdout=log, stderr=log)
    until(lambda: wait in Path(log.name).read_text())
    return process, Path(log.name).read_text()


def main():
    if os.geteuid() == 0:
        socket.sethostname("pins")
    shutil.rmtree(HOME, ignore_errors=True)
    HOME.mkdir()
    agent = HOME / "agent.py"
    agent.write_text(AGENT)
    mock, told = started("mock", "--listen", "127.0.0.1:0", wait="http://", env={})
    provider = told.split()[0]
    upstreams = {"OPENAI_BASE_URL": provider + "/v1", "ANTHROPIC_BASE_URL": provider, "GOOGLE_GEMINI_BASE_URL": provider}
    keys = {**upstreams, "OPENAI_API_KEY": "sk-pin"}
    try:
        write(agent, upstreams, keys)
    finally:
        mock.kill()
        mock.wait()
    packed(Path(sys.argv[1]))


def write(agent, upstreams, keys):
    script = ["--", sys.executable, "-SE", str(agent)]
    outlast("budgets", "set", "team-search", "--usd", "50", "--per", "day", "--tag", "team=search")
    outlast("budgets", "set", "everything", "--tokens", "9000000", "--per", "none")
    # By ways to end.
    outlast("run", "--run", "desk-1", "--name", "desk", "--tag", "team=search", "--usd", "5", "--kill-at", "call:2",
            "--env", "USER", *script, "one", "two", "three", env=keys)  # fmt: skip
    outlast("run", "--run", "short-1", "--name", "short", "--calls", "1", *script, "one", "two", env=keys, ok=(75,))
    outlast("run", "--run", "broken-1", "--name", "broken", "--", "sh", "-c", "echo broken >&2; exit 65", env=keys, ok=(76,))
    outlast("run", "--run", "absent-1", "--", "no-such-command", env=keys, ok=(127,))
    outlast("run", "--run", "circle-1", "--name", "circle", "--loop", "--max-iterations", "2", "--", "sh", "-c", "echo turn", env=keys)
    outlast("run", "--run", "gone-1", "-d", "--", "sh", "-c", "sleep 60", env=keys)
    outlast("cancel", "gone-1", "--reason", "wrong input")
    # Stopped, to be resumed: what is in it depends on nothing but a shell.
    outlast("run", "--run", "stopped-1", "--name", "stopped", "-d", "--", "sh", "-c",
            'test "$OUTLAST_ATTEMPT" != 1 || { touch up; exec sleep 60; }; echo "again: $OUTLAST_ATTEMPT"',
            env={k: v for k, v in keys.items() if "KEY" not in k}, input="the standard input\n")  # fmt: skip
    until(lambda: "running" in outlast("show", "stopped-1", "--json"))
    outlast("stop", "stopped-1")
    Path("/tmp/up").unlink(missing_ok=True)
    # What its dead supervisor left: a call in doubt.
    torn = subprocess.Popen(
        [OUTLAST, "run", "--run", "torn-1", *script, "one\nmock: latency 60s"],
        cwd="/tmp", env={**CLEAN, **keys}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    until(lambda: json.loads(outlast("journal", "torn-1", "--json", ok=(0, 1, 69)) or "{}").get("entries"))
    time.sleep(0.5)
    torn.kill()
    torn.wait()
    by_http(upstreams)
    subprocess.run([sys.executable, "-c", EMBEDDED], cwd="/tmp", check=True,
                   env={**CLEAN, "PYTHONPATH": str(ROOT / "crates/python/python")})  # fmt: skip
    outlast("snapshot", "research-42", "before-the-draft")
    outlast("fork", "research-42", "--from-snapshot", "before-the-draft", "--id", "research-43")
    outlast("budget", "broken-1", "--add-usd", "1")
    outlast("state", "keep", "3", "--namespace", "scratch")


def by_http(upstreams):
    served, told = started("serve", "--listen", "127.0.0.1:0", "--default-wall", "none", "--default-usd", "5",
                        wait="serving on", env=upstreams)  # fmt: skip
    server = Server("http://" + told.split("serving on ")[1].split(",")[0].split()[0].removeprefix("http://"))
    try:
        asked(server)
    finally:
        served.send_signal(signal.SIGTERM)
        served.wait()


def asked(server):
    for path, headers, body in CALLS:
        server.ask("POST", path, body, {**headers, "x-outlast-run": "river", "x-outlast-attempt": "first"})
    refused = {"model": "gpt-4o-mini", "max_tokens": 5, "messages": [{"role": "user", "content": "x\nmock: status 400"}]}
    server.ask("POST", CHAT, refused, {**OPENAI, "x-outlast-run": "river", "x-outlast-attempt": "first"}, want=400)
    # The state.
    state = "/v1/state/default/agent-1/"
    server.ask("PUT", state + "plan", {"n": 1})
    server.ask("PUT", state + "plan?expected_version=1", {"n": 2})
    server.ask("PUT", state + "gone", "soon")
    server.ask("DELETE", state + "gone")
    change = [{"key": "step:0", "value": {"status": "done"}}, {"key": "step:1", "value": {"status": "pending"}}]
    changes = [{"namespace": "default", "agent": "agent-1", **c} for c in change]
    server.ask("POST", "/v1/state/transaction", {"id": "tx-1", "changes": changes})
    for n in range(5):
        server.ask("PUT", "/v1/state/scratch/agent-1/n", n)
    # Policies and approvals.
    server.ask("POST", "/v1/policies", {"name": "careful", "budget": {"dollars": 2}, "tools": ["search", "deploy"],
                                        "needsApproval": [{"tool": "deploy"}]}, want=201)  # fmt: skip
    for tool in ("deploy", "drop", "pay"):
        server.ask("POST", "/v1/approvals", {"tool": tool, "arguments": {"to": "prod"}, "expiresInSeconds": 30 * 365 * 86400}, {"x-outlast-run": "river"}, want=201)
    ids = {a["tool"]: a["id"] for a in json.loads(outlast("approvals", "--json"))["approvals"]}
    outlast("approve", ids["deploy"], "--by", "ann", "--reason", "tests are green")
    outlast("approve", ids["drop"], "--deny", "--by", "ann", "--reason", "not on a friday")
    # RiskKernel's.
    run = server.ask("POST", "/v1/runs", {"name": "kernel", "budget": {"dollars": 3, "loops": 9}, "metadata": {"team": "ops"}}, want=201)
    server.ask("POST", f"/v1/runs/{run['id']}/steps", {})
    server.ask("POST", f"/v1/runs/{run['id']}/checkpoints", {"name": "cp", "payload": {"at": 3}}, want=201)
    server.ask("PUT", "/v1/memory/facts", {"namespace": "desk", "key": "colour", "value": "green"}, want=201)


def packed(to):
    """One small file: no log beside it, no free pages."""
    db = sqlite3.connect(STORE)
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.execute("VACUUM")
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    shutil.copyfile(STORE, to)
    print(to, to.stat().st_size, "bytes")


if __name__ == "__main__":
    main()
