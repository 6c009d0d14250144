"""The published Statehouse client, unmodified, against `outlast serve --grpc`.

OUTLAST_BIN names the program. What the original gets wrong is shown right here: compat facts, by name.
"""

import json
import math
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import grpc
import pytest
from google.protobuf.struct_pb2 import ListValue, Struct
from statehouse import Statehouse, StatehouseError, TransactionError

from ports import free_port

OUTLAST = os.environ.get("OUTLAST_BIN", str(Path(__file__).resolve().parents[2] / "target" / "debug" / "outlast"))
LONGEST_S = 60
KILLS = int(os.environ.get("OUTLAST_TEST_KILLS", "50"))


class Server:
    """A server on a store of its own, which can die and begin again."""

    def __init__(self, home, *flags):
        self.home, self.flags, self.port = home, flags, free_port()
        self.process = None
        self.start()

    def outlast(self, *args):
        env = {"HOME": str(self.home), "PATH": os.environ["PATH"], "OUTLAST_STORE": str(self.home / "runs.db")}
        return [OUTLAST, *args], env

    def start(self):
        log = self.home / "serve.log"
        line, env = self.outlast(
            "serve", "--listen", "127.0.0.1:0", "--grpc", f"127.0.0.1:{self.port}", *self.flags
        )
        with open(log, "w") as out:
            self.process = subprocess.Popen(line, env=env, stdout=out, stderr=out)
        began = time.monotonic()
        while "gRPC on" not in log.read_text():
            assert self.process.poll() is None, log.read_text()
            assert time.monotonic() - began < LONGEST_S, log.read_text()
            time.sleep(0.01)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def restart(self):
        self.kill()
        self.start()

    def client(self, **more):
        return Statehouse(url=f"127.0.0.1:{self.port}", **more)

    def says(self, *args):
        line, env = self.outlast(*args)
        return subprocess.run(line, env=env, check=True, capture_output=True, text=True).stdout


def serving(tmp_path_factory, *flags):
    server = Server(tmp_path_factory.mktemp("state"), *flags)
    yield server
    server.kill()


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    yield from serving(tmp_path_factory)


@pytest.fixture(scope="module")
def first_committer(tmp_path_factory):
    yield from serving(tmp_path_factory, "--grpc-conflicts", "first-committer")


@pytest.fixture
def client(server):
    with server.client() as client:
        yield client


def put(client, agent, key, value):
    with client.begin_transaction() as tx:
        tx.write(agent_id=agent, key=key, value=value)


def plain(value):
    """What the client gives, with its protobuf types made Python's."""
    if isinstance(value, (dict, Struct)):
        return {k: plain(v) for k, v in value.items()}
    if isinstance(value, ListValue):
        return [plain(v) for v in value]
    return value


def test_the_server_says_who_it_is_and_that_it_is_well(client, server):
    assert client.health() == "ok"
    assert client.version()[0].startswith("outlast ")
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        check = channel.unary_unary("/grpc.health.v1.Health/Check")
        assert b"\x08\x01" == check(b"\x0a\x1f" + b"statehouse.v1.StatehouseService")


def test_a_transaction_commits_on_a_clean_exit_and_aborts_on_an_exception(client):
    put(client, "tx", "a", {"n": 1})
    with pytest.raises(ZeroDivisionError):
        with client.begin_transaction() as tx:
            tx.write(agent_id="tx", key="a", value={"n": 2})
            1 / 0
    state = client.get_state(agent_id="tx", key="a")
    assert (state.value, state.version, state.exists) == ({"n": 1.0}, 1, True)


def test_a_missing_key_is_no_error(client):
    state = client.get_state(agent_id="nobody", key="nothing")
    assert (state.value, state.version, state.exists) == (None, 0, False)
    assert not client.get_state_at_version(agent_id="nobody", key="nothing", version=3).exists


def test_operations_are_versions_one_each_and_deletes_count(client):
    with client.begin_transaction() as tx:
        tx.write(agent_id="v", key="k", value={"n": 1})
        tx.write(agent_id="v", key="k", value={"n": 2})
        tx.delete(agent_id="v", key="k")
    put(client, "v", "k", {"n": 4})
    assert client.get_state(agent_id="v", key="k").version == 4
    had = [client.get_state_at_version(agent_id="v", key="k", version=n) for n in range(1, 6)]
    assert [h.exists for h in had] == [True, True, False, True, False]
    assert [plain(h.value) for h in had if h.exists] == [{"n": 1}, {"n": 2}, {"n": 4}]


def test_an_ended_or_unknown_transaction_says_so_and_abort_never_complains(client):
    tx = client.begin_transaction()
    tx.write(agent_id="e", key="k", value={})
    assert tx.commit() > 0
    with pytest.raises(TransactionError, match="not found"):
        client._write(tx._txn_id, "default", "e", "k", {})
    with pytest.raises(TransactionError, match="not found"):
        client._commit("txn_never")
    client._abort("txn_never")
    short = client.begin_transaction(timeout_ms=1)
    began = time.monotonic()
    with pytest.raises(TransactionError, match="expired"):
        while time.monotonic() - began < LONGEST_S:
            short.write(agent_id="e", key="k", value={})
    assert client.begin_transaction().commit() == 0


def test_a_commit_whose_answer_was_lost_is_answered_again(client):
    tx = client.begin_transaction()
    tx.write(agent_id="twice", key="k", value={})
    assert client._commit(tx._txn_id) == client._commit(tx._txn_id)
    assert client.get_state(agent_id="twice", key="k").version == 1


# Statehouse 0.1: objects inside lists come back as null.
def test_values_come_back_as_they_went(client):
    value = {
        "list": [{"a": 1, "b": [{"c": None}]}, [1, [2, []]], None, "x"],
        "big": 1e300,
        "exact": 9007199254740992,
        "small": 5e-324,
        "third": 1 / 3,
        "minus": -0.0,
        "text": "\0 é 🦀 \u2028",
        "": {"nested": {"deep": {}}},
        "yes": True,
        "null": None,
    }
    put(client, "values", "k", value)
    had = plain(client.get_state(agent_id="values", key="k").value)
    assert had == value
    assert math.copysign(1, had["minus"]) == -1


# Statehouse 0.1: `a:b`/`k` reads `a`'s key `b:k`.
def test_keys_of_any_characters_are_kept_apart(client):
    places = [("a:b", "c"), ("a", "b:c"), ("a", "b/c"), ("a/b", "c"), ("", ""), ("é", "\0"), ("%2F", " ")]
    for n, (agent, key) in enumerate(places):
        with client.begin_transaction(namespace="odd") as tx:
            tx.write(agent_id=agent, key=key, value={"n": n})
    for n, (agent, key) in enumerate(places):
        assert plain(client.get_state(agent_id=agent, key=key, namespace="odd").value) == {"n": n}
    assert client.list_keys(agent_id="a", namespace="odd") == ["b/c", "b:c"]


# Statehouse 0.1: replay shows another agent's operations.
def test_replay_has_one_agents_commits_in_order_and_both_ends_belong_to_it(client):
    commits = []
    for n in range(5):
        tx = client.begin_transaction(namespace="replay")
        tx.write(agent_id="a", key=f"k{n}", value={"n": n})
        tx.write(agent_id="b", key="other", value={})
        commits.append(tx.commit())
    with client.begin_transaction(namespace="replay") as tx:
        tx.delete(agent_id="a", key="k0")
    events = list(client.replay(agent_id="a", namespace="replay"))
    assert [e.commit_ts for e in events[:5]] == commits and len(events) == 6
    assert all([o.key for o in e.operations] == [f"k{n}"] for n, e in enumerate(events[:5]))
    assert (events[5].operations[0].value, events[5].operations[0].version) == (None, 2)
    assert all(e.txn_id for e in events)
    middle = client.replay(agent_id="a", namespace="replay", start_ts=commits[1], end_ts=commits[3])
    assert [e.commit_ts for e in middle] == commits[1:4]
    assert list(client.replay(agent_id="nobody", namespace="replay")) == []


def test_ten_thousand_keys_are_listed_scanned_and_replayed(client):
    for start in range(0, 10_000, 2_500):
        with client.begin_transaction(namespace="many", timeout_ms=LONGEST_S * 1000) as tx:
            for n in range(start, start + 2_500):
                tx.write(agent_id="a", key=f"k{n:05}", value={"n": n})
    keys = [f"k{n:05}" for n in range(10_000)]
    assert client.list_keys(agent_id="a", namespace="many") == keys
    found = client.scan_prefix(agent_id="a", prefix="k07", namespace="many")
    assert [plain(s.value) for s in found] == [{"n": n} for n in range(7_000, 8_000)]
    events = list(client.replay(agent_id="a", namespace="many"))
    assert [o.key for e in events for o in e.operations] == keys


# Statehouse 0.1: replies over 4 MiB fail and cannot be paged.
def test_what_does_not_fit_one_reply_is_streamed_or_refused_with_the_way_round(client):
    big = {"text": "x" * 1_500_000}
    with client.begin_transaction(namespace="big") as tx:
        for n in range(4):
            tx.write(agent_id="a", key=f"k{n}", value=big)
    with pytest.raises(StatehouseError, match=r"at most 4194304 fit .*cursor"):
        client.scan_prefix(agent_id="a", prefix="", namespace="big")
    events = list(client.replay(agent_id="a", namespace="big"))
    assert [o.key for e in events for o in e.operations] == ["k0", "k1", "k2", "k3"]
    assert len({(e.txn_id, e.commit_ts) for e in events}) == 1


def test_namespaces_of_runs_are_read_only_without_a_run(client):
    with pytest.raises(TransactionError, match="written by its own run only"):
        with client.begin_transaction(namespace="run:x") as tx:
            tx.write(agent_id="a", key="k", value={})


def retried(client, change):
    """Reads, changes and writes, until nobody came between."""
    while True:
        tx = client.begin_transaction()
        try:
            change(tx)
            return tx.commit()
        except TransactionError as e:
            assert "has changed since" in str(e), e


# Statehouse 0.1: lost updates without a conflict, 34 of 200 increments survive.
def test_no_increment_is_lost_where_the_first_committer_wins(first_committer):
    with first_committer.client() as client:
        put(client, "count", "n", {"n": 0})

    def increment():
        with first_committer.client() as client:

            def one(tx):
                had = client.get_state(agent_id="count", key="n").value["n"]
                tx.write(agent_id="count", key="n", value={"n": had + 1})

            for _ in range(25):
                retried(client, one)

    threads = [threading.Thread(target=increment) for _ in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    with first_committer.client() as client:
        state = client.get_state(agent_id="count", key="n")
        assert (state.value, state.version) == ({"n": 200.0}, 201)


# Statehouse 0.1: version history is destroyed by a restart.
def test_versions_and_history_go_on_over_restarts(tmp_path):
    server = Server(tmp_path)
    for n in range(1, 4):
        with server.client() as client:
            put(client, "a", "k", {"n": n})
        server.restart()
    with server.client() as client:
        assert client.get_state(agent_id="a", key="k").version == 3
        had = [client.get_state_at_version(agent_id="a", key="k", version=n).value["n"] for n in (1, 2, 3)]
        assert had == [1, 2, 3]
        events = list(client.replay(agent_id="a"))
        assert [e.operations[0].version for e in events] == [1, 2, 3]
        assert [e.commit_ts for e in events] == sorted({e.commit_ts for e in events})
    server.kill()


# Statehouse 0.1: a commit is not atomic, seen by readers and after a crash.
def test_a_server_killed_in_mid_commit_keeps_every_acknowledged_transaction_and_tears_none(tmp_path):
    server = Server(tmp_path)
    writers, keys = 4, 3
    acknowledged = [0] * writers

    def write(me, upto):
        client = server.client()
        n = acknowledged[me]
        try:
            while n < upto:
                with client.begin_transaction() as tx:
                    for k in range(keys):
                        tx.write(agent_id=f"w{me}", key=f"k{k}", value={"n": n + 1})
                n += 1
                acknowledged[me] = n
        except StatehouseError:
            pass
        finally:
            client.close()

    for round_ in range(KILLS):
        before = sum(acknowledged)
        threads = [threading.Thread(target=write, args=(me, 10**9)) for me in range(writers)]
        [t.start() for t in threads]
        began = time.monotonic()
        # Under load: some are acknowledged, and more are on their way.
        while sum(acknowledged) < before + 8 + round_ % 5:
            assert time.monotonic() - began < LONGEST_S
        server.kill()
        [t.join() for t in threads]
        server.start()
        with server.client() as client:
            for me in range(writers):
                states = [client.get_state(agent_id=f"w{me}", key=f"k{k}") for k in range(keys)]
                numbers = {s.value["n"] if s.exists else 0 for s in states}
                assert len(numbers) == 1, f"torn: {numbers}"
                assert len({s.version for s in states}) == 1
                n = int(numbers.pop())
                assert acknowledged[me] <= n <= acknowledged[me] + 1
                acknowledged[me] = n
    with server.client() as client:
        for me in range(writers):
            events = list(client.replay(agent_id=f"w{me}"))
            assert [[plain(o.value)["n"] for o in e.operations] for e in events] == [
                [n + 1] * keys for n in range(acknowledged[me])
            ]
    server.kill()


def test_no_reader_sees_part_of_a_transaction(server):
    stop, torn = threading.Event(), []

    def read():
        with server.client(namespace="parts") as client:
            while not stop.is_set():
                found = [plain(s.value) for s in client.scan_prefix(agent_id="a", prefix="")]
                if found and any(f != found[0] for f in found):
                    torn.append(found)

    readers = [threading.Thread(target=read) for _ in range(2)]
    [r.start() for r in readers]
    with server.client(namespace="parts") as client:
        for n in range(150):
            with client.begin_transaction() as tx:
                for k in range(4):
                    tx.write(agent_id="a", key=f"k{k}", value={"n": n})
    stop.set()
    [r.join() for r in readers]
    assert torn == []


def test_under_a_run_writes_carry_it_and_its_attempt(tmp_path):
    agent = tmp_path / "agent.py"
    agent.write_text(
        "import os\n"
        "from statehouse import Statehouse\n"
        "client = Statehouse(url=os.environ['OUTLAST_GRPC_URL'], namespace=f\"run:{os.environ['OUTLAST_RUN_ID']}\")\n"
        "with client.begin_transaction() as tx:\n"
        "    tx.write(agent_id='a', key='k', value={'attempt': int(os.environ['OUTLAST_ATTEMPT'])})\n"
        "if os.environ['OUTLAST_ATTEMPT'] == '1':\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "OUTLAST_STORE": str(tmp_path / "runs.db")}
    line = [OUTLAST, "run", "--run", "r", "--grpc", f"127.0.0.1:{free_port()}", "--", sys.executable, str(agent)]
    done = subprocess.run(line, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=LONGEST_S)
    assert done.returncode == 0, done.stderr
    said = subprocess.run(
        [OUTLAST, "state", "history", "a", "k", "--namespace", "run:r", "--json"],
        env=env,
        check=True,
        capture_output=True,
        text=True,
    )
    versions = json.loads(said.stdout)["versions"]
    assert [(v["run"], v["attempt"], v["value"]) for v in versions] == [
        ("r", 1, {"attempt": 1}),
        ("r", 2, {"attempt": 2}),
    ]


OVERLAPPING = r"""
import os, urllib.request
from statehouse import Statehouse, StatehouseError
client = Statehouse(url=os.environ["OUTLAST_GRPC_URL"])
mine, theirs = client.begin_transaction(), client.begin_transaction()
for tx in (mine, theirs):
    tx.write(agent_id="a", key="k", value={"by": 1})
theirs.commit()
try:
    mine.commit()
    said = "both"
except StatehouseError as e:
    said = "conflict" if "changed" in str(e) or "made it version" in str(e) else str(e)
url = os.environ["OUTLAST_URL"] + "/v1/state/default/a/rest"
headers = {"Authorization": "Bearer " + os.environ["OUTLAST_TOKEN"]}
body = os.environ["OUTLAST_ATTEMPT"].encode()
said += " " + urllib.request.urlopen(urllib.request.Request(url, body, headers, method="PUT")).read().decode()
open("told", "a").write(said + "\n")
if os.environ["OUTLAST_ATTEMPT"] == "1":
    os.kill(os.getppid(), 9)
"""


def test_a_resumed_run_is_served_by_the_same_rule_and_writes_over_http_too(tmp_path):
    (tmp_path / "agent.py").write_text(OVERLAPPING)
    env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "OUTLAST_STORE": str(tmp_path / "runs.db")}

    def outlast(*words):
        return subprocess.run(
            [OUTLAST, *words], env=env, cwd=tmp_path, capture_output=True, text=True, timeout=LONGEST_S
        )

    flags = ["--grpc", f"127.0.0.1:{free_port()}", "--grpc-conflicts", "first-committer"]
    outlast("run", "--run", "r", *flags, "--", sys.executable, "agent.py")
    resumed = outlast("resume", "r")
    assert resumed.returncode == 0, resumed.stderr
    told = (tmp_path / "told").read_text().splitlines()
    assert [line.split()[0] for line in told] == ["conflict", "conflict"], told
    said = outlast("state", "history", "a", "rest", "--json")
    versions = json.loads(said.stdout)["versions"]
    assert [(v["run"], v["attempt"], v["value"]) for v in versions] == [("r", 1, 1), ("r", 2, 2)]


def test_an_api_token_is_wanted_from_everyone(tmp_path):
    token = tmp_path / "token"
    token.touch(mode=0o600)
    token.write_text("a-token-of-some-length")
    server = Server(tmp_path, "--api-token-file", str(token))
    with server.client() as client, pytest.raises(Exception, match="token"):
        client.health()
    with grpc.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        health = channel.unary_unary("/statehouse.v1.StatehouseService/Health")
        said = health(b"", metadata=[("authorization", "Bearer a-token-of-some-length")])
        assert re.search(b"ok", said)
    server.kill()
