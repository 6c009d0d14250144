"""`outlast mcp --url`: a recorder before a server over streamable HTTP, whose streams break and which forgets its sessions."""

import os
import random
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from conftest import outlast_program
from test_mcp import Bed, Client, is_unknown

SERVER = Path(__file__).with_name("mcp_http_server.py")
VERSION = "io.modelcontextprotocol/protocolVersion"


class HttpBed(Bed):
    """A server at a URL, and recorders before it."""

    def __init__(self, home, **variables):
        super().__init__(home)
        self.port, self.variables = 0, variables
        self.begin()

    def begin(self):
        told = self.home / "port"
        told.unlink(missing_ok=True)
        self.process = subprocess.Popen(
            [sys.executable, SERVER, self.log, told, str(self.port)], env={**os.environ, **self.variables}
        )
        pause = threading.Event()
        while not (told.exists() and told.read_text()):
            assert self.process.poll() is None
            pause.wait(0.01)
        self.port = int(told.read_text())

    def end(self):
        self.process.kill()
        self.process.wait()

    def command(self, *options):
        outlast = [outlast_program(), "--store", self.store, "mcp", "--run", self.run_id, "--name", "log"]
        return [*outlast, "--url", f"http://127.0.0.1:{self.port}/mcp", *options]

    def lines(self, begin):
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line for line in lines if line.startswith(begin)]

    def effects(self):
        return [tuple(line.split()[:2]) for line in self.lines(("append", "look"))]

    def wait_for(self, begin, count=1):
        pause = threading.Event()
        while len(self.lines(begin)) < count:
            pause.wait(0.01)


@pytest.fixture
def bed(home):
    bed = HttpBed(home)
    yield bed
    bed.end()


def text(result):
    return result["content"][0]["text"]


@pytest.mark.parametrize("how", ["json", "sse", "resume"])
def test_an_answer_is_recorded_and_replayed_however_it_comes(bed, how):
    first = bed.recorder()
    answered = first.calls("append", {"text": "a", "how": how})
    assert text(answered) == "a done" and answered["newField"] == {"n": 1.50}
    first.close()
    assert bed.lines("deleted"), "the session was ended"
    second = bed.recorder()
    assert second.calls("append", {"text": "a", "how": how}) == answered
    second.close()
    assert bed.effects() == [("append", "a")]


@pytest.mark.parametrize("how", ["break", "502", "die"])
def test_a_call_whose_answer_is_lost_is_told_and_not_repeated(bed, how):
    client = bed.recorder()
    told = client.calls("append", {"text": "a", "how": how})
    assert is_unknown(told), told
    if how == "die":
        bed.process.wait()
        bed.begin()
    assert text(client.calls("append", {"text": "b"})) == "b done"
    client.close()
    assert bed.effects() == [("append", "a"), ("append", "b")]
    assert len(bed.lines("initialize")) == (2 if how == "die" else 1)
    assert [entry["state"] for entry in bed.journal()] == ["unknown", "done"]


def test_a_read_whose_stream_broke_off_is_made_again_under_the_same_key(bed):
    client = bed.recorder("--reads", "look")
    told = client.calls("look", {"text": "a", "how": "break"})
    assert is_unknown(told), "a server that never answers is given up"
    client.close()
    calls = bed.lines("look")
    assert len(calls) == 5 and len({call.split()[2] for call in calls}) == 1


@pytest.mark.parametrize("how", ["401", "429", "302"])
def test_a_call_that_the_server_refused_was_not_made(bed, how):
    client = bed.recorder()
    told = client.calls("append", {"text": "a", "how": how})
    assert told["isError"] and told["_meta"]["outlast/outcome"] == "not sent" and how in text(told), told
    client.close()
    assert [entry["state"] for entry in bed.journal()] == ["void"]


def test_a_call_to_a_server_that_is_away_was_not_made(bed):
    client = bed.recorder()
    bed.end()
    told = client.calls("append", {"text": "a"})
    assert told["_meta"]["outlast/outcome"] == "not sent" and "cannot be reached" in text(told)
    assert "did not answer" in client.ask("tools/list")["error"]["message"]
    bed.begin()
    assert text(client.calls("append", {"text": "a"})) == "a done"
    client.close()


def test_a_forgotten_session_is_opened_again_and_the_call_made_once(bed):
    client = bed.recorder()
    bed.wait_for("listened")
    assert text(client.calls("append", {"text": "a", "how": "forget"})) == "a done"
    bed.wait_for("listened", 2)
    client.close()
    assert bed.effects() == [("append", "a")]
    assert len(bed.lines("initialize")) == len(bed.lines("told notifications/initialized")) == 2


def test_what_the_server_says_unasked_is_heard(bed):
    client = bed.recorder()
    bed.wait_for("listened")
    id = client.call("append", {"text": "a", "how": "says"})
    heard = {client.line() for _ in range(2)}
    assert any("list_changed" in line for line in heard) and any(f'"id": {id}' in line for line in heard)
    client.close()


def test_a_call_whose_recorder_is_killed_is_told(bed):
    first = bed.recorder()
    first.call("append", {"text": "a", "wait": bed.pause()})
    bed.wait_for("append")
    first.kill()
    Path(bed.pause()).touch()
    second = bed.recorder()
    assert is_unknown(second.calls("append", {"text": "a", "wait": bed.pause()}))
    second.close()
    assert bed.effects() == [("append", "a")]


def alone(params):
    return {**params, "_meta": {VERSION: "2026-07-28"}}


def test_requests_that_stand_alone_have_no_session_and_are_repeated_in_headers(bed):
    client = Client(bed.command())
    assert len(client.ask("tools/list", alone({}))["result"]["tools"]) == 2
    call = alone({"name": "append", "arguments": {"text": "a", "region": "é", "how": "sse"}})
    id = client.request("tools/call", call)
    assert "notifications/message" in client.line() and text(client.answer(id)["result"]) == "a done"
    client.close()
    assert bed.lines("append")[0].endswith("=?base64?w6k=?=")
    assert not bed.lines(("initialize", "deleted", "listened"))


def test_to_cancel_a_request_that_stands_alone_is_to_hang_up(bed):
    client = Client(bed.command())
    call = alone({"name": "append", "arguments": {"text": "a", "wait": bed.pause()}})
    id = client.request("tools/call", call)
    bed.wait_for("append")
    client.send({"method": "notifications/cancelled", "params": {"requestId": id}})
    client.close()
    assert not bed.lines("told")
    assert [entry["state"] for entry in bed.journal()] == ["unknown"]


def test_a_login_comes_from_a_variable_and_reaches_no_journal(home):
    bed = HttpBed(home, WANTED_LOGIN="Bearer sk-123456789")
    wrong, right = {"LOGIN": "Bearer sk-wrong-123"}, {"LOGIN": "Bearer sk-123456789"}
    try:
        for login, refused in [(wrong, True), (right, False)]:
            command = bed.command("--header-env", "Authorization=LOGIN")
            client = Client(command, env={**os.environ, **login})
            answer = client.initialize()
            assert ("error" in answer) is refused, answer
            said = answer["error"]["message"] if refused else ""
            assert not refused or ("401" in said and "wrong" not in said and "--header-env Authorization=" in said), said
            client.close()
        for options, said in [
            (["--header", "Authorization: Bearer sk-1"], "--header-env Authorization=VARIABLE"),
            (["--header-env", "Authorization=NO_SUCH"], "NO_SUCH is not set"),
            (["--header", "Mcp-Session-Id: 1"], "not the name of a header that may be set"),
        ]:
            done = subprocess.run(bed.command(*options), capture_output=True, text=True, timeout=60)
            assert done.returncode == 2 and said in done.stderr, done.stderr
        command = [outlast_program(), "mcp", "--run", "r", "--name", "x", "--header", "A: b", "--", "true"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        assert done.returncode == 2 and "this one is a command" in done.stderr, done.stderr
    finally:
        bed.end()


@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_killed_a_call_is_done_once_or_told(bed, seed):
    """The recorder or the server is killed at random; the client makes the same calls in each life."""
    chance = random.Random(seed)
    wanted, told = [f"t{n}" for n in range(12)], set()
    left = 4
    while True:
        client = bed.recorder()
        finished = True
        for at, name in enumerate(wanted):
            id = client.call("append", {"text": name, "how": ["json", "sse", "resume"][at % 3]}, f"toolu_{at}")
            if left and chance.random() < 0.2:
                left -= 1
                if chance.random() < 0.5:
                    client.kill()
                    finished = False
                    break
                bed.end()
                bed.begin()
            result = client.answer(id)["result"]
            if is_unknown(result):
                told.add(name)
        if finished:
            client.close()
            break
    done = [name for _, name in bed.effects()]
    assert len(done) == len(set(done)), f"seed {seed}: made twice: {done}"
    assert set(wanted) - set(done) <= told, f"seed {seed}: lost and not told"
