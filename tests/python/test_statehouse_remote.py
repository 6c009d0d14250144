"""`outlast.Statehouse(url=…)` against `outlast serve --grpc`: the same as a store that is opened here, or an error."""

import threading

import pytest
from test_statehouse_client import serving

import outlast
from outlast import Statehouse
from outlast.state import wire

ME = "me"


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    yield from serving(tmp_path_factory, "--grpc-conflicts", "first-committer")


@pytest.fixture
def client(server, request):
    with Statehouse(f"127.0.0.1:{server.port}", request.node.name, conflicts="first-committer") as client:
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
    assert list(client.replay_pretty("padded"))[0].startswith("commit ")
    empty = client.begin_transaction()
    assert (empty.commit(), client.transaction_outcome(empty.id)) == (0, 0)


def test_what_the_wire_cannot_say_is_an_error(client, server):
    def check(error, call):
        with pytest.raises(error) as e:
            call()
        assert e.value.hint

    tx = client.begin_transaction()
    check(outlast.NotOnTheWire, lambda: tx.write(ME, "k", {}, expect_version=1))
    check(outlast.NotOnTheWire, lambda: client.get_state_at_version(ME, "k", time=1.0))
    check(outlast.NotOnTheWire, lambda: client.replay(ME, start_time=1.0))
    check(outlast.NotSerializable, lambda: tx.write(ME, "k", [1]))
    check(outlast.NotSerializable, lambda: tx.write(ME, "k", {"n": 2**53 + 1}))
    check(outlast.ReadOnlyNamespace, lambda: client.delete_state(ME, "k", namespace="run:r"))
    tx.abort()
    plain = Statehouse(f"127.0.0.1:{server.port}")
    check(outlast.NotOnTheWire, lambda: plain.update(ME, "k", lambda old: {}))
    check(outlast.NoServer, Statehouse("127.0.0.1:1").health)


def test_a_message_that_is_cut_anywhere_is_no_other_message():
    message = wire.text(5, wire.to_struct({"a": [1.5, "x", {"b": None}]})) + wire.number(2, 1 << 40)
    assert wire.from_struct(wire.fields(message)[5][0]) == {"a": [1.5, "x", {"b": None}]}
    assert wire.fields(message)[2] == [1 << 40]
    whole = len(wire.text(5, wire.to_struct({"a": [1.5, "x", {"b": None}]})))
    for cut in range(1, len(message)):
        if cut != whole:
            with pytest.raises(ValueError):
                wire.fields(message[:cut])
