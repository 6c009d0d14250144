"""The state under a run: who may write it, and what commits with a step's result."""

import asyncio
import signal
import threading

import pytest

import outlast
from outlast import Statehouse
from test_statehouse import ME, put


@pytest.fixture
def client(rt):
    return Statehouse(store=rt)


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
    def __init__(self, open_run):
        self._open_run = open_run
    def __getattr__(self, name):
        return getattr(self._open_run, name)
    def record(self, *args):
        die("before record")
        ticket = self._open_run.record(*args)
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
    run._open_run = Dying(run._open_run)
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
