"""Which recorded step a later life gets: inside of other steps, behind a checkpoint, in a completed run."""

import asyncio
import itertools
import subprocess
import threading

import pytest

import outlast
from outlast.steps import spec


@pytest.fixture
def lives(rt):
    """`lives(first, then)`: a life that ends by an exception, and the next one; gives what both gave."""

    def play(first, then, **options):
        given = []
        with pytest.raises(ZeroDivisionError):
            with rt.run("r") as run:
                given.append(first(run))
                raise ZeroDivisionError
        with rt.run("r", **options) as run:
            given.append(then(run))
        return given

    return play


def test_a_step_inside_of_another_one_is_no_other_steps(lives):
    """Bug: the step outside got what the one inside had recorded. Cause: where the outer step is replayed, the inner one
    is not asked for, and its place among equals was free."""
    now = itertools.count()

    def program(run):
        tick = lambda: run.step("now", lambda: next(now))
        return [run.step("outer", tick), tick(), run.step("outer", lambda: [tick(), tick()]), tick()]

    first, then = lives(program, program)
    assert first == then == [0, 1, [2, 3], 4]


def test_steps_inside_of_a_step_that_was_cut_off_are_found_again(lives):
    calls = []

    def program(run, fails):
        def outer():
            got = [run.step("inner", lambda x: calls.append(x) or x, x) for x in (1, 2)]
            if fails:
                raise KeyError
            return got

        try:
            return run.step("outer", outer)
        except KeyError:
            return None

    assert lives(lambda run: program(run, True), lambda run: program(run, False)) == [None, [1, 2]]
    assert calls == [1, 2]


def test_what_a_replayed_step_did_inside_is_not_left_unused(lives):
    """Bug: `StepDiverged`, where nothing had changed."""
    inner = lambda run, x: run.step("inner", lambda x: x, x)
    program = lambda run, more: [run.step("outer", lambda: inner(run, 1)), *(inner(run, x) for x in more)]
    assert lives(lambda run: program(run, []), lambda run: program(run, [2])) == [[1], [1, 2]]


def test_a_recursion_of_steps_has_keys_that_do_not_grow_with_it(lives):
    def down(run, n):
        return 0 if n == 0 else 1 + run.step("down", lambda n: down(run, n - 1), n)

    assert lives(lambda run: down(run, 30), lambda run: down(run, 30)) == [30, 30]
    key = "down"
    for _ in range(100):
        key = spec.nested(f"{key}(0123456789abcdef)", "down")
    assert len(key) < 200


def test_steps_inside_of_an_asynchronous_one_are_its_own(lives):
    now = itertools.count()

    async def tick(delay):
        await asyncio.sleep(delay)
        return next(now)

    def program(run):
        async def outer():
            return await asyncio.gather(run.step("tick", tick, 0.01), run.step("tick", tick, 0))

        async def both():
            return await asyncio.gather(run.step("outer", outer), run.step("tick", tick, 0))

        return asyncio.run(both())

    first, then = lives(program, program)
    assert first == then


def test_equal_steps_that_are_awaited_in_another_order_than_made_are_not_swapped(lives):
    """Bug: their results were, in a replay. Cause: there the place among equals was taken when the step was made."""
    now = itertools.count()

    async def tick():
        return next(now)

    def program(**options):
        async def life(run):
            a, b = run.step("tick", tick, **options), run.step("tick", tick, **options)
            second = await b
            return await a, second

        return lambda run: asyncio.run(life(run))

    for options in ({}, {"retries": 1}):
        first, then = lives(program(**options), program(**options))
        assert first == then


def test_a_program_that_goes_on_from_its_checkpoint_need_not_do_again_what_was_before(lives):
    """Bug: `StepDiverged` for the first step of a loop that was resumed by its cursor."""
    done = []

    def program(run, upto):
        for i in range(run.latest_checkpoint("cursor", 0), upto):
            run.step("work", lambda i: done.append(i) or i, i)
            run.checkpoint("cursor", i + 1)
        return run.latest_checkpoint("cursor")

    assert lives(lambda run: program(run, 3), lambda run: program(run, 6)) == [3, 6]
    assert done == [0, 1, 2, 3, 4, 5]


def test_an_item_of_a_batch_has_checkpoints_too(rt):
    def work(n):
        run = outlast.current().run
        run.checkpoint(f"at-{n}", n)
        return run.step("s", abs, run.latest_checkpoint(f"at-{n}"))

    assert [r.value for r in outlast.map([1, 2], work, job="j", store=rt)] == [1, 2]


def test_a_checkpoint_of_this_life_excuses_nothing(lives):
    def then(run):
        run.checkpoint("cursor", 1)
        run.latest_checkpoint("cursor")
        run.step("work", lambda i: i, 2)

    with pytest.raises(outlast.StepDiverged):
        lives(lambda run: run.step("work", lambda i: i, 1), then)


def test_what_was_done_behind_the_checkpoint_is_still_asked_for(lives):
    def first(run):
        run.step("work", lambda i: i, 0)
        run.checkpoint("cursor", 1)
        run.step("work", lambda i: i, 1)

    def then(run):
        run.latest_checkpoint("cursor")
        run.step("work", lambda i: i, 7)

    with pytest.raises(outlast.StepDiverged, match="1 of its name left unused: argument 1 is 7, and was 1"):
        lives(first, then)


def test_a_key_of_the_callers_own_is_no_steps_of_its_name(lives):
    """Bug: `key="page(1)"` left unused was taken for a step `page`."""
    first = lambda run: run.step("page", lambda: "one", key="page(1)")
    assert lives(first, lambda run: [run.step("page", str, 7), first(run)]) == ["one", ["7", "one"]]


def test_a_step_that_failed_in_a_completed_run_is_told_as_that(rt):
    """Bug: `RunCompleted`, as if it had not been recorded."""

    def parse():
        raise ValueError("no JSON")

    def program(run):
        try:
            return run.step("parse", parse)
        except ValueError:
            return run.step("default", dict)

    with rt.run("r") as run:
        assert program(run) == {}
    with pytest.raises(outlast.StepFailed, match="raised builtins.ValueError when run r was completed: no JSON"):
        with rt.run("r") as run:
            program(run)
    with rt.run("r") as run:
        with pytest.raises(outlast.RunCompleted):
            run.step("new", parse)


def test_what_is_under_way_when_the_run_is_left_is_recorded_all_the_same(rt):
    """Bug: a paid answer was thrown away, and bought again. Cause: the sibling of a step that raised was refused its end."""
    calls = []

    async def life(bad):
        ended = asyncio.Event()

        async def slow(x):
            calls.append(x)
            await asyncio.sleep(0.05)
            return x

        async def both(x, **options):
            try:
                return await run.step("slow", slow, x, **options)
            finally:
                ended.set()

        async def other():
            if bad:
                raise ValueError
            return "fine"

        try:
            async with rt.run("r") as run:
                return await asyncio.gather(both(1), both(2, retries=1), run.step("other", other))
        except ValueError:
            assert rt.get("r").status == "interrupted"
            await ended.wait()
            await asyncio.gather(*(t for t in asyncio.all_tasks() if t is not asyncio.current_task()))

    async def lives():
        await life(True)
        return await life(False)

    assert asyncio.run(lives()) == [1, 2, "fine"]
    assert calls == [1, 2]


def test_a_run_that_is_open_again_does_not_hear_from_threads_of_before(rt):
    started, release, told = threading.Event(), threading.Event(), []

    def late(run):
        try:
            told.append(run.step("s", lambda: (started.set(), release.wait(20), "late")[2]))
        except outlast.RunNotOpen as e:
            told.append(e.code)

    with pytest.raises(ZeroDivisionError), rt.run("r") as run:
        thread = threading.Thread(target=late, args=(run,))
        thread.start()
        started.wait(20)
        raise ZeroDivisionError
    with rt.run("r") as again:
        assert again.step("s", lambda: (release.set(), thread.join(), "anew")[2]) == "anew"
    assert told == ["run_not_open"]


@outlast.step
async def fetch(url):
    return {"url": url}


def test_a_decorated_asynchronous_function_can_be_a_step_by_name(rt):
    """Bug: `TypeError`, its function returned a coroutine, with Python before 3.12."""

    async def life():
        async with rt.run("r") as run:
            return await run.step("fetched", fetch, "u")

    assert asyncio.run(life()) == {"url": "u"}
    assert asyncio.iscoroutinefunction(fetch) and asyncio.run(fetch("v")) == {"url": "v"}


def test_an_effect_in_doubt_inside_of_a_step_is_resolved_by_its_name_or_by_what_its_error_says(rt):
    from conftest import outlast_program

    def cut_off():
        raise KeyboardInterrupt

    def life(id, pay):
        with rt.run(id) as run:
            return run.step("order", lambda: run.step("pay", pay, at_most_once=True))

    for id in ("in-python", "at-a-terminal"):
        with pytest.raises(KeyboardInterrupt):
            life(id, cut_off)
        with pytest.raises(outlast.StepInDoubt) as error:
            life(id, int)
    command = [outlast_program(), "--store", rt.place, "resolve", "at-a-terminal", "pay", "--result", '"paid"']
    assert subprocess.run(command, capture_output=True, timeout=60).returncode == 0
    key = error.value.hint.split("key='")[1].split("'")[0]
    with pytest.raises(ZeroDivisionError), rt.run("in-python") as run:
        run.resolve("pay", key=key, result="paid")
        raise ZeroDivisionError
    assert [life(id, int) for id in ("in-python", "at-a-terminal")] == ["paid", "paid"]


def test_a_race_whose_loser_was_cancelled_replays_in_a_completed_run(rt, monkeypatch):
    """Bug: a completed run with a cancelled step raised `RunCompleted` instead of its replay. Cause: a step that was begun and
    never ended was taken for a new one."""
    made = []

    async def quick():
        made.append("quick")
        return 1

    async def slow():
        made.append("slow")
        await asyncio.Event().wait()

    async def race():
        async with rt.run("race") as run:
            tasks = [asyncio.ensure_future(run.step(fn.__name__, fn)) for fn in (slow, quick)]
            done, pending = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in pending:
                task.cancel()
            return [task.result() for task in done], len(pending)

    assert [asyncio.run(race()) for _ in range(3)] == [([1], 1)] * 3
    assert sorted(made) == ["quick", "slow"]

    from outlast.steps import life

    monkeypatch.setattr(life, "_BUSY_S", 0)

    async def awaits_the_loser():
        async with rt.run("race") as run:
            await run.step("slow", slow)

    with pytest.raises(outlast.RunCompleted, match="step slow"):
        asyncio.run(awaits_the_loser())
    assert len(made) == 2
