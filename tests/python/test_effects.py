"""A step's life is written once: threads and tasks, steps, items and generators do the same."""

import asyncio
import json
import threading

import pytest

import outlast
from outlast import _native, effects, errors
from outlast.effects import Effect
from outlast.steps import spec


class Answer(Effect):
    """Gives a value, or raises it."""

    def __init__(self, value):
        self.value = value

    def wait(self):
        if isinstance(self.value, BaseException):
            raise self.value
        return self.value

    async def awaited(self):
        return self.wait()


def in_thread(process):
    return effects.drive(process)


def in_task(process):
    return asyncio.run(effects.drive_async(process))


@pytest.mark.parametrize("drive", [in_thread, in_task])
def test_a_process_gets_answers_and_errors_where_it_waits_for_them(drive):
    def process():
        got = [(yield Answer(1)), (yield Answer(2))]
        try:
            yield Answer(KeyError("k"))
        except KeyError as e:
            got.append(e.args[0])
        return got

    assert drive(process()) == [1, 2, "k"]

    def failing():
        try:
            yield Answer(ValueError("v"))
        finally:
            done.append(1)

    done = []
    with pytest.raises(ValueError, match="v"):
        drive(failing())
    assert done == [1]


def entries(rt, name, run="r"):
    """The state of a step's newest entry, and what is recorded of it."""
    no = int(rt.get(run).raw["no"])
    seq, state = rt._engine.recorded(no, 0).find(spec.key_of(name, (), {}))
    raw = rt._engine.value(no, seq)
    return state, json.loads(raw) if raw else None


def do(rt, fn, aio, **options):
    """Does `fn` as the step `s` of run `r`, by a thread or by a task."""
    if not aio:
        with rt.run("r") as run:
            return run.step("s", fn, **options)

    async def call():
        return fn()

    async def main():
        async with rt.run("r") as run:
            return await run.step("s", call, **options)

    return asyncio.run(main())


@pytest.mark.parametrize("aio", [False, True])
@pytest.mark.parametrize("options", [{}, {"retries": outlast.Retry(1, base=0)}, {"timeout": 60}, {"at_most_once": True}])
def test_a_step_lives_alike_in_a_thread_and_in_a_task_whatever_its_rules_are(rt, aio, options):
    tries, fails = [], 2 if "retries" in options else 1

    def flaky():
        tries.append(outlast.current().try_)
        if len(tries) <= fails:
            raise OSError(f"try {len(tries)}")
        return [len(tries)]

    with pytest.raises(OSError):
        do(rt, flaky, aio, **options)
    state, recorded = entries(rt, "s")
    assert (state, recorded["error"]["type"], recorded["error"]["message"]) == ("failed", "builtins.OSError", f"try {fails}")
    if "at_most_once" in options:
        with pytest.raises(outlast.StepInDoubt):
            do(rt, flaky, aio, **options)
        assert tries == [1]
        return
    assert do(rt, flaky, aio, **options) == [fails + 1]
    assert entries(rt, "s") == ("done", {"args": [], "value": [fails + 1]})
    assert tries == [*range(1, fails + 1), 1]


# Bug: the state changed under a step whose entry's number another process had taken, and the step's entry was left open.
# Consequence: the step's failed try was not in the journal: no error, no traceback, and `show` said that it was still running.
# Cause: of four copies of a step's life one did not record a `Conflict` of its second attempt to record.
def test_a_conflict_of_a_step_whose_number_was_anothers_is_recorded(rt):
    class Taken:
        """An attempt in which the number that the opening answered is another entry's."""

        def __init__(self, open_run):
            self._open_run, self.refused = open_run, 0

        def __getattr__(self, name):
            return getattr(self._open_run, name)

        def record(self, *args):
            if not self.refused:
                self.refused += 1
                raise errors.of("unknown_entry", "no such entry is open")
            return self._open_run.record(*args)

    client = outlast.Statehouse(store=rt)
    client.update("a", "n", lambda n: 0)

    def work():
        client.update("a", "n", lambda n: n + 1)
        other = threading.Thread(target=lambda: client.update("a", "n", lambda n: 10))
        other.start()
        other.join()

    with pytest.raises(outlast.Conflict), rt.run("r") as run:
        run._open_run = taken = Taken(run._open_run)
        run.step("s", work)
    assert taken.refused == 1
    state, recorded = entries(rt, "s")
    assert (state, recorded["error"]["type"]) == ("failed", "outlast.errors.Conflict")


def test_a_step_that_raises_stop_iteration_raises_it(rt):
    """No generator may: a life that is one hands it on all the same. A user's own RuntimeError of that cause stays one."""
    with pytest.raises(StopIteration) as stopped, rt.run("r") as run:
        run.step("s", lambda: next(iter([])))
    assert stopped.value.__cause__ is None
    assert entries(rt, "s")[1]["error"]["type"] == "builtins.StopIteration"

    def broken():
        raise StopIteration
        yield

    with pytest.raises(RuntimeError, match="generator raised StopIteration"), rt.run("r2") as run:
        run.step("s", lambda: list(broken()))


def test_a_step_that_is_refused_leaves_its_place_to_the_next_equal_one(rt):
    with pytest.raises(ZeroDivisionError), rt.run("r") as run:
        run.step("s", lambda n: n, 1)
        raise ZeroDivisionError
    with rt.run("r") as run:
        with pytest.raises(outlast.StepDiverged):
            run.step("s", lambda n: n, 2)
        assert [run.step("s", lambda n: n, n) for n in (1, 2)] == [1, 2]
    recorded = rt._engine.recorded(int(rt.get("r").raw["no"]), 0)
    assert recorded.find(spec.key_of("s", (2,), {}))[1] == "done"


# Bug: the store refused the record of an input's failure, and that error came out in place of the generator's.
# Consequence: the program did not see its own error, and the run was not left: it was `running` until the process ended.
# Cause: whoever drove a job did not raise an error of a commit in the job, which has an answer to it, but past it.
@pytest.mark.parametrize("aio", [False, True])
def test_an_error_of_the_store_does_not_hide_a_generators_own(home, monkeypatch, aio):
    class Refused:
        def wait(self):
            raise errors.of("store_io", "the disk is gone")

        def then(self, future):
            future.set_exception(errors.of("store_io", "the disk is gone"))

    record = _native.record_item
    monkeypatch.setattr(_native, "record_item", lambda *a: Refused() if a[2] == "failed" else record(*a))
    fails = True

    def body(x):
        if x == 2 and fails:
            raise ValueError("of the generator")
        return x

    def plain(items):
        for x in items:
            yield body(x)

    async def asynchronous(items):
        for x in items:
            yield body(x)

    def results():
        got = outlast.resume_or_start("job", home / "job.jsonl", asynchronous if aio else plain, ([1, 2, 3],))
        if not aio:
            return list(got)

        async def main():
            return [r async for r in got]

        return asyncio.run(main())

    with pytest.raises(ValueError, match="of the generator"):
        results()
    fails = False
    assert results() == [1, 2, 3]


def test_values_of_the_package_are_recorded_under_the_names_that_stores_have():
    """Classes of ours that a step may return: a store that was written before finds them where they were."""
    from outlast import classes

    names = {
        "outlast.approvals:Approval", "outlast.batch.jobs:Item", "outlast.batch.progress:Stats", "outlast.budget:Budget",
        "outlast.clients:Endpoint", "outlast.retry:Retry", "outlast.versions:Operation", "outlast.versions:ReplayEvent",
        "outlast.versions:ResumePoint", "outlast.versions:StateResult", "outlast.views:Amount", "outlast.views:Envelope",
        "outlast.views:RunView",
    }  # fmt: skip
    assert {classes.name(classes.named(name)) for name in names} == names
