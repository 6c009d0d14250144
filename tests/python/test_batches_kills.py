"""kill -9 at every item of a batch: no finished item runs again, none is lost, the outcome is that of a clean run.

A dozen of the kill points by default; all of them with OUTLAST_TEST_ALL_KILLS=1.
"""

import asyncio
import http.client
import json
import os
import signal
import subprocess
import sys
import threading
import traceback
from urllib.parse import urlsplit

import pytest

import outlast
from conftest import outlast_program
from outlast import _native

ITEMS, WORKERS = 500, 16

ALL = bool(os.environ.get("OUTLAST_TEST_ALL_KILLS"))

POINTS = range(1, ITEMS + 1) if ALL else (1, 2, 16, 17, 33, 90, 181, 256, 399, 484, 499, 500)

# The item of the first life and, of those that were left, that of the second.
TWICE = [(at, 1 + at * 7 % (ITEMS - at)) for at in range(1, ITEMS)] if ALL else [(3, 1), (100, 16), (250, 249)]

# Where one of two processes dies.
BESIDE = range(1, ITEMS + 1) if ALL else (1, 60, 200)


@pytest.fixture(autouse=True)
def unsynced(monkeypatch):
    """A killed process needs no disk to be survived: the order of commits is the same, and the tests are quick."""
    monkeypatch.setenv("OUTLAST_DURABILITY", "process")


def die():
    os.kill(os.getpid(), signal.SIGKILL)


class Countdown:
    """Kills this process at the n-th time that it is passed, by whichever thread; 0: never."""

    def __init__(self, at):
        self._left, self._lock = at, threading.Lock()

    def passed(self):
        with self._lock:
            self._left -= 1
            return self._left == 0


class Killed:
    """A ticket whose waiter never hears of it."""

    def __init__(self, ticket):
        self._ticket = ticket

    def wait(self):
        self._ticket.wait()
        die()

    def awaited(self):
        future = self._ticket.awaited()
        # Called before the task that waits goes on: callbacks are called in the order in which they were added.
        future.add_done_callback(lambda _: die())
        return future


def kill_at(where, at):
    """Lets this process kill itself at its n-th item: in the function, before its record, or when that is on disk."""
    countdown = Countdown(at)
    record = _native.record_item

    def recording(*args):
        mine = at and countdown.passed()
        if mine and where == "before":
            die()
        ticket = record(*args)
        return Killed(ticket) if mine and where == "after" else ticket

    if where != "within":
        _native.record_item = recording
    return lambda: where == "within" and at and countdown.passed() and die()


class Bed:
    """A store, and a file to which each item that runs adds a line."""

    def __init__(self, home, name, aio=False, ask=None):
        self.store, self.job, self.aio, self.ask = home / "runs.db", name, aio, ask
        self.log, self.out = home / f"{name}.log", home / f"{name}.out"

    def effect(self, i, check):
        with open(self.log, "a") as log:
            log.write(f"{i}\n")
        check()
        answer = self.ask(i) if self.ask else None
        return {"i": i, "square": i * i, "answer": answer}

    def body(self, where, at):
        check = kill_at(where, at)
        rt = outlast.connect(self.store)
        try:
            done = {item.key for item in outlast.job(self.job).items(status="done")}
        except outlast.UnknownRun:
            done = set()
        before = len(self.ran())
        given = {"job": self.job, "key": str, "concurrency": WORKERS, "out": f"{self.out}.{os.getpid()}.jsonl"}
        if self.aio:

            async def fn(i):
                await asyncio.sleep(0)
                return self.effect(i, check)

            async def main():
                return await outlast.amap(range(ITEMS), fn, **given)

            out = asyncio.run(main())
        else:
            out = outlast.map(range(ITEMS), lambda i: self.effect(i, check), **given).wait()
        assert out.stats.done == ITEMS
        os.replace(given["out"], self.out)
        again = done & set(map(str, self.ran()[before:]))
        assert not again, f"finished items ran again: {again}"
        rt.close()

    def start(self, at=0, where="within"):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                sys.stderr = open(os.devnull, "w")
                self.body(where, at)
                code = 0
            except BaseException:
                sys.stderr = sys.__stderr__
                traceback.print_exc()
            finally:
                os._exit(code)
        return child

    def life(self, at=0, where="within"):
        """One life; True: it came to its end, False: it was killed."""
        return ended(self.start(at, where))

    def ran(self):
        return [int(line) for line in self.log.read_text().split()] if self.log.exists() else []

    def check(self, kills):
        lines = [json.loads(line) for line in self.out.read_text().splitlines()]
        wanted = [{"i": i, "square": i * i} for i in range(ITEMS)]
        assert [(x["key"], x["ok"]) for x in lines] == [(str(i), True) for i in range(ITEMS)]
        assert [{"i": x["value"]["i"], "square": x["value"]["square"]} for x in lines] == wanted
        ran = self.ran()
        assert set(ran) == set(range(ITEMS)), "an item is lost"
        assert len(ran) <= ITEMS + kills * WORKERS, f"{len(ran) - ITEMS} items ran again"


def ended(child):
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL), f"exit {status}"
    return status == 0


@pytest.mark.parametrize("aio", [False, True], ids=["threads", "asyncio"])
def test_a_batch_killed_at_any_item_goes_on_where_it_was(home, aio):
    for n, at in enumerate(POINTS):
        bed = Bed(home, f"k{at}", aio)
        assert not bed.life(at, ("within", "before", "after")[n % 3])
        assert bed.life()
        bed.check(1)


@pytest.mark.parametrize("aio", [False, True], ids=["threads", "asyncio"])
def test_a_batch_killed_twice_in_a_row_goes_on_where_it_was(home, aio):
    for at, second in TWICE:
        bed = Bed(home, f"t{at}", aio)
        assert not bed.life(at)
        assert not bed.life(second)
        assert bed.life()
        bed.check(2)


@pytest.mark.parametrize("aio", [False, True], ids=["threads", "asyncio"])
def test_of_two_processes_on_one_job_one_is_killed_and_the_other_does_all(home, aio):
    for at in BESIDE:
        bed = Bed(home, f"p{at}", aio)
        doomed, other = bed.start(at), bed.start()
        # The other may have done all before.
        kills = 0 if ended(doomed) else 1
        assert ended(other)
        bed.check(kills)


def test_two_processes_on_one_job_do_each_item_once(home):
    bed = Bed(home, "two")
    assert all([ended(child) for child in [bed.start(), bed.start()]])
    bed.check(0)
    assert sorted(bed.ran()) == list(range(ITEMS))


def test_an_item_that_kills_its_process_is_dead_after_three_times_and_the_others_are_done(home):
    bed = Bed(home, "poison")

    def program():
        rt = outlast.connect(bed.store)
        sys.stderr = open(os.devnull, "w")

        def fn(i):
            if i == 5:
                die()
            return i

        out = outlast.map(range(20), fn, job="poison", key=str, concurrency=4)
        got = {r.key: r.status for r in out}
        (dead,) = out.failed
        bed.out.write_text(json.dumps([got, str(dead.error)]))
        rt.close()

    bed.body = lambda *args: program()
    assert [bed.life() for _ in range(4)] == [False, False, False, True]
    got, error = json.loads(bed.out.read_text())
    assert got == {str(i): "dead" if i == 5 else "done" for i in range(20)}
    assert "died" in error


# --- calls


@pytest.fixture
def provider(home, monkeypatch):
    """A fake provider; gives the file with a line for each request that was paid for."""
    log = home / "paid.log"
    program = [outlast_program(), "mock", "--listen", "127.0.0.1:0", "--usage", "1000,500", "--log", log]
    child = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-a-key-of-the-tests")
    monkeypatch.setenv("OPENAI_BASE_URL", child.stdout.readline().strip())
    yield log
    child.kill()
    child.wait()


def paid(log):
    return len(log.read_text().splitlines()) if log.exists() else 0


def ask(i):
    """A model's answer, through the proxy, by the standard library alone."""
    at = outlast.endpoint()
    connection = http.client.HTTPConnection(urlsplit(at.url).netloc, timeout=60)
    body = json.dumps({"model": "gpt-4o-mini", "max_tokens": 10, "messages": [{"role": "user", "content": f"q{i}"}]})
    headers = {"Authorization": f"Bearer {at.token}", "Content-Type": "application/json", **at.headers}
    connection.request("POST", "/v1/chat/completions", body, headers)
    response = connection.getresponse()
    text = response.read()
    connection.close()
    if response.status != 200:
        raise RuntimeError(f"{response.status}: {text!r}")
    return json.loads(text)["choices"][0]["message"]["content"]


def test_where_the_proxy_dies_with_the_batch_each_kill_costs_its_calls_in_flight_at_most(home, provider):
    bed = Bed(home, "calls", ask=ask)
    assert not bed.life(120, "before")
    assert not bed.life(100, "before")
    assert bed.life()
    bed.check(2)
    assert ITEMS <= paid(provider) <= ITEMS + 2 * WORKERS


def test_where_the_proxy_survives_each_item_is_paid_once(home, provider, monkeypatch):
    bed = Bed(home, "calls", ask=ask)
    server = subprocess.Popen(
        [outlast_program(), "--store", bed.store, "serve", "--listen", "127.0.0.1:0"],
        stderr=subprocess.PIPE, text=True, cwd=home,
    )  # fmt: skip
    try:
        url = next(word for word in server.stderr.readline().split() if word.startswith("http://"))
        # A pipe that nobody reads would stop it.
        threading.Thread(target=server.stderr.read, daemon=True).start()
        monkeypatch.setenv("OUTLAST_URL", url.rstrip(","))
        assert not bed.life(120, "before")
        assert not bed.life(100, "within")
        assert bed.life()
    finally:
        server.terminate()
        server.wait()
    bed.check(2)
    assert paid(provider) == ITEMS
