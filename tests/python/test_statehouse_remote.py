"""`outlast.Statehouse(url=…)` against `outlast serve`: the same as a store that is opened here."""

import os
import re
import socket
import subprocess
import sys
import threading

import pytest
from test_statehouse_client import Server

import outlast
from conftest import SOURCES, outlast_program
from outlast import Statehouse

ME = "me"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    server = Server(tmp_path_factory.mktemp("state"))
    yield server
    server.kill()


@pytest.fixture(scope="module")
def url(server):
    return re.search(r"serving on (http://[0-9.:]+)", (server.home / "serve.log").read_text()).group(1)


@pytest.fixture
def client(url, request):
    with Statehouse(url, request.node.name) as client:
        yield client


def put(client, key, value, agent=ME):
    with client.begin_transaction() as tx:
        tx.write(agent_id=agent, key=key, value=value)
    return client.get_state(agent, key).commit_ts


def test_values_and_versions_are_those_that_were_written(client):
    value = {"n": 1, "f": 0.5, "t": "é\0🍵", "none": None, "yes": True, "list": [{"a": [1, {}]}, [], "x"], "big": 2**53, "neg": -7}
    put(client, "k", value)
    put(client, "k", {"n": 2})
    client.delete_state(ME, "k")
    gone = client.get_state(ME, "k")
    assert (gone.value, gone.exists, gone.version) == (None, False, 3)
    assert client.get_state_at_version(ME, "k", 1).value == value
    assert type(client.get_state_at_version(ME, "k", 1).value["n"]) is int
    assert [(h.value, h.version) for h in client.history(ME, "k")] == [(value, 1), ({"n": 2}, 2), (None, 3)]
    assert client.get_state_at_version(ME, "k", commit=2).value == {"n": 2}
    assert not client.get_state_at_version(ME, "k", commit=3).exists
    assert not client.get_state(ME, "never").exists
    assert client.health() == "ok" and client.version()[0].startswith("outlast ")
    put(client, "null", None)
    put(client, "big", [2**53 + 1])
    assert (client.get_state(ME, "null").exists, client.get_state(ME, "big").value[0]) == (True, 2**53 + 1)
    for key in ("..", "a/b", "", "é?&=#+ %"):
        put(client, key, key)
        assert client.get_state(ME, key).value == key


def test_a_key_is_found_as_it_was_at_a_time(client):
    put(client, "k", 1)
    first = client.get_state(ME, "k").at
    client.delete_state(ME, "k")
    gone = client.history(ME, "k")[-1]
    put(client, "k", 3)
    at = [client.get_state_at_version(ME, "k", time=moment) for moment in (first, gone.at, client.get_state(ME, "k").at, 1.0)]
    assert [(s.value, s.version, s.exists) for s in at] == [(1, 1, True), (None, 2, False), (3, 3, True), (None, 0, False)]
    assert [e.commit_ts for e in client.replay(ME, start_time=gone.at)] == [2, 3]
    assert client.list_agents() == [ME] and client._namespace in client.list_namespaces()


def test_a_transaction_commits_or_aborts_and_reads_its_own_writes(client):
    put(client, "k", {"n": 1})
    with pytest.raises(ZeroDivisionError), client.begin_transaction() as tx:
        tx.write(agent_id=ME, key="k", value={"n": 2})
        assert tx.get(ME, "k").value == {"n": 2}
        tx.delete(agent_id=ME, key="k")
        assert (tx.get(ME, "k").exists, tx.get(ME, "k").version) == (False, 3)
        1 / 0
    assert client.get_state(ME, "k").value == {"n": 1}
    with client.begin_transaction() as tx:
        tx.write(agent_id=ME, key="a", value={})
        commit = tx.commit()
    assert client.transaction_outcome(tx.id) == commit and client.transaction_outcome("txn_none") is None
    late = client.begin_transaction(timeout_ms=0)
    with pytest.raises(outlast.TransactionError, match="expired"):
        late.write(agent_id=ME, key="a", value={})


def test_updates_of_eight_threads_are_all_counted(client):
    def work():
        for _ in range(5):
            client.update(ME, "counter", lambda old: {"n": (old or {"n": 0})["n"] + 1})

    threads = [threading.Thread(target=work) for _ in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    assert client.get_state(ME, "counter").value == {"n": 40}


def test_a_write_fails_that_another_one_came_before(client, url):
    put(client, "k", 1)
    with pytest.raises(outlast.Conflict), client.begin_transaction() as tx:
        tx.write(ME, "other", 1)
        tx.write(ME, "k", 2, expect_version=0)
    assert not client.get_state(ME, "other").exists
    client.delete_state(ME, "k", expect_version=1)
    with Statehouse(url, client._namespace, conflicts="first-committer") as careful:
        tx = careful.begin_transaction()
        tx.get(ME, "k")
        put(client, "k", 3)
        tx.write(ME, "k", 4)
        with pytest.raises(outlast.Conflict):
            tx.commit()
    assert client.get_state(ME, "k").value == 3


def test_keys_scans_replays_and_resume_points_are_those_of_a_store_opened_here(client):
    with client.begin_transaction() as tx:
        for i in range(1_000):
            tx.write(agent_id=ME, key=f"step:{i}", value={"status": "done"})
    put(client, "step:1000", {"status": "pending"})
    put(client, "other", {}, agent="a:b")
    assert client.resume_point(ME) == outlast.ResumePoint(999, 1000, "step:1000")
    assert client.resume_point("nobody") == outlast.ResumePoint(-1)
    assert len(client.list_keys(ME)) == 1_001 and client.list_keys(ME, prefix="step:99") == sorted(["step:99", *(f"step:99{i}" for i in range(10))])
    assert [s.key for s in client.scan_prefix(ME, "step:100")] == ["step:100", "step:1000"]
    assert [(e.commit_ts, len(e.operations)) for e in client.replay(ME)] == [(1, 1_000), (2, 1)]
    assert [e.commit_ts for e in client.replay(ME, start_ts=2, end_ts=2)] == [2]
    events = client.replay(ME, start_ts=2, follow=True)
    assert next(events).commit_ts == 2
    later = threading.Thread(target=put, args=(client, "k", {"n": 2}))
    later.start()
    assert next(events).operations[0].value == {"n": 2}
    later.join()


def test_padded_steps_lines_and_empty_commits_are_those_of_a_store_opened_here(client):
    with client.begin_transaction() as tx:
        tx.write("padded", "step:009", {"status": "done"})
        tx.write("padded", "step:010", {"status": "pending"})
    assert client.resume_point("padded") == outlast.ResumePoint(9, 10, "step:010")
    assert list(client.replay_pretty("padded"))[0].find("step:009") > 0
    empty = client.begin_transaction()
    assert (empty.commit(), client.transaction_outcome(empty.id)) == (0, 0)


def test_what_cannot_be_done_is_an_error(client, server):
    def check(error, call):
        with pytest.raises(error) as e:
            call()
        return e.value

    tx = client.begin_transaction()
    check(outlast.NotSerializable, lambda: tx.write(ME, "k", float("nan")))
    check(outlast.ReadOnlyNamespace, lambda: client.delete_state(ME, "k", namespace="run:r"))
    tx.abort()
    assert "serve --listen" in check(outlast.NoServer, Statehouse("127.0.0.1:1").health).hint
    # The port of gRPC is none that this client speaks to.
    assert "--grpc" in check(outlast.NoServer, Statehouse(f"127.0.0.1:{server.port}").health).hint
    check(ValueError, lambda: Statehouse("ftp://127.0.0.1"))


def test_a_replay_says_what_compaction_has_removed(client, server):
    for n in range(3):
        put(client, "k", n)
    server.says("state", "keep", "1", "--namespace", client._namespace)
    with pytest.warns(outlast.CompactedWarning):
        assert [e.commit_ts for e in client.replay(ME)] == [3]
    with pytest.raises(outlast.Compacted):
        client.get_state_at_version(ME, "k", 1)


def test_a_connection_that_the_server_closed_is_made_again(tmp_path):
    """A kept connection is gone after a restart of the server: the next request used to be its error."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        paths = []

        def serve():
            for _ in range(2):
                peer, _ = listener.accept()
                with peer:
                    paths.append(peer.recv(65536).split(b" ")[1])
                    peer.sendall(b'HTTP/1.1 200 OK\r\ncontent-length: 17\r\n\r\n{"namespaces":[]}')

        thread = threading.Thread(target=serve)
        thread.start()
        client = Statehouse(f"127.0.0.1:{listener.getsockname()[1]}")
        assert client.list_namespaces() == client.list_namespaces() == []
        thread.join()
        assert len(paths) == 2
        client.close()


def test_under_a_run_writes_carry_it_and_other_servers_see_no_token(tmp_path):
    agent = tmp_path / "agent.py"
    agent.write_text(
        "import os\nfrom outlast import Statehouse\n"
        "client = Statehouse(url=os.environ['OUTLAST_URL'], namespace='run:r')\n"
        "client.update('a', 'k', lambda old: [*(old or []), int(os.environ['OUTLAST_ATTEMPT'])])\n"
        "assert client.get_state('a', 'k').run == 'r'\n"
        "os.environ.update(OUTLAST_SERVER='https://far.example', OUTLAST_API_TOKEN='secret')\n"
        "assert Statehouse(url='http://127.0.0.1:1')._backend._headers == {}\n"
        "assert Statehouse(url='https://far.example')._backend._headers == {'Authorization': 'Bearer secret'}\n"
        "os.environ.update(OUTLAST_SERVER='http://far.example')\n"
        "assert Statehouse(url='http://far.example')._backend._headers == {}\n"
        "open('token', 'w').write('of a file\\n')\n"
        "os.environ.update(OUTLAST_SERVER='http://127.0.0.1:1', OUTLAST_API_TOKEN_FILE='token')\n"
        "del os.environ['OUTLAST_API_TOKEN']\n"
        "assert Statehouse(url='127.0.0.1:1')._backend._headers == {'Authorization': 'Bearer of a file'}\n"
    )
    env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "OUTLAST_STORE": str(tmp_path / "runs.db"), "PYTHONPATH": str(SOURCES)}
    line = [outlast_program(), "run", "--run", "r", "--", sys.executable, str(agent)]
    done = subprocess.run(line, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
