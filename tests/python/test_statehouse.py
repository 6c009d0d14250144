"""`outlast.Statehouse`: the article's example killed at its crash points, and what a client of the state may rely on."""

import datetime
import itertools
import json
import signal
import threading

import pytest

import outlast
from outlast import Statehouse

ME = "me"


@pytest.fixture
def client(rt):
    return Statehouse(store=rt)


def put(client, key, value, agent=ME, **more):
    with client.begin_transaction() as tx:
        tx.write(agent_id=agent, key=key, value=value, **more)


# --- the article's complete example: its one wrong index mended, its undefined functions filled in

ARTICLE = '''
import os, signal, sys, uuid
from pathlib import Path
from outlast import Statehouse

MAX_STEPS = 4
CRASH = sys.argv[1] if len(sys.argv) > 1 else ""

def crash_here(point, step):
    if CRASH == f"{point}:{step}":
        os.kill(os.getpid(), signal.SIGKILL)

def append(name, line):
    with open(name, "a") as log:
        log.write(line + "\\n")

def decide_next_action(step):
    append("asked.log", str(step))
    return {"type": "api_call", "endpoint": f"/search/{step}", "id": str(uuid.uuid4())}

def call_api(endpoint, idempotency_key):
    append("called.log", f"{idempotency_key} {endpoint}")
    done = Path("done.log").read_text() if Path("done.log").exists() else ""
    if idempotency_key not in done:
        append("done.log", f"{idempotency_key} {endpoint}")
    return {"found": endpoint}

def is_complete(step):
    return step + 1 == MAX_STEPS

def execute_action(action):
    if action["type"] == "api_call":
        # Use idempotency key
        return call_api(
            endpoint=action["endpoint"],
            idempotency_key=action["id"],
        )

def agent_loop_from_step(client, agent_id, task, start_step):
    step = start_step
    while step < MAX_STEPS:
        pending = client.get_state(agent_id=agent_id, key=f"step:{step}")
        if pending.exists and pending.value["status"] == "pending":
            action = pending.value["action"]
        else:
            # Think and act
            action = decide_next_action(step)
            crash_here("before", step)
            # Store before executing (intention)
            with client.begin_transaction() as tx:
                tx.write(
                    agent_id=agent_id,
                    key=f"step:{step}",
                    value={"action": action, "status": "pending"},
                )
        # Execute
        result = execute_action(action)
        crash_here("after", step)
        # Store result (completion)
        with client.begin_transaction() as tx:
            tx.write(
                agent_id=agent_id,
                key=f"step:{step}",
                value={"action": action, "status": "done", "result": result},
            )
        crash_here("done", step)
        if is_complete(step):
            with client.begin_transaction() as tx:
                tx.write(agent_id=agent_id, key="answer", value=result)
            return result
        step += 1

def find_resume_point(client, agent_id) -> int:
    """Find the last completed step."""
    keys = client.list_keys(agent_id=agent_id)
    last_complete = -1
    for key in keys:
        if key.startswith("step:"):
            step_num = int(key.split(":")[1])
            state = client.get_state(agent_id=agent_id, key=key)
            if state.value.get("status") == "done":
                last_complete = max(last_complete, step_num)
    assert last_complete == client.resume_point(agent_id).done
    return last_complete

def main():
    client = Statehouse()
    agent_id = "research-agent-001"
    # Check for resumable work
    task_state = client.get_state(agent_id=agent_id, key="task")
    if task_state.exists:
        last_step = find_resume_point(client, agent_id)
        answer = client.get_state(agent_id=agent_id, key="answer")
        if answer.exists:
            print(f"Task already complete: {answer.value}")
            return
        print(f"Resuming from step {last_step + 1}")
        agent_loop_from_step(client, agent_id, task_state.value["task"], last_step + 1)
    else:
        # New task
        task = input("Enter task: ")
        with client.begin_transaction() as tx:
            tx.write(agent_id=agent_id, key="task", value={"task": task})
        agent_loop_from_step(client, agent_id, task, 0)

sys.stdin = open("task.txt")
main()
'''
STEPS = ["0", "1", "2", "3"]


@pytest.mark.parametrize(
    "crash, asked, called",
    [
        # Not recorded: the decision is repeated.
        ("before:2", ["0", "1", "2", "2", "3"], 1),
        # Pending: the stored action again, with its id; the model is not asked.
        ("after:2", STEPS, 2),
        # Complete: on to the next step.
        ("done:2", STEPS, 1),
    ],
)
def test_the_articles_example_resumes_after_each_of_its_crash_points(home, life, crash, asked, called):
    (home / "task.txt").write_text("look it up\n")
    assert life(ARTICLE, crash).returncode == -signal.SIGKILL
    again = life(ARTICLE, ok=True)
    assert f"Resuming from step {3 if crash == 'done:2' else 2}" in again.stdout
    assert "Task already complete: {'found': '/search/3'}" in life(ARTICLE, ok=True).stdout

    def lines(name):
        return (home / name).read_text().splitlines()

    assert lines("asked.log") == asked
    assert [line.split()[1] for line in lines("done.log")] == [f"/search/{n}" for n in STEPS]
    of_two = [line for line in lines("called.log") if line.endswith("/2")]
    assert len(of_two) == called and len(set(of_two)) == 1


# --- transactions


def test_a_transaction_commits_on_a_clean_exit_and_aborts_on_an_exception(client):
    put(client, "a", {"n": 1})
    with pytest.raises(ZeroDivisionError), client.begin_transaction() as tx:
        tx.write(agent_id=ME, key="a", value={"n": 2})
        1 / 0
    state = client.get_state(agent_id=ME, key="a")
    assert (state.value, state.version, state.exists) == ({"n": 1}, 1, True)
    with pytest.raises(outlast.TransactionError, match="aborted"):
        tx.commit()
    tx.abort()


def test_a_transaction_reads_its_own_writes_and_else_what_stood_when_it_began(client):
    put(client, "old", 1)
    with client.begin_transaction() as tx:
        put(client, "old", 2)
        put(client, "new", 2)
        assert tx.get(agent_id=ME, key="old").value == 1
        assert not tx.get(agent_id=ME, key="new").exists
        tx.write(agent_id=ME, key="new", value="mine")
        tx.write(agent_id="other", key="new", value="theirs")
        assert tx.get(ME, "new").value == "mine"
        tx.delete(agent_id=ME, key="new")
        seen = tx.get(ME, "new")
        assert (seen.value, seen.exists, seen.version) == (None, False, 2)
        assert client.get_state(ME, "new").value == 2
        commit = tx.commit()
    states = [client.get_state(agent, "new") for agent in (ME, "other")]
    assert [(s.value, s.commit_ts) for s in states] == [(None, commit), ("theirs", commit)]
    assert client.transaction_outcome(tx.id) == commit
    assert client.transaction_outcome("txn_none") is None
    assert client.begin_transaction().commit() == 0


def test_a_conflict_names_both_versions_and_nothing_of_the_transaction_is_written(client):
    put(client, "k", 1)
    put(client, "k", 2, expect_version=1)
    with pytest.raises(outlast.Conflict) as e, client.begin_transaction() as tx:
        tx.write(agent_id=ME, key="else", value=1)
        tx.write(agent_id=ME, key="k", value=3, expect_version=1)
    assert e.value.code == "conflict" and "version 1" in str(e.value) and "2" in str(e.value), str(e.value)
    assert client.list_keys(ME) == ["k"] and client.get_state(ME, "k").version == 2
    put(client, "new", 1, expect_version=0)
    with pytest.raises(outlast.Conflict):
        client.delete_state(ME, "new", expect_version=0)
    client.delete_state(ME, "new", expect_version=1)
    assert client.get_state(ME, "new").version == 2


def test_with_first_committer_a_commit_fails_when_its_key_was_written_since_it_began(rt):
    client = Statehouse(store=rt, conflicts="first-committer")
    tx = client.begin_transaction()
    tx.write(agent_id=ME, key="k", value="late")
    put(client, "k", "first")
    with pytest.raises(outlast.Conflict, match="since the transaction began"):
        tx.commit()
    assert client.get_state(ME, "k").value == "first"


def test_a_transaction_expires_and_frees_what_it_held(client):
    tx = client.begin_transaction(timeout_ms=0)
    with pytest.raises(outlast.TransactionError, match="expired") as e:
        tx.write(agent_id=ME, key="k", value=1)
    assert e.value.code == "transaction_expired"
    left = client.begin_transaction(timeout_ms=1)
    states = client._backend._states
    left_over = threading.Event()
    for _ in range(600):
        if states.held() == (0, 0):
            break
        left_over.wait(0.01)
    assert states.held() == (0, 0), "nobody asked, and it is freed"
    with pytest.raises(outlast.TransactionError, match="expired"):
        left.commit()


def test_updates_of_eight_threads_are_all_counted(client):
    def work():
        for _ in range(25):
            client.update(ME, "counter", lambda old: {"n": (old or {"n": 0})["n"] + 1})

    threads = [threading.Thread(target=work) for _ in range(8)]
    [t.start() for t in threads]
    [t.join() for t in threads]
    state = client.get_state(ME, "counter")
    assert (state.value, state.version) == ({"n": 200}, 200)
    with pytest.raises(ZeroDivisionError):
        client.update(ME, "counter", lambda old: 1 / 0)
    assert client.get_state(ME, "counter").version == 200 and client._backend._states.held() == (0, 0)


def test_what_is_no_json_is_refused(client):
    for value in (float("nan"), {1, 2}, object(), "\ud800"):
        with pytest.raises(outlast.NotSerializable), client.begin_transaction() as tx:
            tx.write(agent_id=ME, key="k", value=value)
    nested = {"list": [{"a": None}, [1, 2.5, True, "é\0"]], "big": 2**70}
    put(client, "k", nested)
    assert client.get_state(ME, "k").value == nested


# --- reads


def test_versions_are_what_they_were_at_a_version_a_commit_and_a_time(client):
    put(client, "k", "one")
    put(client, "other", 0)
    put(client, "k", "two")
    client.delete_state(ME, "k")
    history = client.history(ME, "k")
    assert [(h.value, h.version, h.commit_ts, h.exists) for h in history] == [
        ("one", 1, 1, True), ("two", 2, 3, True), (None, 3, 4, False),
    ]  # fmt: skip
    times = [h.at for h in history]
    assert times == sorted(times) and times[0].tzinfo is datetime.timezone.utc

    def check(value, *version, **moment):
        assert client.get_state_at_version(ME, "k", *version, **moment).value == value

    check("one", 1)
    check("two", 2)
    check(None, 3)
    check("one", commit=2)
    check("two", commit=3)
    check(None, commit=4)
    check(None, commit=0)
    check("one", time=times[0])
    check("two", time=times[1].timestamp())
    check(None, time=times[0] - datetime.timedelta(seconds=1))
    assert not client.get_state_at_version(ME, "k", 4).exists
    with pytest.raises(ValueError):
        client.get_state_at_version(ME, "k")
    with pytest.raises(ValueError):
        client.get_state_at_version(ME, "k", 1, commit=1)
    gone = client.get_state(ME, "k")
    assert (gone.exists, gone.version) == (False, 3)
    never = client.get_state(ME, "never")
    assert (never.exists, never.version, never.value) == (False, 0, None)


def test_the_parts_of_a_name_are_never_joined(client):
    put(client, "c", "a:b/c", agent="a:b")
    put(client, "b:c", "a/b:c", agent="a")
    assert client.get_state("a:b", "c").value == "a:b/c"
    assert client.get_state("a", "b:c").value == "a/b:c"
    assert (client.list_keys("a:b"), client.list_keys("a")) == (["c"], ["b:c"])
    assert [e.operations[0].key for e in client.replay("a")] == ["b:c"]
    for key in ("", "\0", "%_é/", "🍵"):
        put(client, key, key, agent="odd")
        assert client.get_state("odd", key).value == key
    assert client.list_keys("odd") == sorted(("", "\0", "%_é/", "🍵"), key=str.encode)
    other = Statehouse(store=client._backend._store, namespace="elsewhere")
    assert not other.get_state("a", "b:c").exists and other.get_state("a", "b:c", namespace="default").exists


def test_ten_thousand_keys_are_listed_and_scanned_by_page(client):
    with client.begin_transaction() as tx:
        for i in range(10_000):
            tx.write(agent_id=ME, key=f"k{i:05}", value={"i": i})
    assert client.list_keys(ME) == [f"k{i:05}" for i in range(10_000)]
    assert client.list_keys(ME, prefix="k0999") == [f"k0999{i}" for i in range(10)]
    found = client.scan_prefix(ME, "k01")
    assert [(s.key, s.value["i"], s.version) for s in found] == [(f"k{i:05}", i, 1) for i in range(1000, 2000)]
    # A scan that is read on shows the moment it began at.
    scan = client.iter_prefix(ME, "")
    next(scan)
    client.delete_state(ME, "k09999")
    assert sum(1 for _ in scan) == 9_999
    (whole,) = itertools.islice(client.replay(ME), 1)
    assert len(whole.operations) == 10_000


def test_a_replay_has_only_this_agents_commits_and_both_of_its_ends(client):
    for i in range(1, 6):
        with client.begin_transaction() as tx:
            tx.write(agent_id=ME, key="k", value=i)
            tx.write(agent_id="other", key="k", value=-i)
            if i == 3:
                tx.delete(agent_id=ME, key="k")
    put(client, "k", 0, agent="other")

    def check(commits, **ends):
        assert [e.commit_ts for e in client.replay(agent_id=ME, **ends)] == commits

    check([1, 2, 3, 4, 5])
    check([2, 3, 4], start_ts=2, end_ts=4)
    check([4, 5], start_ts=4)
    check([1], end_ts=1)
    check([], start_ts=6)
    events = list(client.replay(ME))
    check([2, 3, 4, 5], start_time=events[1].at)
    check([1, 2], end_time=events[1].at)
    assert [(o.key, o.value, o.version, o.deleted) for o in events[2].operations] == [("k", 3, 3, False), ("k", None, 4, True)]
    assert events[0].txn_id and events[0].txn_id != events[1].txn_id


def test_a_replay_that_follows_gives_what_is_committed_later_and_ends_at_its_end(client):
    put(client, "k", 1)
    events = client.replay(ME, follow=True)
    assert next(events).operations[0].value == 1
    later = threading.Thread(target=put, args=(client, "k", 2))
    later.start()
    assert next(events).operations[0].value == 2
    later.join()
    put(client, "k", 3, agent="other")
    # Its end is another agent's commit.
    assert [e.commit_ts for e in client.replay(ME, end_ts=3, follow=True)] == [1, 2]


def test_a_replay_that_is_not_whole_warns():
    from outlast.state.reads import Events, Reads

    class Compacted(Reads):
        def told(self, **query):
            yield "compacted", 0, None
            yield "head", 0, 7

    events = Events(Compacted(), {"namespace": "default", "agent": ME})
    with pytest.warns(outlast.CompactedWarning):
        assert list(events.until_now()) == [] and events.head == 7


def test_a_resume_point_is_the_last_step_done_in_numeric_order_and_the_pending_key(client):
    def check(done, pending=None, prefix="step:"):
        point = client.resume_point(ME, prefix) if prefix != "step:" else client.resume_point(ME)
        assert point == outlast.ResumePoint(done, pending, None if pending is None else f"{prefix}{pending}")
        assert point.next == done + 1

    check(-1)
    put(client, "step:0", {"status": "pending"})
    check(-1, 0)
    for i in range(11):
        put(client, f"step:{i}", {"status": "done"})
    put(client, "step:11", {"status": "pending"})
    put(client, "step:x", {"status": "done"})
    check(10, 11)
    client.delete_state(ME, "step:11")
    check(10)
    check(-1, prefix="other:")


def test_what_is_written_against_the_published_client_runs_with_its_import_changed(client):
    """Bug: `StatehouseError`, `replay_events`, `replay_pretty` and `Transaction(client, id)` were not there, and the outcome of
    an empty commit was none. Consequence: programs of the client failed with only their import changed."""
    try:
        begun = client.begin_transaction()
        again = outlast.Transaction(client, begun.id)
        again.write(agent_id=ME, key="step:0", value={"text": "x" * 100})
        again.delete(agent_id=ME, key="gone")
        commit = again.commit()
        begun.write(agent_id=ME, key="step:1", value={})
    except outlast.StatehouseError as e:
        assert isinstance(e, outlast.TransactionError)
    from outlast.errors import ConnectionError, NotFoundError, StatehouseError, TransactionError

    assert all(issubclass(e, StatehouseError) for e in (ConnectionError, NotFoundError, TransactionError))
    (event,) = client.replay_events(ME, commit, commit, "default")
    assert f"agent_id={ME!r}" in repr(event)
    told = json.loads(json.dumps(event.to_dict()))
    assert (told["txn_id"], told["commit_ts"], told["agent_id"]) == (begun.id, commit, ME)
    assert told["operations"][1] == {"key": "gone", "value": None, "version": 1, "deleted": True}
    assert datetime.datetime.fromisoformat(told["at"].replace("Z", "+00:00")) == event.at
    assert [op.key for op in event.operations] == ["step:0", "gone"]
    when = f"{event.at:%H:%M:%SZ}"
    short, gone = client.replay_pretty(ME)
    assert short == f'{when}  agent={ME}  WRITE  key=step:0  v=1  {{"text":"{"x" * 70}…'
    assert gone == f"{when}  agent={ME}  DEL  key=gone  v=1"
    whole, gone = client.replay_pretty(ME, verbose=True)
    assert whole.endswith(f'{"x" * 100}"}}  txn={begun.id}  commit={commit}') and gone.endswith(f"v=1  txn={begun.id}  commit={commit}")
    empty = client.begin_transaction()
    assert (empty.commit(), client.transaction_outcome(empty.id)) == (0, 0)


def test_steps_with_leading_zeros_are_steps(client):
    """Bug: a loop over `step:0001`, … began from the start again. Cause: a number with leading zeros was taken for none."""
    for i in range(12):
        put(client, f"step:{i:02}", {"status": "pending"})
        assert client.resume_point(ME) == outlast.ResumePoint(i - 1, i, f"step:{i:02}")
        put(client, f"step:{i:02}", {"status": "done"})
    assert client.resume_point(ME) == outlast.ResumePoint(11)


def test_versions_and_history_continue_after_a_restart(home):
    for n in range(1, 4):
        rt = outlast.connect(home / "again.db")
        client = Statehouse(path=home / "again.db")
        put(client, "k", n)
        assert client.get_state(ME, "k").version == n
        assert [e.commit_ts for e in client.replay(ME)] == list(range(1, n + 1))
        rt.close()
    with Statehouse(path=home / "again.db") as client:
        assert client.get_state_at_version(ME, "k", 1).value == 1
        assert client.health() == "ok" and client.version()[0].startswith("outlast ")


def test_one_place_is_named_and_no_more():
    with pytest.raises(ValueError):
        Statehouse("localhost:1", path="x.db")
