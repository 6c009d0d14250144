"""MCP servers at `/mcp/NAME` of `outlast run` and `outlast serve`: a client reaches a recorder over streamable HTTP."""

import asyncio
import http.client
import json
import random
import subprocess
import sys
import threading
from pathlib import Path

import httpx
import pytest
from conftest import outlast_program
from mcp.client.streamable_http import streamable_http_client
from test_mcp import SERVER as CHILD
from test_mcp import is_unknown
from test_mcp_http import HttpBed, alone, text
from test_mcp_sdk import SERVER as SDK
from test_mcp_sdk import everything, sdk_server  # noqa: F401

INFO = {"name": "test", "version": "1"}


class Face:
    """`outlast serve` with servers of both kinds: `child` is a command, `away` is at a URL."""

    def __init__(self, home, settings):
        self.home, self.store = home, home / "runs.db"
        file = home / ".config/outlast/outlast.toml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(settings)

    def serve(self, *options):
        command = [outlast_program(), "--store", self.store, "serve", "--listen", "127.0.0.1:0", *options]
        self.process = subprocess.Popen([str(word) for word in command], stderr=subprocess.PIPE, text=True)
        for line in self.process.stderr:
            if line.find("serving on http://") >= 0:
                self.address = line.split("http://")[1].split(",")[0]
                threading.Thread(target=self.process.stderr.read, daemon=True).start()
                return self
        raise AssertionError("it does not serve")

    def end(self):
        self.process.terminate()
        assert self.process.wait(30) == 0

    def journal(self, run):
        command = [outlast_program(), "--store", self.store, "--json", "journal", run]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
        return [entry for entry in json.loads(done.stdout)["entries"] if entry["kind"] == "tool"]


class HttpClient:
    """A client of one server, in an attempt of one run."""

    def __init__(self, address, name, run="r", attempt=None, **headers):
        self.address, self.name, self.ids = address, name, iter(range(1, 1000))
        self.headers = {"Accept": "application/json, text/event-stream", "X-Outlast-Run": run, **headers}
        if attempt:
            self.headers["X-Outlast-Attempt"] = attempt
        self.headers = {name: value for name, value in self.headers.items() if value is not None}

    def sends(self, message, method="POST", **headers):
        connection = http.client.HTTPConnection(self.address, timeout=60)
        body = json.dumps({"jsonrpc": "2.0", **message}, indent=1) if message else None
        connection.request(method, f"/mcp/{self.name}", body, {**self.headers, **headers})
        return connection

    def post(self, message, method="POST", **headers):
        return self.sends(message, method, **headers).getresponse()

    def messages(self, response):
        body = response.read().decode()
        if response.headers["Content-Type"] == "application/json":
            return [json.loads(body)]
        return [json.loads(line[6:]) for line in body.splitlines() if line.startswith("data: ")]

    def begin(self, method, params=None, **headers):
        return self.post({"id": next(self.ids), "method": method, "params": params or {}}, **headers)

    def ask(self, method, params=None, **headers):
        response = self.begin(method, params, **headers)
        assert response.status == 200, response.read()
        return self.messages(response)[-1]

    def initialize(self):
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": INFO}
        response = self.begin("initialize", params)
        assert response.status == 200, response.read()
        self.headers["Mcp-Session-Id"] = response.headers["Mcp-Session-Id"]
        assert self.messages(response)[-1]["result"]["protocolVersion"] == "2025-11-25"
        assert self.post({"method": "notifications/initialized"}).status == 202
        return self

    def calls(self, tool, arguments):
        return self.ask("tools/call", {"name": tool, "arguments": arguments})["result"]


@pytest.fixture
def bed(home):
    bed = HttpBed(home)
    yield bed
    bed.end()


@pytest.fixture
def face(home, bed):
    child = [sys.executable, str(CHILD), str(home / "child.log")]
    face = Face(
        home,
        f"""
        [mcp.away]
        url = "http://127.0.0.1:{bed.port}/mcp"
        [mcp.child]
        command = {json.dumps(child)}
        """,
    ).serve()
    yield face
    face.end()


@pytest.mark.parametrize("name", ["child", "away"])
def test_a_call_is_recorded_and_given_again_in_the_next_attempt(face, name):
    first = HttpClient(face.address, name, attempt="a").initialize()
    answered = first.calls("append", {"text": "x"})
    assert answered["content"] and first.ask("tools/list")["result"]["tools"]
    assert first.post(None, "DELETE").status == 200
    assert first.begin("tools/list").status == 404, "the session is over"
    second = HttpClient(face.address, name, attempt="b").initialize()
    assert second.calls("append", {"text": "x"}) == answered
    assert second.calls("append", {"text": "x"})["content"], "the second equal call of this life is new"
    assert [entry["state"] for entry in face.journal("r")] == ["done", "done"]


def test_a_request_that_stands_alone_is_made_at_a_url_and_a_command_wants_a_session(face, bed):
    headers = ALONE
    client = HttpClient(face.address, "away", attempt="a")
    call = alone({"name": "append", "arguments": {"text": "x", "how": "sse"}})
    response = client.begin("tools/call", call, **headers)
    notice, answer = client.messages(response)
    assert notice["method"] == "notifications/message" and text(answer["result"]) == "x done"
    again = HttpClient(face.address, "away", attempt="b").ask("tools/call", call, **headers)
    assert text(again["result"]) == "x done" and len(bed.effects()) == 1
    assert HttpClient(face.address, "away").ask("tools/list", alone({}), **{**headers, "Mcp-Method": "tools/list"})["result"]
    call["arguments"]["region"] = "é"
    assert HttpClient(face.address, "away").ask("tools/call", call, **headers)["result"]
    assert bed.lines("append")[-1].endswith("=?base64?w6k=?="), "a tool's headers are known from any list of its tools"
    wrong = HttpClient(face.address, "away").begin("tools/call", call, **{**headers, "Mcp-Name": "look"})
    assert wrong.status == 400 and json.load(wrong)["error"]["code"] == -32020
    refused = HttpClient(face.address, "child").begin("tools/call", call, **headers)
    assert refused.status == 400
    assert json.load(refused)["error"]["data"]["supported"] == ["2025-11-25"]
    assert not bed.lines("initialize")


def test_a_client_without_events_gets_the_answer_alone(face):
    client = HttpClient(face.address, "away").initialize()
    response = client.begin("tools/call", {"name": "append", "arguments": {"text": "x", "how": "sse"}}, Accept="application/json")
    assert response.headers["Content-Type"] == "application/json" and text(json.load(response)["result"]) == "x done"


def test_what_the_server_says_unasked_reaches_who_listens(face, bed):
    client = HttpClient(face.address, "away").initialize()
    bed.wait_for("listened")
    listening = client.post(None, "GET")
    client.calls("append", {"text": "x", "how": "says"})
    while not (line := listening.readline().decode()).startswith("data: "):
        assert line
    assert "list_changed" in line


def test_who_may_not_is_refused(face):
    other = HttpClient(face.address, "away", run="other").initialize()
    session = other.headers["Mcp-Session-Id"]
    assert HttpClient(face.address, "away", run="r", **{"Mcp-Session-Id": session}).begin("tools/list").status == 404
    assert HttpClient(face.address, "child", run="other", **{"Mcp-Session-Id": session}).begin("tools/list").status == 404
    assert HttpClient(face.address, "away").begin("tools/list").status == 400
    assert HttpClient(face.address, "nowhere").begin("initialize").status == 404
    assert HttpClient(face.address, "away", run=None).begin("initialize").status == 403
    assert HttpClient(face.address, "away", Origin="http://elsewhere.example").begin("initialize").status == 403
    assert other.post(None, "PUT").status == 405
    assert other.begin("tools/list").status == 200


ALONE = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "tools/call", "Mcp-Name": "append"}


def test_a_call_whose_client_hung_up_is_not_made_again(face, bed):
    """The recorder waits for an answer that is on its way, so that the next life gets it."""
    gate = bed.pause()
    call = {"name": "append", "arguments": {"text": "x", "wait": gate}}
    first, second = (HttpClient(face.address, "away", attempt=attempt) for attempt in "ab")
    hung_up = first.initialize().begin("tools/call", call)
    bed.wait_for("append")
    hung_up.close()
    pending = second.initialize().begin("tools/call", call)
    Path(gate).touch()
    assert text(second.messages(pending)[-1]["result"]) == "x done"
    assert len(bed.effects()) == 1, face.journal("r")


def test_to_hang_up_is_to_cancel_a_request_that_stands_alone(face, bed):
    """Bug: the server went on with a call whose client had hung up. Consequence: what was cancelled was done. Cause: only
    the recorder lost its client, which waited for the answer."""
    call = alone({"name": "append", "arguments": {"text": "x", "wait": bed.pause()}})
    client = HttpClient(face.address, "away", attempt="a")
    hung_up = client.sends({"id": 1, "method": "tools/call", "params": call}, **ALONE)
    bed.wait_for("append")
    hung_up.close()
    bed.wait_for("hung up")
    assert is_unknown(client.ask("tools/call", call, **ALONE)["result"])
    assert len(bed.effects()) == 1, face.journal("r")


def test_a_request_without_its_version_is_refused_under_its_own_id(face):
    headers = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "server/discover"}
    refused = HttpClient(face.address, "away").post({"id": 101, "method": "server/discover", "params": {}}, **headers)
    told = json.load(refused)
    assert (refused.status, told["id"], told["error"]["code"]) == (400, 101, -32602)


def test_a_call_whose_server_was_killed_is_told(face, bed):
    gate = bed.pause()
    first = HttpClient(face.address, "away", attempt="a").initialize()
    call = {"name": "append", "arguments": {"text": "x", "wait": gate}}
    first.begin("tools/call", call)
    bed.wait_for("append")
    face.process.kill()
    face.process.wait()
    face.serve()
    second = HttpClient(face.address, "away", attempt="b").initialize()
    assert is_unknown(second.calls("append", call["arguments"]))
    Path(gate).touch()
    assert len(bed.effects()) == 1


def test_a_stream_of_notices_ends_with_outlast(home, sdk_server):
    face = Face(home, f'[mcp.away]\nurl = "{sdk_server}"').serve()
    params = alone({"notifications": {"toolsListChanged": True}})
    params["_meta"]["io.modelcontextprotocol/clientCapabilities"] = {}
    headers = {"MCP-Protocol-Version": "2026-07-28", "Mcp-Method": "subscriptions/listen"}
    listening = HttpClient(face.address, "away").begin("subscriptions/listen", params, **headers)
    while b"acknowledged" not in (line := listening.readline()):
        assert line
    face.end()
    assert b'"error"' in listening.read()


AGENT = """
import json, os, sys, urllib.request

def ask(method, params, session=None):
    headers = {"Authorization": "Bearer " + os.environ["OUTLAST_TOKEN"], "Accept": "text/event-stream"}
    if session:
        headers["Mcp-Session-Id"] = session
    message = {"jsonrpc": "2.0", "id": method, "method": method, "params": params}
    request = urllib.request.Request(os.environ["OUTLAST_URL"] + "/mcp/child", json.dumps(message).encode(), headers)
    with urllib.request.urlopen(request) as response:
        line = next(line for line in response.read().decode().splitlines() if line.startswith("data: "))
        return response.headers["Mcp-Session-Id"], json.loads(line[6:])["result"]

session, _ = ask("initialize", {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "a", "version": "1"}})
for text in "ab":
    _, result = ask("tools/call", {"name": "append", "arguments": {"text": text}}, session)
    print(json.dumps(result), flush=True)
    if os.environ["OUTLAST_ATTEMPT"] == "1":
        os.kill(os.getpid(), 9)
"""


def test_an_agent_of_a_run_gets_its_answers_again_after_a_kill(home, tmp_path):
    log = home / "child.log"
    face = Face(home, f"[mcp.child]\ncommand = {json.dumps([sys.executable, str(CHILD), str(log)])}")
    (home / "agent.py").write_text(AGENT)
    command = [outlast_program(), "--store", face.store, "run", "--run", "r", "--", sys.executable, home / "agent.py"]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120, cwd=home)
    assert done.returncode == 0, done.stderr
    first, second, third = done.stdout.splitlines()
    assert first == second != third
    effects = [line.split()[1] for line in log.read_text().splitlines() if line.startswith("append")]
    assert effects == ["a", "b"]
    assert "OPENAI_API_KEY" not in log.read_text()


# Bug: an MCP server that the run's proxy had started was ended by SIGTERM whenever an attempt ended. Consequence: what it held
# in memory was lost, and a call of another client of it failed. Cause: the supervisor took it for a process that the agent
# had left.
def test_a_server_at_the_proxy_is_not_ended_with_an_attempt(home):
    log = home / "child.log"
    code = f"import runpy, signal, sys; signal.signal(15, lambda *_: open({str(home / 'ended')!r}, 'w') and sys.exit(1)); "
    code += f"sys.argv = ['server', {str(log)!r}]; runpy.run_path({str(CHILD)!r}, run_name='__main__')"
    face = Face(home, f"[mcp.child]\ncommand = {json.dumps([sys.executable, '-c', code])}")
    (home / "agent.py").write_text(AGENT)
    command = [outlast_program(), "--store", face.store, "run", "--run", "r", "--", sys.executable, home / "agent.py"]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=120, cwd=home)
    assert done.returncode == 0, done.stderr
    assert log.exists() and not (home / "ended").exists()


def test_a_directorys_settings_name_no_server(home, tmp_path):
    face = Face(home, "")
    directory = home / "checkout"
    directory.mkdir()
    (directory / "outlast.toml").write_text('[mcp.evil]\ncommand = ["touch", "evil"]\n')
    command = [outlast_program(), "--store", face.store, "run", "--", "true"]
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=60, cwd=directory)
    assert done.returncode != 0 and "`mcp` is not taken from a directory's own settings" in done.stderr, done.stderr


@pytest.mark.parametrize("mode", ["legacy", "auto"])
@pytest.mark.parametrize("name", ["child", "away"])
def test_the_sdk_sees_the_same_at_the_face(home, name, mode, sdk_server):
    face = Face(
        home,
        f"""
        [mcp.child]
        command = {json.dumps([sys.executable, str(SDK)])}
        [mcp.away]
        url = "{sdk_server}"
        """,
    ).serve()
    try:
        # A command is reached by a session only.
        direct = everything(sdk_server, mode) if name == "away" else everything([sys.executable, SDK], "legacy")
        direct = asyncio.run(direct)
        told = asyncio.run(at(face, name, "a", mode))
        assert told == direct
        assert asyncio.run(at(face, name, "b", mode)) == (direct[0], []), "recorded answers have no progress"
    finally:
        face.end()


async def at(face, name, attempt, mode):
    headers = {"X-Outlast-Run": "r", "X-Outlast-Attempt": attempt}
    async with httpx.AsyncClient(headers=headers, timeout=60) as client:
        return await everything(streamable_http_client(f"http://{face.address}/mcp/{name}", http_client=client), mode)


@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_killed_a_call_is_done_once_or_told(face, bed, seed):
    """`outlast serve` or the server is killed at random, or the client hangs up; each life makes the same calls."""
    chance, told, life, left = random.Random(seed), set(), 0, 5
    wanted = [f"t{n}" for n in range(10)]
    while True:
        life += 1
        client = HttpClient(face.address, "away", attempt=f"life-{life}").initialize()
        for at, name in enumerate(wanted):
            arguments = {"text": name, "how": ["json", "sse", "resume"][at % 3]}
            call = {"name": "append", "arguments": arguments, "_meta": {"claudecode/toolUseId": f"toolu_{at}"}}
            response = client.begin("tools/call", call)
            dies = chance.choice(["serve", "server", "client"]) if left and chance.random() < 0.3 else None
            left -= dies is not None
            if dies == "serve":
                face.process.kill()
                face.process.wait()
                face.serve()
            if dies in ("serve", "client"):
                response.close()
                break
            if dies == "server":
                bed.end()
                bed.begin()
            if is_unknown(client.messages(response)[-1]["result"]):
                told.add(name)
        else:
            break
    done = [name for _, name in bed.effects()]
    assert len(done) == len(set(done)), f"seed {seed}: made twice: {done}"
    assert set(wanted) - set(done) <= told, f"seed {seed}: lost and not told"
