"""`outlast mcp`: a recorder between an MCP client and a server, killed at each boundary."""

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest
from conftest import outlast_program

SERVER = Path(__file__).with_name("mcp_server.py")


class Client:
    """A client of the protocol that kills, and is killed."""

    def __init__(self, command, **options):
        self.ids = itertools.count(1)
        self.process = subprocess.Popen(
            [str(word) for word in command], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options
        )

    def send(self, message):
        self.process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
        self.process.stdin.flush()

    def request(self, method, params=None, id=None):
        id = next(self.ids) if id is None else id
        self.send({"id": id, "method": method, "params": params or {}})
        return id

    def line(self):
        line = self.process.stdout.readline()
        assert line, f"the recorder ended: {self.process.poll()}"
        return line

    def answer(self, id):
        while True:
            message = json.loads(self.line())
            if message.get("id") == id and "method" not in message:
                return message

    def ask(self, method, params=None):
        return self.answer(self.request(method, params))

    def call(self, tool, arguments, call_id=None, progress=None):
        meta = {}
        if call_id:
            meta["claudecode/toolUseId"] = call_id
        if progress:
            meta["progressToken"] = progress
        params = {"name": tool, "arguments": arguments}
        if meta:
            params["_meta"] = meta
        return self.request("tools/call", params)

    def calls(self, tool, arguments, call_id=None):
        return self.answer(self.call(tool, arguments, call_id))["result"]

    def initialize(self):
        info = {"name": "test", "version": "1"}
        params = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": info}
        answer = self.ask("initialize", params)
        self.send({"method": "notifications/initialized"})
        return answer

    def kill(self):
        self.process.kill()
        self.process.wait()

    def server(self):
        """The pid of the server that the recorder has started; none between two of them."""
        children = [file.read_text().split() for file in Path(f"/proc/{self.process.pid}/task").glob("*/children")]
        return next((int(pid) for pids in children for pid in pids), None)

    def kill_one(self, victim):
        pid = self.process.pid if victim == "recorder" else self.server()
        if pid:
            os.kill(pid, signal.SIGKILL)

    def close(self):
        self.process.stdin.close()
        assert self.process.wait(30) == 0


@pytest.fixture
def bed(home):
    return Bed(home)


class Bed:
    def __init__(self, home):
        self.home, self.log, self.store = home, home / "effects.log", home / "runs.db"
        self.run_id = "task-1"

    def server(self):
        return [sys.executable, SERVER, self.log]

    def command(self, *options):
        outlast = [outlast_program(), "--store", self.store, "mcp", "--run", self.run_id, "--name", "log"]
        return [*outlast, *options, "--", *self.server()]

    def recorder(self, *options):
        client = Client(self.command(*options))
        client.initialize()
        return client

    def effects(self):
        """Effects of the tools: (tool, text)."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [tuple(line.split()[:2]) for line in lines if not line.startswith("initialize")]

    def keys(self):
        return [line.split()[2] for line in self.log.read_text().splitlines() if not line.startswith("initialize")]

    def outlast(self, *words, check=True):
        command = [outlast_program(), "--store", self.store, *words]
        done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=60)
        assert not check or done.returncode == 0, done.stderr
        return done

    def journal(self):
        entries = json.loads(self.outlast("--json", "journal", self.run_id).stdout)["entries"]
        return [entry for entry in entries if entry["kind"] == "tool"]

    def pause(self, name="gate"):
        return str(self.home / name)

    def wait_for_effect(self, count):
        done = threading.Event()
        while len(self.effects()) < count:
            done.wait(0.01)


def is_unknown(result):
    return result.get("isError") is True and result["_meta"]["outlast/outcome"] == "unknown"


def test_a_call_is_recorded_and_replayed_byte_for_byte_in_the_next_life(bed):
    first = bed.recorder()
    id = first.call("append", {"text": "a"})
    line = first.line()
    first.close()
    second = bed.recorder()
    second.ids = itertools.count(id)
    second.call("append", {"text": "a"})
    assert second.line() == line.replace(f'"id": {id}', f'"id":{id}').replace(
        '{"jsonrpc": "2.0", ', '{"jsonrpc":"2.0",'
    ).replace(', "result": ', ',"result":')
    assert bed.effects() == [("append", "a")]
    second.calls("append", {"text": "a"})
    assert bed.effects() == [("append", "a")] * 2, "the second equal call of this life is new"
    second.close()
    assert [entry["state"] for entry in bed.journal()] == ["done", "done"]


def test_a_fork_is_given_the_answers_of_its_origin_and_makes_no_call_again(bed):
    client = bed.recorder()
    first = client.calls("append", {"text": "a"})
    client.close()
    bed.outlast("fork", bed.run_id, "--at", bed.journal()[-1]["seq"], "--id", "fork")
    bed.run_id = "fork"
    client = bed.recorder()
    assert client.calls("append", {"text": "a"}) == first
    client.calls("append", {"text": "b"})
    client.close()
    assert [text for _, text in bed.effects()] == ["a", "b"]


def test_secrets_do_not_reach_the_journal_and_the_answer_is_given_again_byte_for_byte(bed, monkeypatch):
    secret, named = 'tok-"é"-12345678', "correct horse"
    monkeypatch.setenv("MAIL_TOKEN", secret)
    monkeypatch.setenv("PHRASE", named)
    asked = [("append", {"text": secret, "tell": "MAIL_TOKEN"}), ("append", {"text": "x", "tell": "PHRASE"})]
    lives = []
    for _ in range(2):
        recorder = bed.recorder("--hide-env", "PHRASE")
        lines = []
        for tool, arguments in asked:
            recorder.call(tool, arguments)
            lines.append(recorder.line().split('"result":')[1].strip())
        lives.append(lines)
        recorder.close()
    assert lives[0] == lives[1]
    told = [json.loads(line[:-1])["content"][0]["text"] for line in lives[0]]
    assert told == [secret, named]
    assert bed.effects() == [("append", secret), ("append", "x")]
    shown = "".join(bed.outlast(*words, bed.run_id, n).stdout for words in [("journal",), ("--json", "journal")] for n in (1, 2))
    assert "[MAIL_TOKEN]" in shown and "[PHRASE]" in shown
    kept = b"".join(file.read_bytes() for file in bed.home.glob("runs.db*") if file.is_file())
    for text in [secret, json.dumps(secret, ensure_ascii=False)[1:-1], json.dumps(secret)[1:-1], "12345678", named]:
        assert text not in shown
        assert text.encode() not in kept


def test_everything_else_passes_as_it_is(bed):
    direct, through = Client([*bed.server()[:2], bed.home / "other.log"]), Client(bed.command())
    info = {"name": "test", "version": "1"}
    initialize = {"protocolVersion": "2026-07-28", "capabilities": {}, "clientInfo": info}
    for method, params in [
        ("initialize", initialize),
        ("tools/list", {}),
        ("resources/list", {}),
        ("server/discover", {"x": 1}),
        ("tools/call", {"name": "look", "arguments": {"fail": True}}),
    ]:
        for client in (direct, through):
            client.request(method, params)
        assert direct.line() == through.line(), method
    direct.close()
    through.close()


def test_a_call_whose_recorder_is_killed_is_told_and_not_repeated(bed):
    first = bed.recorder()
    first.call("append", {"text": "a", "wait": bed.pause()})
    bed.wait_for_effect(1)
    first.kill()
    second = bed.recorder()
    told = second.calls("append", {"text": "a", "wait": bed.pause()})
    assert is_unknown(told), told
    assert bed.effects() == [("append", "a")]
    second.kill()
    third = bed.recorder()
    assert third.calls("append", {"text": "a", "wait": bed.pause()}) == told, "each life is told the same"
    Path(bed.pause()).touch()
    third.calls("append", {"text": "a", "wait": bed.pause()})
    assert len(bed.effects()) == 2, "an agent that was told may repeat it"
    third.close()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_call_whose_server_dies_is_told_and_the_server_started_again(bed, when):
    client = bed.recorder()
    told = client.calls("append", {"text": "a", "die": when})
    assert is_unknown(told), told
    assert client.calls("append", {"text": "b"})["content"]
    client.close()
    assert bed.effects() == [("append", "a")] * (when == "after") + [("append", "b")]
    assert bed.log.read_text().count("initialize test") == 2, "its session was opened again"


def test_a_read_whose_server_dies_is_made_again_by_itself(bed):
    client = bed.recorder("--reads", "look")
    gate = Path(bed.pause())
    id = client.call("look", {"text": "a", "wait": str(gate)})
    bed.wait_for_effect(1)
    client.kill_one("server")
    bed.wait_for_effect(2)
    gate.touch()
    assert client.answer(id)["result"]["content"]
    client.close()
    keys = bed.keys()
    assert keys[0] == keys[1] and len(keys[0]) == 32, "a tool that honours the key does it once"


def test_hints_of_a_server_count_only_if_it_is_trusted(bed):
    for options, unknown in [([], True), (["--trust"], False)]:
        bed.run_id = f"task-{unknown}"
        first = bed.recorder(*options)
        first.ask("tools/list")
        first.call("look", {"text": bed.run_id, "wait": bed.pause()})
        bed.wait_for_effect(1)
        first.kill()
        Path(bed.pause()).touch()
        second = bed.recorder(*options)
        second.ask("tools/list")
        assert is_unknown(second.calls("look", {"text": bed.run_id, "wait": bed.pause()})) is unknown
        second.close()
        Path(bed.pause()).unlink()
        bed.log.unlink()


def test_calls_with_the_clients_id_are_the_same_calls_in_any_order(bed):
    first = bed.recorder()
    one = first.calls("append", {"text": "a"}, "toolu_1")
    two = first.calls("append", {"text": "a"}, "toolu_2")
    assert one != two
    first.kill()
    second = bed.recorder()
    assert second.calls("append", {"text": "a"}, "toolu_2") == two
    assert second.calls("append", {"text": "a"}, "toolu_1") == one
    assert second.calls("append", {"text": "a"}, "toolu_3") not in (one, two)
    assert len(bed.effects()) == 3
    second.close()


def test_an_answer_that_was_read_is_none_to_a_call_under_a_new_id(bed):
    first = bed.recorder()
    one = first.calls("append", {"text": "a"}, "toolu_1")
    first.close()
    second = bed.recorder()
    assert second.calls("append", {"text": "a"}, "toolu_2") != one
    second.close()
    assert len(bed.effects()) == 2


def test_two_equal_calls_at_once_are_two_before_and_after_a_death(bed):
    first = bed.recorder()
    ids = [first.call("append", {"text": "a"}) for _ in range(2)]
    lines = {}
    for _ in ids:
        message = json.loads(first.line())
        lines[message["id"]] = message["result"]
    first.kill()
    second = bed.recorder()
    again = [second.call("append", {"text": "a"}) for _ in range(2)]
    results = []
    for _ in again:
        results.append(json.loads(second.line())["result"])
    second.close()
    assert sorted(map(json.dumps, results)) == sorted(map(json.dumps, lines.values()))
    assert len(bed.effects()) == 2


def test_an_answer_that_was_recorded_and_never_read_reaches_the_client_that_asks_again(bed):
    first = bed.recorder()
    first.process.stdout.close()
    first.call("append", {"text": "a"})
    bed.wait_for_effect(1)
    pause = threading.Event()
    while bed.journal()[0]["state"] != "done":
        pause.wait(0.05)
    first.kill()
    second = bed.recorder()
    assert second.calls("append", {"text": "a"})["content"][0]["text"] == "line 2"
    assert len(bed.effects()) == 1
    second.close()


def test_a_person_says_what_came_of_a_call(bed):
    first = bed.recorder()
    for text in "abc":
        first.call("append", {"text": text, "wait": bed.pause()})
        bed.wait_for_effect("abc".index(text) + 1)
    refused = bed.outlast("resolve", bed.run_id, "1", "--rerun", check=False)
    assert refused.returncode != 0 and "is no tool call in doubt" in refused.stderr, refused.stderr
    first.kill()
    Path(bed.pause()).touch()
    listed = bed.outlast("resolve", bed.run_id).stdout
    assert "log/append" in listed and "entry 1" in listed, listed
    bed.outlast("resolve", bed.run_id, "1", "--result", '{"receipt": 7}')
    bed.outlast("resolve", bed.run_id, "2", "--failed", "the disk was full")
    bed.outlast("resolve", bed.run_id, "3", "--rerun")
    second = bed.recorder()
    call = lambda text: second.calls("append", {"text": text, "wait": bed.pause()})  # noqa: E731
    said = call("a")
    assert said["structuredContent"] == {"receipt": 7} and not said.get("isError")
    failed = call("b")
    assert failed["isError"] and failed["content"][0]["text"] == "the disk was full"
    assert call("c")["content"] and len(bed.effects()) == 4
    second.close()
    states = {entry["seq"]: entry["state"] for entry in bed.journal()}
    assert states == {1: "done", 2: "failed", 3: "void", 4: "done"}


def test_a_policy_lets_a_call_wait_for_a_person(bed, home):
    config = home / ".config" / "outlast"
    config.mkdir(parents=True)
    (config / "outlast.toml").write_text(
        '[policies.careful]\ntools = ["append"]\nneeds_approval = [{tool = "append"}]\n'
    )
    client = bed.recorder("--policy", "careful")
    assert "does not have it" in client.calls("look", {"text": "x"})["content"][0]["text"]

    def decide(*words):
        pause = threading.Event()
        while not (found := json.loads(bed.outlast("--json", "approvals").stdout)["approvals"]):
            pause.wait(0.05)
        assert found[0]["tool"] == "log/append" and found[0]["arguments"]["text"] in "abc"
        bed.outlast("approve", found[0]["id"], *words)

    id = client.call("append", {"text": "a"})
    decide()
    assert client.answer(id)["result"]["content"]
    id = client.call("append", {"text": "b"})
    decide("--deny", "--reason", "not today")
    assert "not today" in client.answer(id)["result"]["content"][0]["text"]
    id = client.call("append", {"text": "c"}, progress="tok")
    progress = json.loads(client.line())
    assert progress["method"] == "notifications/progress" and progress["params"]["progressToken"] == "tok"
    client.kill()
    client = bed.recorder()
    id = client.call("append", {"text": "c"})
    decide()
    assert client.answer(id)["result"]["content"], "the next life waits for the same approval"
    client.close()
    assert bed.effects() == [("append", "a"), ("append", "c")]


def test_a_call_whose_entry_could_not_be_closed_is_answered_when_it_is_made_again(bed, home):
    """Bug: the entry of a call that failed on its way stayed open. Consequence: the same call again waited for itself, for
    ever. Cause: whose process lives is taken to be in flight."""
    config = home / ".config" / "outlast"
    config.mkdir(parents=True)
    (config / "outlast.toml").write_text('[policies.careful]\nneeds_approval = [{tool = "append"}]\n')
    client = bed.recorder("--policy", "careful")
    for _ in range(2):
        # No approval has so long arguments.
        told = client.answer(client.call("append", {"text": "x" * (1 << 20)}, "toolu_1"))
        assert "the tool was not called" in told["error"]["message"]
    client.close()
    assert bed.effects() == []


AGENT = """
    import json, os, subprocess, sys
    # As MCP clients start their servers: with a few variables only.
    env = {"PATH": os.environ["PATH"], "HOME": os.environ["HOME"]}
    outlast, server, log, gate = sys.argv[1:5]
    command = [outlast, "mcp", "--name", "log", "--", sys.executable, server, log]
    mcp = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
    def call(id, arguments):
        params = {"name": "append", "arguments": arguments, "_meta": {"claudecode/toolUseId": f"toolu_{id}"}}
        mcp.stdin.write(json.dumps({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}) + "\\n")
        mcp.stdin.flush()
        return json.loads(mcp.stdout.readline())["result"]
    print(json.dumps(call(1, {"text": "a"})), flush=True)
    first = os.environ["OUTLAST_ATTEMPT"] == "1"
    if first:
        os.kill(os.getpid(), 9)
    print(json.dumps(call(1, {"text": "a"})), flush=True)
"""


def test_under_outlast_run_the_calls_are_the_runs_and_the_next_attempt_finds_them(bed, home):
    agent = home / "agent.py"
    agent.write_text(textwrap.dedent(AGENT))
    run = ["run", "--run", bed.run_id, "--", sys.executable, agent, outlast_program(), SERVER, bed.log, bed.pause()]
    done = bed.outlast(*run)
    lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(lines) == 3 and lines[0] == lines[1] == lines[2]
    assert bed.effects() == [("append", "a")]
    (entry,) = bed.journal()
    assert (entry["state"], entry["tool"]["name"], entry["tool"]["id"]) == ("done", "log/append", "toolu_1")
    assert entry["replayed_to"] == 2
    # No model was asked, and the tool calls are told all the same.
    assert "NOTHING METERED" in done.stderr and "(1 tool call recorded)" in done.stderr
    assert "no model's call came through the proxy; 1 tool call recorded" in bed.outlast("show", bed.run_id).stdout
    assert "1 tool call; no mod" in bed.outlast("ls").stdout


def test_outside_of_a_run_it_says_what_to_do(bed):
    command = [outlast_program(), "--store", bed.store, "mcp", "--", *bed.server()]
    done = subprocess.run([str(w) for w in command], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    assert done.returncode == 1 and "--run ID" in done.stderr, done.stderr


def test_a_command_that_is_none_is_said_at_once(bed):
    done = bed.outlast("mcp", "--run", "r", "--", "no-such-server", check=False)
    assert done.returncode == 2 and "no-such-server cannot be started" in done.stderr, done.stderr


@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_killed_a_call_is_done_once_or_told(bed, seed):
    """An agent that makes the same calls in each life; recorder and server are killed at moments that a seed chooses."""
    print(f"seed {seed}")
    chance = random.Random(seed)
    texts, told = [f"t{n}" for n in range(8)], set()
    for life in range(12):
        client = bed.recorder()
        victim, moment = chance.choice(["recorder", "server"]), chance.uniform(0, 0.15)
        killer = threading.Timer(moment, client.kill_one, [victim])
        if life < 11:
            killer.start()
        try:
            for text in texts:
                result = client.calls("append", {"text": text})
                if is_unknown(result):
                    told.add(text)
            killer.join() if life < 11 else client.close()
        except (AssertionError, BrokenPipeError, ValueError):
            pass
        finally:
            killer.cancel()
            client.kill()
    done = [text for _, text in bed.effects()]
    assert len(done) == len(set(done)), "nothing is done twice"
    assert set(texts) - set(done) <= told, "what was not done was told"
    unsure = {entry["seq"] for entry in bed.journal() if entry["state"] == "unknown"}
    assert len(unsure) == len(told)


CUT_OFF = """
    import json, os, subprocess, sys
    outlast, server, log, gate = sys.argv[1:5]
    command = [outlast, "mcp", "--name", "log", "--", sys.executable, server, log]
    mcp = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    params = {"name": "append", "arguments": {"text": "a", "wait": gate}}
    mcp.stdin.write(json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}) + "\\n")
    mcp.stdin.flush()
    print(mcp.stdout.readline(), flush=True)
"""


def test_a_call_that_a_killed_supervisor_cut_off_is_told_to_the_resumed_agent(bed, home):
    agent = home / "agent.py"
    agent.write_text(textwrap.dedent(CUT_OFF))
    words = ["--store", bed.store, "run", "--run", bed.run_id, "--", sys.executable, agent]
    words += [outlast_program(), SERVER, bed.log, bed.pause()]
    command = [str(word) for word in [outlast_program(), *words]]
    run = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    bed.wait_for_effect(1)
    run.kill()
    # The guardian is killed; its pipes close when the supervisor and all that it started have ended, too.
    run.communicate()
    resumed = bed.outlast("resume", bed.run_id)
    line = next(line for line in resumed.stdout.splitlines() if line.startswith("{"))
    assert is_unknown(json.loads(line)["result"]), line
    assert bed.effects() == [("append", "a")]
    shown = bed.outlast("show", bed.run_id).stdout
    assert f"in doubt: log/append → outlast --store {bed.store} resolve {bed.run_id} 1" in shown, shown


KILLS_ITS_RECORDER = CUT_OFF.replace("print(mcp.stdout.readline(), flush=True)", """
    import time
    while not os.path.exists(log) or "append" not in open(log).read():
        time.sleep(0.01)
    mcp.kill()
    mcp.wait()
""")


# Bug: a run that ended well said nothing in `show` of a tool call whose recorder had been killed.
# Consequence: nobody looked whether the tool had had its effect; `outlast resolve` alone listed the call.
# Cause: `show` took only calls that a later call had found in doubt, and no call came later.
def test_a_call_whose_recorder_was_killed_is_told_when_the_run_has_ended(bed, home):
    agent = home / "agent.py"
    agent.write_text(textwrap.dedent(KILLS_ITS_RECORDER))
    bed.outlast("run", "--run", bed.run_id, "--", sys.executable, agent, outlast_program(), SERVER, bed.log, bed.pause())
    shown = bed.outlast("show", bed.run_id).stdout
    assert "completed" in shown and f"in doubt: log/append → outlast --store {bed.store} resolve {bed.run_id} 1" in shown, shown
    bed.outlast("resolve", bed.run_id, "1", "--result", '"done"')
    assert "in doubt" not in bed.outlast("show", bed.run_id).stdout
