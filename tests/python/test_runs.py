"""Opening, leaving and resuming runs; budgets; who holds a run."""

import asyncio
import gc
import json
import os
import signal
import subprocess
import sys
import threading

import pytest

import outlast


def interrupted(rt, id, **kwargs):
    """A run with one recorded step, left by an exception."""
    with pytest.raises(ZeroDivisionError):
        with rt.run(id, **kwargs) as run:
            run.step("a", lambda: 1)
            raise ZeroDivisionError


def test_a_run_left_cleanly_is_completed_and_replays(rt):
    calls = []
    for _ in range(2):
        with rt.run("r") as run:
            assert run.step("a", lambda: calls.append(1) or 7) == 7
    assert calls == [1]
    assert rt.get("r").status == "completed"


def test_a_new_step_in_a_completed_run_is_refused(rt):
    with rt.run("r") as run:
        run.step("a", lambda: 1)
    with pytest.raises(outlast.RunCompleted) as error:
        with rt.run("r") as run:
            assert run.is_replay and run.step("a", lambda: 2) == 1
            run.loop(1)
            run.checkpoint("c", 1)
            run.step("b", lambda: 3)
    assert error.value.code == "run_completed" and error.value.hint
    assert rt.get("r").status == "completed" and rt.get("r").loops == 0


def test_an_exception_leaves_the_run_interrupted_and_it_goes_on(rt):
    interrupted(rt, "r")
    view = rt.get("r")
    assert (view.status, view.attempts, view.began_at is not None) == ("interrupted", 1, True)
    with rt.run("r") as run:
        assert run.attempt == 2 and run.step("a", lambda: 2) == 1
    # An exception is no death of the agent.
    assert rt.get("r").raw["restarts"] == 0


def test_async_with_opens_and_leaves_alike(rt):
    async def double(x):
        await asyncio.sleep(0)
        return 2 * x

    async def life():
        async with rt.run("r") as run:
            return await asyncio.gather(*(run.step("d", double, x) for x in (3, 1, 3)))

    assert asyncio.run(life()) == [6, 2, 6]
    assert asyncio.run(life()) == [6, 2, 6]
    assert rt.get("r").status == "completed"


def test_a_handle_is_of_no_use_outside_of_with(rt):
    run = rt.run("r")
    for use in (lambda: run.step("a", int), lambda: run.loop(), lambda: run.checkpoint("c", 1), lambda: run.state.put("k", 1)):
        with pytest.raises(outlast.RunNotOpen):
            use()
    with run:
        pass
    with pytest.raises(outlast.RunNotOpen):
        run.step("a", int)


def test_loops_count_each_key_once_and_stop_at_the_limit(rt):
    def turns(run):
        for i in range(10):
            run.loop(i)

    for _ in range(2):
        with pytest.raises(outlast.BudgetExceeded) as error:
            with rt.run("r", budget=outlast.Budget(loops=3)) as run:
                turns(run)
        assert error.value.code == "loop_budget_exceeded" and error.value.hint
    view = rt.get("r")
    assert (view.status, view.halt_code, view.loops) == ("halted", "loop_budget_exceeded", 3)
    with rt.run("r", budget=outlast.Budget(loops=12, amend=True)) as run:
        turns(run)
        assert run.loop() == 11
        assert run.loop() == 12
    assert rt.get("r").status == "completed"


def test_a_step_of_a_halted_run_tells_the_limit(rt):
    with pytest.raises(outlast.BudgetExceeded):
        with rt.run("r", budget=outlast.Budget(loops=0)) as run:
            with pytest.raises(outlast.BudgetExceeded):
                run.loop()
            run.step("a", lambda: 1)


def test_a_refusal_says_what_can_be_done_about_it_here(rt):
    """Bug: the hint named `outlast resume`, which has no command to start for a program that runs by itself."""
    from conftest import outlast_program

    for _ in range(2):
        with pytest.raises(outlast.BudgetExceeded) as error:
            with rt.run("r", budget=outlast.Budget(loops=0)) as run:
                run.loop()
        assert error.value.hint == f"raise it with `outlast budget r --add-loops 10 --store {rt.place}`, then start the program again"
    at = [outlast_program(), "--store", rt.place]
    subprocess.run([*at, "budget", "r", "--add-loops", "1"], check=True, capture_output=True, timeout=60)
    told = subprocess.run([*at, "resume", "r"], capture_output=True, text=True, timeout=60)
    assert told.returncode != 0 and "start its program again" in told.stderr
    with rt.run("r", budget=outlast.Budget(loops=0)) as run:
        assert run.loop() == 1


def test_a_program_that_runs_by_itself_is_not_told_to_be_resumed(rt, monkeypatch):
    """Bug: Python programs were told `outlast resume RUN`, which has no command to start for them."""
    assert "resume" not in outlast.errors.of("not_running", "run r is interrupted", "`outlast resume r`").hint

    def hint(supervised=None):
        if supervised:
            monkeypatch.setenv("OUTLAST_RUN_ID", supervised)
        with pytest.raises(outlast.BudgetExceeded) as error:
            with rt.run(f"under-{supervised}", budget=outlast.Budget(loops=0)) as run:
                run.loop()
        return error.value.hint

    assert hint().endswith("then start the program again")
    assert hint("nobody").endswith(f"then `outlast resume nobody --store {rt.place}`")


def test_another_limit_is_never_taken_silently(rt):
    interrupted(rt, "r", budget=outlast.Budget(usd=5, wall="1h"))
    interrupted(rt, "r", budget=outlast.Budget(usd="5.00"))
    interrupted(rt, "r")
    with pytest.raises(outlast.BudgetChanged, match="5.00 usd as its limit, and 40.00 usd"):
        rt.run("r", budget=outlast.Budget(usd=40)).__enter__()
    with rt.run("r", budget=outlast.Budget(usd=40, amend=True)):
        pass
    usd = rt.get("r").budget.usd
    assert (usd.limit, usd.spent, usd.reserved, usd.left) == (40, 0, 0, 40)
    assert rt.get("r").budget.wall.limit == 3600


def test_a_process_of_a_supervised_run_amends_no_limit(rt, monkeypatch):
    """Bug: `amend=True` in an agent's own script raised the limit that a person had given its run.

    Consequence: the agent could spend what it liked. Cause: Python asked nobody whose process it was.
    """
    interrupted(rt, "r", budget=outlast.Budget(usd=5))
    monkeypatch.setenv("OUTLAST_MARK", "m")
    with pytest.raises(outlast.BudgetChanged, match="5.00 usd as its limit, and 40.00 usd") as error:
        rt.run("r", budget=outlast.Budget(usd=40, amend=True)).__enter__()
    assert "a person does" in error.value.hint
    assert rt.get("r").budget.usd.limit == 5


def test_a_script_that_says_what_it_said_goes_on_after_a_person_raised_the_limit(rt):
    interrupted(rt, "r", budget=outlast.Budget(usd=5))
    rt._engine.amend(int(rt.get("r").raw["no"]), {"cost_nano_usd": 6_000_000_000})
    interrupted(rt, "r", budget=outlast.Budget(usd=5))
    assert rt.get("r").budget.usd.limit == 6


@pytest.mark.parametrize(
    "bad", [{"usd": -1}, {"usd": "x"}, {"usd": float("nan")}, {"loops": 1.5}, {"calls": -1}, {"wall": "soon"}, {"active": -1}]
)
def test_a_bad_limit_is_told_where_it_is_made(bad):
    with pytest.raises(outlast.BadLimit):
        outlast.Budget(**bad)


def test_a_run_without_a_budget_may_spend_five_dollars_and_says_so(rt, capfd):
    with rt.run("r"):
        pass
    assert "run r may spend 5.00 usd" in capfd.readouterr().err
    assert rt.get("r").budget.usd.limit == 5


def test_time_is_a_limit_too(rt):
    with pytest.raises(outlast.BudgetExceeded) as error:
        with rt.run("r", budget=outlast.Budget(wall=0)) as run:
            run.loop()
    assert error.value.code == "time_budget_exceeded"


def test_unknown_and_impossible_ids_are_named(rt):
    for unknown in ("nope", "not an id"):
        for look in (rt.get, rt.resume_run):
            with pytest.raises(outlast.UnknownRun, match=unknown):
                look(unknown)
    with pytest.raises(outlast.Error, match="not a run id"):
        rt.run("a b").__enter__()


def test_checkpoints_context_and_state_outlive_a_life(rt):
    with pytest.raises(ZeroDivisionError):
        with rt.run("r") as run:
            assert run.latest_checkpoint("c") is None
            run.checkpoint("c", {"i": 1})
            run.checkpoint("c", {"i": 2})
            run.context.set(task_id="1411", step=[1])
            run.state.put("notes", {"a": 1})
            run.state.put("gone", 1)
            run.state.delete("gone")
            raise ZeroDivisionError
    with rt.run("r") as run:
        assert run.latest_checkpoint("c") == {"i": 2}
        assert (run.context.get("task_id"), run.context.get("step")) == ("1411", [1])
        assert run.state.get_versioned("notes") == (1, {"a": 1})
        assert run.state.get("gone", "no") == "no"
        with pytest.raises(outlast.Conflict):
            run.state.put("notes", 2, expected=7)


def test_resume_run_claims_nothing_until_its_first_step(rt):
    interrupted(rt, "run_abc123")
    resumed = outlast.Runtime(rt.place).resume_run("run_abc123")
    assert rt.get("run_abc123").status == "interrupted"
    assert resumed.step("a", lambda: 2) == 1
    assert rt.get("run_abc123").status == "running"
    with resumed:
        resumed.loop(1)
    assert rt.get("run_abc123").status == "completed"


def test_the_first_steps_of_a_resumed_run_may_be_several_threads(rt):
    """Bug: one of them opened it, and the others were told that it was open already."""
    from concurrent.futures import ThreadPoolExecutor

    interrupted(rt, "r")
    resumed, ready = rt.resume_run("r"), threading.Barrier(8)
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(lambda i: ready.wait() is None or resumed.step("s", lambda i: i, i), range(8))) == list(range(8))
    with resumed:
        assert resumed.attempt == 2


def test_a_second_handle_in_the_process_is_refused_and_can_take_over(rt):
    with rt.run("r") as run:
        with pytest.raises(outlast.RunHeld, match="in this process"):
            rt.run("r").__enter__()
        with rt.run("r", if_held="takeover") as other:
            assert other.attempt == 2
            with pytest.raises(outlast.RunNotOpen):
                run.step("a", int)


def test_one_of_many_threads_opens_a_run(rt):
    """Bug: two of them did, at the same moment. Cause: a process may claim what it holds, and was asked before it was noted."""
    for round in range(20):
        interrupted(rt, f"r{round}")
        ready, told = threading.Barrier(4), []
        done = threading.Barrier(4)

        def open_it():
            ready.wait()
            try:
                with rt.run(f"r{round}"):
                    told.append("open")
                    done.wait()
            except outlast.RunHeld:
                told.append("held")
                done.wait()

        threads = [threading.Thread(target=open_it) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(told) == ["held"] * 3 + ["open"]


def test_a_run_whose_opening_was_cancelled_can_be_opened_again(rt):
    """Bug: it was open in this process for ever, and nobody had its handle."""

    async def life(id):
        async with rt.run(id) as run:
            return run.step("a", lambda: 1)

    async def impatient(id, turns):
        interrupted(rt, id)
        opening = asyncio.ensure_future(life(id))
        for _ in range(turns):
            await asyncio.sleep(0)
        opening.cancel()
        try:
            # It may have come to its end before it was cancelled, but for the one that had no turn.
            return await opening if turns else pytest.fail(f"{await opening} was not cancelled")
        except asyncio.CancelledError:
            return await life(id)

    for turns in range(6):
        assert asyncio.run(impatient(f"r{turns}", turns)) == 1
        assert rt.get(f"r{turns}").status == "completed"


def test_ctrl_c_when_the_run_is_just_open_leaves_it(rt, monkeypatch):
    interrupted(rt, "r")
    run = rt.run("r")
    opened = run._open

    def open_and_interrupt():
        opened()
        raise KeyboardInterrupt

    monkeypatch.setattr(run, "_open", open_and_interrupt)
    with pytest.raises(KeyboardInterrupt):
        run.__enter__()
    assert rt.get("r").status == "interrupted"
    with rt.run("r") as again:
        assert again.step("a", lambda: 2) == 1


def test_a_handle_whose_opening_failed_leaves_the_run_to_others(rt, monkeypatch):
    interrupted(rt, "r")
    from outlast.steps import memory

    def fail(*_):
        raise OSError("the store went away")

    with monkeypatch.context() as patched:
        patched.setattr(memory.Memory, "begin", fail)
        run = rt.run("r")
        with pytest.raises(OSError):
            run.__enter__()
    assert rt.get("r").status == "interrupted"
    with rt.run("r") as again:
        assert again.step("a", lambda: 2) == 1


@pytest.mark.parametrize(
    "bad, words",
    [
        ({"budget": 5}, "budget wants outlast.Budget"),
        ({"budget": {"usd": 5}}, "budget wants outlast.Budget"),
        ({"tags": {"n": 1}}, "tag 'n' wants a text, had 1"),
        ({"tags": "search"}, "tags wants texts by name"),
        ({"name": 3}, "name wants a text, had 3"),
        ({"id": 42}, "id wants a text, had 42"),
    ],
)
def test_what_a_run_is_not_made_of_is_told_at_once(rt, bad, words):
    with pytest.raises(TypeError, match=words):
        rt.run(**{"id": "r", **bad})


def test_a_forked_child_is_told_and_its_parent_goes_on(rt):
    interrupted(rt, "r")
    with rt.run("r") as run:
        told, tell = os.pipe()
        child = os.fork()
        if child == 0:
            words = []
            for recorded in ("a", "b"):
                try:
                    run.step(recorded, lambda: 2)
                except outlast.ForkedHandle as e:
                    words.append(e.code)
            try:
                outlast.connect(rt.place)
            except outlast.StoreError as e:
                words.append(e.code)
            os.write(tell, " ".join(words).encode())
            os._exit(0)
        os.close(tell)
        assert os.read(told, 100) == b"forked_handle forked_handle store_forked"
        os.waitpid(child, 0)
        assert run.step("b", lambda: 4) == 4


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_multiprocessing_with_an_open_store_ends(life, home, method):
    done = life(
        f"""
        import multiprocessing, outlast

        def work(n):
            with outlast.connect("m.db").run(f"w{{n}}") as run:
                return run.step("s", lambda: n * n)

        if __name__ == "__main__":
            rt = outlast.connect("m.db")
            with rt.run("parent") as run:
                with multiprocessing.get_context("{method}").Pool(2) as pool:
                    print(pool.map(work, range(4)))
                print(run.step("after", lambda: "ok"))
        """,
        ok=True,
    )
    assert "[0, 1, 4, 9]" in done.stdout and "ok" in done.stdout


def test_an_exit_with_work_in_flight_neither_hangs_nor_crashes(life, home):
    done = life(
        """
        import sys, threading, time, outlast
        rt = outlast.connect("x.db")
        run = rt.run("r").__enter__()
        started = threading.Event()

        def busy(n):
            while True:
                run.step("s", lambda i: started.set() or i, n)
                n += 100

        for n in range(4):
            threading.Thread(target=busy, args=(n,), daemon=True).start()
        started.wait()
        sys.exit(3)
        """
    )
    assert done.returncode == 3, done.stderr
    assert "panicked" not in done.stderr
    rt = outlast.connect(home / "x.db")
    assert rt.get("r").status == "interrupted"
    rt.close()


@pytest.fixture
def interruptible():
    """A shell's background job ignores SIGINT, and so does what it starts."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def test_keyboard_interrupt_in_a_step_leaves_it_to_be_run_again(rt, interruptible):
    def interrupt():
        signal.raise_signal(signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        with rt.run("r") as run:
            run.step("a", interrupt)
    assert rt.get("r").status == "interrupted"
    with rt.run("r") as run:
        assert run.step("a", lambda: 5) == 5


def test_cells_of_a_notebook_can_be_run_twice_in_a_running_loop(rt):
    async def notebook():
        for _ in range(2):
            again = outlast.connect(rt.place)
            assert again is rt
            with again.run("nb") as run:
                value = run.step("a", lambda: 1)
            async with again.run("nb2") as run:
                assert value == 1 and run.step("b", lambda: 2) == 2

    asyncio.run(notebook())


def test_the_command_line_sees_these_runs(rt):
    from conftest import outlast_program

    with rt.run("seen", tags={"team": "search"}) as run:
        run.step("a", lambda: 1)
    for words in (["ls"], ["show", "seen"], ["journal", "seen"]):
        done = subprocess.run([outlast_program(), "--store", rt.place, *words], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0 and "seen" in done.stdout + done.stderr or words[0] == "journal", done

def test_a_forked_process_can_drop_what_it_inherited(tmp_path):
    """Bug: a fork's garbage collection ended the store of the process it came from, and waited for its thread.
    Consequence: the fork hung for ever, with the interpreter's lock.
    Cause: a commit in a kept traceback held the last reference to the store."""
    runtime = outlast.connect(tmp_path / "forked.db")
    held = []
    with runtime.run("r", budget=outlast.Budget(usd=1)) as run:
        held.append(run._open_run.checkpoint("kept", b"1"))
        pid = os.fork()
        if pid == 0:
            runtime = run = None
            held.clear()
            gc.collect()
            os._exit(0)
        reader = threading.Timer(20, os.kill, (pid, 9))
        reader.start()
        _, status = os.waitpid(pid, 0)
        reader.cancel()
        assert os.waitstatus_to_exitcode(status) == 0
        held.clear()
    assert runtime.get("r").status == "completed"
    runtime.close()


def test_the_context_is_mirrored_in_the_runs_own_file(rt, home):
    with rt.run("r") as run:
        run.context.set(task_id="it's \"T\"\n7", step=[1])
        file = home / "runs.db.runs" / "r" / "active_state.json"
        told = json.loads(file.read_text())
        assert (told["task_id"], told["context"], told["attempt"]) == ("it's \"T\"\n7", {"step": [1]}, 1)
        assert file.stat().st_mode & 0o777 == 0o600

        run.step("work", lambda: run.context.set(progress_stage="in a step"))
        assert json.loads(file.read_text())["progress_stage"] == "in a step"
