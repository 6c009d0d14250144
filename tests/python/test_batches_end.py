"""How a batch begins and ends for people: what is told, Ctrl-C, cancellation, a process or a store that is gone."""

import asyncio
import gc
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time

import pytest

import outlast
from batches import Work, batch, until
from conftest import SOURCES
from outlast.batch import core, progress


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
    wanted = ["60 of 100", "5.0/s, 0:08 left", "55 done", "10 cached", "5 failed", "3.00 usd, about 4.60 in all"]
    assert progress.line(stats, 10, 1.0) == wanted
    stats.waits_for = "openai fails with 503"
    assert progress.line(stats, 10, 1.0)[1] == "waits: openai fails with 503", "no pace while nothing ends"
    stats.waits_for = None
    stats.elsewhere = 20
    assert progress.line(stats, 10, 1.0)[:3] == ["80 of 100", "7.0/s, 0:02 left", "75 done"], "what other processes did counts"


def test_progress_counts_what_others_ended_meanwhile(rt):
    """Bug: with two processes on one job, each told its own pace, and the time that it would have taken alone."""
    go = threading.Event()

    def fn(i):
        assert i or go.wait(60)
        return i

    # A batch of its own has an attempt and counts of its own, as another process has.
    first = batch(rt, range(10), fn, concurrency=1)
    until(lambda: outlast.job("j", store=rt).counts["open"] and next(outlast.job("j", store=rt).items("open"), None))
    other = batch(rt, range(10), fn)
    until(lambda: other.stats.done == 9)
    assert (first.stats.done, first.stats.elsewhere) == (0, 9)
    assert progress.line(first.stats, 0, 0.0)[0] == "9 of 10"
    go.set()
    assert first.wait().stats.done == other.wait().stats.done == 10
    assert (first.stats.elsewhere, other.stats.elsewhere) == (0, 0)


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
    assert not list(outlast.job("j", store=rt).items("open")), "nothing is left open"


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
    job = outlast.job("j")
    counts, begun = job.counts, list(job.items("open"))
    rt.close()
    assert 4 <= counts["done"] < 1000 and not begun
    assert sum(counts.values()) == 1000, "each item is counted once"


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
    told = re.search(r"nobody holds its results any more: (?:what runs \((\d) items?\) is finished, and )?(\d+) of 100 items", capfd.readouterr().err)
    running, left = int(told[1] or 0), int(told[2])
    gate.set()
    until(lambda: rt.get("j").status == "interrupted")
    assert outlast.job("j", store=rt).counts["done"] == running == 100 - left


# Bug: a batch whose items all ran when its handle was dropped was told to stop with some of them not done.
# Consequence: all were done then, and its job was interrupted for good reason of nothing. Cause: what runs counted as left.
def test_a_batch_that_is_dropped_while_its_last_items_run_is_completed(rt, capfd):
    gate, started = threading.Event(), threading.Barrier(4)

    def fn(i):
        started.wait(20)
        gate.wait(20)
        return i

    out = batch(rt, range(3), fn, concurrency=3)
    started.wait(20)
    inner = out._core
    del out
    gc.collect()
    assert "what runs (3 items) is finished, and nothing is left" in capfd.readouterr().err
    gate.set()
    until(lambda: inner.over)
    assert rt.get("j").status == "completed" and outlast.job("j", store=rt).counts["done"] == 3


def test_ctrl_c_while_the_provider_is_away_gives_back_what_runs(rt, capfd, monkeypatch):
    monkeypatch.setattr(core, "LOOK_S", 0.01)
    started, gate = threading.Event(), threading.Event()

    def fn(i):
        if i == 1:
            started.set()
            gate.wait(20)
        return i

    out = batch(rt, range(10), fn, concurrency=1)
    assert started.wait(20)
    monkeypatch.setattr(out._core, "away", lambda: "openai cannot be reached")
    out._interrupted()
    assert "job j: openai cannot be reached, so that what runs goes back to pending" in capfd.readouterr().err
    job = outlast.job("j", store=rt)
    assert (rt.get("j").status, job.counts["done"], job.counts["open"]) == ("interrupted", 1, 9)
    assert [item.deaths for item in job.items("open")] == [0], "nobody died of it"
    gate.set()
    for thread in out._core.threads:
        thread.join(20)
    assert job.counts["done"] == 1, "what was given back is not recorded"
    again = batch(rt, range(10), Work())
    assert [r.value for r in again] == list(range(10)) and again.stats.cached == 1


AWAY = """
    import openai, outlast, sys
    client = openai.OpenAI(**outlast.openai())

    def ask(i):
        answer = client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": f"q{i}"}])
        return answer.choices[0].message.content

    outlast.map(range(12), ask, job="j", key=str, concurrency=2, retries=outlast.Retry(3, base=0), store="runs.db").wait()
"""


# Bug: a batch whose provider was away said nothing for minutes, and Ctrl-C waited as long. Cause: the proxy of a Python
# process had no observer, and what runs was waited for, whatever held it up.
def test_an_outage_is_told_and_ctrl_c_does_not_wait_for_its_end(home):
    program = home / "away.py"
    program.write_text(textwrap.dedent(AWAY))
    with socket.socket() as nobody:
        # Bound, and not listening: whoever connects is refused.
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}"
        env = {**os.environ, "PYTHONPATH": str(SOURCES), "OPENAI_API_KEY": "k", "OUTLAST_OPENAI_BASE_URL": url}
        with subprocess.Popen([sys.executable, str(program)], cwd=home, env=env, stderr=subprocess.PIPE, text=True) as process:
            told = next(line for line in process.stderr if "waiting:" in line)
            process.send_signal(signal.SIGINT)
            rest = process.stderr.read()
    assert "openai cannot be reached" in told and "its calls are held until it answers again" in told
    assert "so that what runs goes back to pending" in rest and "KeyboardInterrupt" in rest
    with outlast.connect(home / "runs.db") as rt:
        assert rt.get("j").status == "interrupted"
        assert all(item.deaths == 0 for item in outlast.job("j", store=rt).items("open"))


# Bug: an outage stopped a batch, and its hint said that it goes on by itself. Cause: the item whose call the outage cut off went
# back as one that found no room in a budget above the job's own, which only a person can bring.
def test_a_batch_goes_on_by_itself_when_its_provider_answers_again(home):
    program = home / "away.py"
    program.write_text(textwrap.dedent(AWAY))
    command = [os.environ["OUTLAST_BIN"], "mock", "--listen", "127.0.0.1:0", "--outage", "ok 4 calls, reset 1s"]
    with subprocess.Popen(command, cwd=home, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as provider:
        url = provider.stdout.readline().strip()
        env = {**os.environ, "PYTHONPATH": str(SOURCES), "OPENAI_API_KEY": "k", "OUTLAST_OPENAI_BASE_URL": url}
        ended = subprocess.run([sys.executable, str(program)], cwd=home, env=env, capture_output=True, text=True, timeout=120)
        provider.kill()
    assert ended.returncode == 0, ended.stderr
    assert "openai closes connections without an answer" in ended.stderr and "openai answers again" in ended.stderr
    with outlast.connect(home / "runs.db") as rt:
        assert (rt.get("j").status, outlast.job("j", store=rt).counts["done"]) == ("completed", 12)


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
    assert 4 <= counts["done"] <= 12 and not list(outlast.job("j", store=rt).items("open"))
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
