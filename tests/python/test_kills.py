"""kill -9 at every commit of a run: no finished step runs again, none is lost, the outcome is that of a clean run.

Of tasks and of kills in pairs a few by default; all of them with OUTLAST_TEST_ALL_KILLS=1.
"""

import asyncio
import os
import signal
import sys
import traceback

import pytest

import outlast
from outlast import opening

STEPS = 50

ALL = bool(os.environ.get("OUTLAST_TEST_ALL_KILLS"))

# Commits of a run: each step is two, its opening and its result; the run's end is one.
COMMITS = 2 * STEPS + 1


class Killing:
    """An attempt whose process kills itself before or after its n-th commit."""

    def __init__(self, open_run, at, after):
        self._open_run, self._left, self._after = open_run, at, after

    def __getattr__(self, name):
        value = getattr(self._open_run, name)
        if name not in ("begin", "record", "count_loop", "checkpoint", "put", "end"):
            return value

        def op(*args):
            self._left -= 1
            if self._left == 0 and not self._after:
                os.kill(os.getpid(), signal.SIGKILL)
            answer = value(*args)
            if self._left == 0 and name == "end":
                os.kill(os.getpid(), signal.SIGKILL)
            return Killed(answer) if self._left == 0 else answer

        return op


class Killed:
    """A ticket whose waiter never hears of it."""

    def __init__(self, ticket):
        self._ticket = ticket

    def wait(self):
        self._ticket.wait()
        os.kill(os.getpid(), signal.SIGKILL)

    def awaited(self):
        future = self._ticket.awaited()
        # Called before the task that waits goes on: callbacks are called in the order in which they were added.
        future.add_done_callback(lambda _: os.kill(os.getpid(), signal.SIGKILL))
        return future


@pytest.fixture(autouse=True)
def unsynced(monkeypatch):
    """A killed process needs no disk to be survived: the order of commits is the same, and the tests are quick."""
    monkeypatch.setenv("OUTLAST_DURABILITY", "process")


def forked(body):
    """Runs `body` in a child; True: it came to its end, False: it was killed."""
    child = os.fork()
    if child == 0:
        try:
            body()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL), f"exit {status}"
    return status == 0


class Bed:
    """A store, and a file to which each effect of a step adds a line."""

    def __init__(self, home, name):
        # One store for all, a run for each.
        self.store = home / "runs.db"
        self.name = name
        self.log = home / f"{name}.log"
        self.out = home / f"{name}.out"

    def effect(self, i):
        with open(self.log, "a") as log:
            log.write(f"{i}\n")
        return {"i": i, "square": i * i}

    def life(self, at=0, after=False, program=None):
        """One life, which kills itself at its commit `at` (0: never)."""

        def body():
            claim = opening.claim
            if at:
                # None: the run is completed, and replayed.
                opening.claim = lambda run: (open_run := claim(run)) and Killing(open_run, at, after)
            sys.stderr = open(os.devnull, "w")
            rt = outlast.connect(self.store)
            total = (program or self.steps)(rt)
            self.out.write_text(str(total))
            rt.close()

        return forked(body)

    def steps(self, rt):
        total = 0
        with rt.run(self.name) as run:
            for i in range(STEPS):
                total += run.step("square", self.effect, i)["square"]
        return total

    def async_steps(self, rt):
        async def effect(i):
            await asyncio.sleep(0)
            return self.effect(i)

        async def main():
            async with rt.run(self.name) as run:
                gate = asyncio.Semaphore(8)

                async def one(i):
                    async with gate:
                        return (await run.step("square", effect, i))["square"]

                return sum(await asyncio.gather(*(one(i) for i in range(STEPS))))

        return asyncio.run(main())

    def runs_of_steps(self):
        return [int(line) for line in self.log.read_text().split()] if self.log.exists() else []

    def check(self, kills, in_flight=1):
        assert int(self.out.read_text()) == sum(i * i for i in range(STEPS))
        ran = self.runs_of_steps()
        assert set(ran) == set(range(STEPS)), "a step is lost"
        again = len(ran) - STEPS
        assert again <= kills * in_flight, f"{again} finished steps ran again"


@pytest.mark.parametrize("after", [False, True])
def test_a_run_killed_at_any_commit_goes_on_where_it_was(home, after):
    # After a result is on disk is before the next opening: those are killed once.
    for at in range(1, COMMITS + 1, 2 if after else 1):
        bed = Bed(home, f"k{at}")
        assert not bed.life(at, after)
        ran = bed.runs_of_steps()
        assert bed.life()
        bed.check(0 if at % 2 == 1 or after else 1)
        # What had run before the kill ran once, but for the one whose result was not on disk.
        assert len(ran) <= (at + 1) // 2


@pytest.mark.parametrize("second", [1, 2, 3, 40])
def test_a_run_killed_twice_in_a_row_goes_on_where_it_was(home, second):
    for at in range(1, COMMITS + 1) if ALL else (2, 41, 60):
        bed = Bed(home, f"k{at}-{second}")
        assert not bed.life(at)
        # The life after a late kill has few commits left.
        left = COMMITS - (at - 1) // 2 * 2
        assert not bed.life(min(second, left))
        assert bed.life()
        bed.check(2)


def test_an_async_run_killed_at_any_commit_goes_on_where_it_was(home):
    for at in range(3, 2 * STEPS, 1 if ALL else 12):
        bed = Bed(home, f"a{at}")
        assert not bed.life(at, True, bed.async_steps)
        assert bed.life(program=bed.async_steps)
        bed.check(1, in_flight=8)


def test_a_loop_killed_at_its_commit_counts_each_turn_once(home):
    def program(rt):
        with rt.run(bed.name, budget=outlast.Budget(loops=20)) as run:
            for i in range(20):
                run.loop(i)
            return run.loop(0)

    for at in range(1, 22, 4):
        for after in (False, True):
            bed = Bed(home, f"l{at}{after}")
            assert not bed.life(at, after, program)
            assert bed.life(program=program)
            assert bed.out.read_text() == "20"


def test_of_two_processes_on_one_run_one_is_refused(home):
    bed = Bed(home, "two")

    def program(rt):
        for _ in range(2000):
            try:
                return bed.steps(rt)
            except outlast.RunHeld:
                continue
        return -1

    children = []
    for _ in range(2):
        child = os.fork()
        if child == 0:
            code = 1
            try:
                rt = outlast.connect(bed.store)
                code = 0 if program(rt) == sum(i * i for i in range(STEPS)) else 2
                rt.close()
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(code)
        children.append(child)
    assert [os.waitstatus_to_exitcode(os.waitpid(c, 0)[1]) for c in children] == [0, 0]
    assert sorted(bed.runs_of_steps()) == list(range(STEPS))


def test_of_two_processes_on_one_run_one_is_killed_and_the_other_goes_on(home):
    def program(rt):
        for _ in range(2000):
            try:
                return bed.steps(rt)
            except outlast.RunHeld:
                continue
        return -1

    for at in range(1, COMMITS + 1) if ALL else (1, 2, 50, 101):
        bed = Bed(home, f"b{at}")
        # Whoever comes first drives; the doomed one may find all done.
        other = os.fork()
        if other == 0:
            alive = False
            try:
                alive = bed.life(program=program)
            finally:
                # What is raised here must not go on as a second session of these tests.
                os._exit(0 if alive else 1)
        kills = 0 if bed.life(at, program=program) else 1
        assert os.waitstatus_to_exitcode(os.waitpid(other, 0)[1]) == 0
        bed.check(kills)
