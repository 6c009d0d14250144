"""`outlast.Statehouse`: the article's example killed at its crash points, and what a client of the state may rely on."""

import datetime
import itertools
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
    other = Statehouse(store=client._backend._runtime, namespace="elsewhere")
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
    from outlast.embedded import Events

    class Compacted:
        def head(self, namespace):
            return 7

        def events(self, *range):
            return True, []

    events = Events(Compacted(), "default", ME, None, None)
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


# --- under a run


def test_what_is_written_in_a_run_carries_the_run_and_its_attempt(rt, client):
    put(client, "k", 0)
    for life in range(1, 3):
        with pytest.raises(KeyError), rt.run("r"):
            put(client, "k", life)
            raise KeyError
    assert [(h.run, h.attempt) for h in client.history(ME, "k")] == [(None, None), ("r", 1), ("r", 2)]


def test_a_process_that_lost_its_run_writes_nothing(rt, client):
    with pytest.raises(outlast.LeaseLost), rt.run("r") as run:
        tx = client.begin_transaction()
        tx.write(agent_id=ME, key="k", value="stale")
        rt._live.pop("r")
        with rt.run("r", if_held="takeover"):
            pass
        assert rt.get("r").status == "completed" and run.id == "r"
        tx.commit()
    assert client.list_keys(ME) == []


def test_another_runs_namespace_is_read_only(rt, client):
    with rt.run("r") as run:
        run.state.put("k", 1)
    with pytest.raises(outlast.ReadOnlyNamespace):
        put(client, "k", 2, agent="", namespace="run:r")
    with rt.run("s") as run:
        with pytest.raises(outlast.ReadOnlyNamespace):
            run.step("s", put, client, "k", 2, agent="", namespace="run:r")
    assert client.get_state("", "k", namespace="run:r").value == 1


def test_a_runs_state_has_its_versions_and_history(rt):
    with rt.run("r") as run:
        run.state.put("k", "one")
        run.state.put("k", "two", expected=1)
        run.state.delete("k")
        assert [(h.value, h.version, h.run, h.attempt) for h in run.state.history("k")] == [
            ("one", 1, "r", 1), ("two", 2, "r", 1), (None, 3, "r", 1),
        ]  # fmt: skip
        assert run.state.at("k", version=1).value == "one"
        assert run.state.at("k", commit=2).value == "two"
        assert run.state.at("k", time=run.state.history("k")[0].at).exists
        assert run.state.get("k", "none") == "none" and run.state.get_versioned("k") == (3, None)


def test_a_step_reads_what_it_changed_and_nobody_else_does_before_its_result(rt, client):
    put(client, "n", 1)

    def work():
        run.state.put("plan", "a")
        run.context.set(task="t")
        with client.begin_transaction() as tx:
            seen = tx.get(ME, "n")
            tx.write(agent_id=ME, key="n", value=seen.value + 1, expect_version=seen.version)
        client.update(ME, "n", lambda n: n + 1)
        state = client.get_state(ME, "n")
        assert (state.value, state.version, state.commit_ts) == (3, 3, 0)
        assert run.state.get_versioned("plan") == (1, "a") and run.context.get("task") == "t"
        outside = threading.Thread(target=lambda: seen_outside.append((client.get_state(ME, "n").value, run.state.get("plan"))))
        outside.start()
        outside.join()
        return "done"

    seen_outside = []
    with rt.run("r") as run:
        assert run.step("work", work) == "done"
        assert seen_outside == [(1, None)]
        assert run.state.get("plan") == "a" and client.get_state(ME, "n").value == 3
        history = client.history(ME, "n")
        assert [h.version for h in history] == [1, 2, 3] and history[1].commit_ts == history[2].commit_ts
        assert history[2].run == "r"


def test_a_try_that_raises_leaves_nothing_in_the_state(rt, client):
    tries = []

    def work():
        tries.append(1)
        run.state.put("k", len(tries))
        put(client, "k", len(tries))
        if len(tries) == 1:
            raise OSError("once")
        return len(tries)

    with rt.run("r") as run:
        assert run.step("work", work, retries=outlast.Retry(2, base=0)) == 2
        assert [h.value for h in run.state.history("k")] == [2]
        assert [h.value for h in client.history(ME, "k")] == [2]


def test_a_step_whose_state_was_changed_meanwhile_fails_and_is_tried_again(rt, client):
    put(client, "n", 0)
    tries = []

    def work():
        tries.append(1)
        client.update(ME, "n", lambda n: n + 1)
        if len(tries) == 1:
            # Another writer, outside of the run.
            other = threading.Thread(target=put, args=(client, "n", 10))
            other.start()
            other.join()
        return len(tries)

    with rt.run("r") as run:
        assert run.step("work", work, retries=outlast.Retry(2, base=0)) == 2
        assert client.get_state(ME, "n").value == 11
        tries.clear()
        with pytest.raises(outlast.Conflict):
            run.step("again", work)
        assert client.get_state(ME, "n").value == 10


def test_an_async_steps_state_commits_with_its_result(rt, client):
    import asyncio

    async def work(i):
        await asyncio.sleep(0)
        run.state.put(f"k{i}", i)
        client.update(ME, f"k{i}", lambda _: i)
        return i

    async def main():
        global run
        async with rt.run("r") as run:
            assert await asyncio.gather(*(run.step("w", work, i) for i in range(5))) == list(range(5))
            assert [run.state.get(f"k{i}") for i in range(5)] == list(range(5))

    asyncio.run(main())
    assert client.list_keys(ME) == [f"k{i}" for i in range(5)]


def test_what_a_late_try_writes_is_dropped(rt):
    late, told = threading.Event(), []

    def work():
        late.wait(20)
        try:
            run.state.put("k", "late")
        except outlast.AlreadySettled as e:
            told.append(e)

    with rt.run("r") as run:
        with pytest.raises(outlast.StepTimeout):
            run.step("work", work, timeout=0.01)
        threads = [t for t in threading.enumerate() if t.name == "outlast step work"]
        late.set()
        [t.join() for t in threads]
        assert len(told) == 1 and run.state.get("k") is None


def test_a_completed_run_replays_and_changes_no_state(rt, client):
    def program():
        with rt.run("r") as run:
            put(client, "k", "outside of steps")
            run.state.put("k", 1)
            return run.step("s", lambda: client.update(ME, "n", lambda n: (n or 0) + 1).value)

    assert [program(), program()] == [1, 1]
    assert len(client.history(ME, "k")) == 1 and client.get_state(ME, "n").value == 1


STEP_AND_STATE = """
import os, signal, sys
import outlast
from outlast import Statehouse
from outlast.runs import Run

rt = outlast.connect("runs.db")
client = Statehouse(store=rt)
where = sys.argv[1] if len(sys.argv) > 1 else ""

def die(at):
    if where == at:
        os.kill(os.getpid(), signal.SIGKILL)

class Dying:
    def __init__(self, seat):
        self._seat = seat
    def __getattr__(self, name):
        return getattr(self._seat, name)
    def record(self, *args):
        die("before record")
        ticket = self._seat.record(*args)
        ticket.wait()
        die("after record")
        class Done:
            def wait(self): return None
        return Done()

def work():
    run.state.put("plan", "made")
    client.update("me", "n", lambda n: (n or 0) + 1)
    die("in the step")
    return "result"

with rt.run("r") as run:
    run._seat = Dying(run._seat)
    print(run.step("work", work))
"""


@pytest.mark.parametrize(
    "where, there", [("in the step", False), ("before record", False), ("after record", True)]
)
def test_a_steps_result_and_the_state_it_changed_are_both_there_or_neither(home, life, where, there):
    assert life(STEP_AND_STATE, where).returncode == -signal.SIGKILL
    with outlast.connect(home / "runs.db") as rt:
        client = Statehouse(store=rt)
        assert client.get_state("me", "n").exists == there
        assert client.get_state("", "plan", namespace="run:r").exists == there
    assert life(STEP_AND_STATE, ok=True).stdout == "result\n"
    with outlast.connect(home / "runs.db") as rt:
        client = Statehouse(store=rt)
        assert client.get_state("me", "n").version == client.get_state("", "plan", namespace="run:r").version == 1


def test_without_grpcio_a_url_says_what_is_missing(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "grpc", None)
    with pytest.raises(outlast.Error, match="grpcio") as e:
        Statehouse(url="localhost:50051")
    assert e.value.code == "no_grpcio" and "pip install" in e.value.hint
    with pytest.raises(ValueError):
        Statehouse("localhost:1", path="x.db")
