"""How a batch begins and ends for people: what is told, Ctrl-C, cancellation, a process or a store that is gone."""

import asyncio
import gc
import os
import shlex
import subprocess
import sys
import textwrap
import threading
import time

import pytest

import outlast
from batches import Work, batch, until
from conftest import SOURCES
from outlast.batch import progress


def test_the_start_is_told_in_one_line(rt, capfd):
    told = {}
    for life in (1, 2):
        batch(rt, range(3), Work(), budget=outlast.Budget(usd=1)).wait()
        told[life] = capfd.readouterr().err.splitlines()
    assert told[1][0] == f"outlast: new job j: 3 items, store {rt.place}"
    assert told[2][0] == f"outlast: resuming: 3 of 3 done, 0.00 usd spent, store {rt.place}"
    assert not any("/s" in line for line in told[1]), "no progress where nobody looks"


def test_progress_is_lines_where_it_is_asked_for_and_nobody_is_at_a_terminal(rt, capfd):
    batch(rt, range(3), Work(), progress=True).wait()
    assert "j: 3 of 3" in capfd.readouterr().err


def test_progress_tells_rate_time_left_and_cost():
    stats = progress.Stats(total=100, done=55, cached=10, failed=5, cost_usd=3.0, seconds=10.0)
    assert progress.line(stats, 10, 1.0) == "60 of 100, 5.0/s, 0:08 left, 55 done, 10 cached, 5 failed, 3.00 usd, 4.60 in all"


def test_a_store_that_does_not_last_is_warned_of(monkeypatch, tmp_path):
    mounts = tmp_path / "mounts"
    mounts.write_text("d / ext4 rw 0 0\nt /dev/shm tmpfs rw 0 0\no /box overlay rw 0 0\n")
    real = open
    monkeypatch.setattr("builtins.open", lambda path, *a, **k: real(mounts if path == "/proc/self/mounts" else path, *a, **k))
    for place, kind in (("/home/x.db", None), ("/dev/shm/x.db", "tmpfs"), ("/box/a/x.db", "overlay"), ("postgres://h/d", None)):
        assert progress.fleeting(place) == kind


def test_ctrl_c_finishes_what_runs_and_raises(rt, capfd):
    started, gate = threading.Event(), threading.Event()

    def fn(i):
        started.set()
        gate.wait(20)
        return i

    class Interrupted(threading.Condition):
        def wait(self, timeout=None):
            if threading.current_thread() is threading.main_thread() and not gate.is_set():
                self._lock.release()
                started.wait(20)
                self._lock.acquire()
                gate.set()
                raise KeyboardInterrupt
            return super().wait(timeout)

    out = batch(rt, range(100), fn, concurrency=2)
    core = out._core
    with core.lock:
        core.bell.condition.__class__ = Interrupted
    with pytest.raises(KeyboardInterrupt):
        out.wait()
    assert "start it again to go on" in capfd.readouterr().err
    assert 1 <= out.stats.done <= 2 and rt.get("j").status == "interrupted"
    assert outlast.job("j", store=rt).counts["open"] == 0, "nothing is left open"


def test_a_cancelled_batch_finishes_what_runs(rt):
    async def main():
        full, cancelled = asyncio.Event(), asyncio.Event()
        started, ended = [], []

        async def fn(i):
            started.append(i)
            if len(started) == 4:
                full.set()
            await cancelled.wait()
            ended.append(i)
            return i

        out = outlast.amap(list(range(100)), fn, job="j", concurrency=4)
        task = asyncio.create_task(out.wait())
        await full.wait()
        task.cancel()
        # It hears of it before any item ends.
        await asyncio.sleep(0)
        cancelled.set()
        with pytest.raises(asyncio.CancelledError):
            await task
        return out.stats.done, len(ended)

    assert asyncio.run(main()) == (4, 4)


def test_a_process_that_ends_with_work_in_flight_finishes_it(home, life):
    program = """
        import outlast, time
        rt = outlast.connect("runs.db")
        out = outlast.map(range(1000), lambda i: time.sleep(0.05) or i, job="j", key=str, concurrency=4)
        next(out)
    """
    life(program, ok=True)
    rt = outlast.connect(home / "runs.db")
    counts = outlast.job("j").counts
    rt.close()
    assert 4 <= counts["done"] < 1000 and counts["open"] == 0


def test_a_store_that_vanishes_stops_the_batch(home):
    rt = outlast.connect(home / "gone.db")

    def fn(i):
        if i == 20:
            for path in home.glob("gone.db*"):
                path.unlink()
        time.sleep(0.02)
        return i

    out = batch(rt, range(100_000), fn)
    with pytest.raises(outlast.StoreError) as error:
        out.wait()
    assert error.value.code == "store_vanished"
    rt.close()


def test_a_batch_that_nobody_holds_stops_and_says_so(rt, capfd):
    gate = threading.Event()

    def fn(i):
        gate.wait(20)
        return i

    batch(rt, range(100), fn)
    gc.collect()
    assert "job j stops with 100 of 100 items not done: nobody holds its results any more" in capfd.readouterr().err
    gate.set()
    until(lambda: rt.get("j").status == "interrupted")
    assert outlast.job("j", store=rt).counts["done"] <= 4


def test_an_async_batch_that_nobody_holds_stops_and_says_so(rt, capfd):
    async def main():
        async def fn(i):
            await asyncio.sleep(0.01)
            return i

        async for _ in outlast.amap(range(100), fn, job="j", concurrency=4):
            break
        gc.collect()
        while rt.get("j").status != "interrupted":
            await asyncio.sleep(0.01)
        return outlast.job("j").counts

    counts = asyncio.run(main())
    assert 4 <= counts["done"] <= 12 and counts["open"] == 0
    assert "nobody holds its results any more" in capfd.readouterr().err


def test_several_tasks_may_read_one_batch(rt):
    async def main():
        ran, got = [], []

        async def fn(i):
            ran.append(i)
            await asyncio.sleep(0)
            return i

        out = outlast.amap(range(50), fn, job="j", concurrency=4)

        async def read():
            async for r in out:
                got.append(r.value)

        await asyncio.gather(read(), read())
        return sorted(ran), sorted(got)

    assert asyncio.run(main()) == (list(range(50)), sorted(2 * list(range(50)))), "each gets all"


def test_a_batch_that_is_cancelled_while_it_begins_leaves_nothing_open(rt):
    async def fn(i):
        return i

    def slow():
        begun.set()
        gate.wait(20)
        yield 1

    async def main():
        out = outlast.amap(slow(), fn, job="j")
        task = asyncio.create_task(out.wait())
        await asyncio.to_thread(begun.wait, 20)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        gate.set()
        with pytest.raises(RuntimeError, match="cancelled while it began"):
            await out

    begun, gate = threading.Event(), threading.Event()
    asyncio.run(main())
    assert rt.get("j").status == "interrupted" and rt.get("j").raw["attempt_count"] == 1


@pytest.mark.parametrize("close", ["2>&-", "2>/dev/full"])
def test_a_batch_runs_where_nobody_can_be_told(home, close):
    program = """
        import outlast
        rt = outlast.connect("runs.db")
        out = outlast.map(range(30), lambda i: i, job="j", key=str, progress=True).wait()
        print(out.stats.done)
    """
    (home / "program.py").write_text(textwrap.dedent(program))
    command = f"exec {shlex.quote(sys.executable)} program.py {close}"
    environment = {**os.environ, "PYTHONPATH": str(SOURCES)}
    done = subprocess.run(["sh", "-c", command], cwd=home, env=environment, stdout=subprocess.PIPE, text=True, timeout=60)
    assert done.stdout == "30\n"


@pytest.mark.parametrize(
    "argv, wanted",
    [
        ([__file__, "--all", "a file"], f"{__file__} --all 'a file'"),
        (["-c"], None),
        ([""], None),
        (["/usr/lib/python3/site-packages/ipykernel_launcher.py", "-f", "x.json"], None),
    ],
)
def test_how_to_go_on_is_told_as_it_is_typed(monkeypatch, argv, wanted):
    monkeypatch.setattr(sys, "argv", argv)
    hint = progress.resume_hint()
    assert hint == "start it again to go on" if wanted is None else hint.endswith(wanted)
