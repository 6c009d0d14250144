"""Steps that differ from those recorded: a divergence is told, and strands that are ahead of others are none."""

import asyncio
import warnings

import pytest

import outlast


def test_divergence_shows_the_first_argument_that_differs(lives):
    with pytest.raises(outlast.StepDiverged, match="argument 2 is 'new', and was 'old'"):
        lives(lambda run: run.step("plan", lambda a, b: a, 1, "old"), lambda run: run.step("plan", lambda a, b: a, 1, "new"))


def test_divergence_can_be_let_live_with_one_warning(lives):
    def then(run):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            got = [run.step("plan", lambda a: a, x) for x in ("b", "c")]
        return got, [(w.category, w.filename) for w in told]

    got = lives(lambda run: [run.step("plan", lambda a: a, x) for x in "a"], then, on_divergence="live")
    assert got == (["b", "c"], [(outlast.DivergenceWarning, __file__)])


def test_steps_of_tasks_that_are_ahead_of_others_are_no_divergence(lives):
    async def both(run, n, m):
        async def strand(base, count):
            async def f(x):
                await asyncio.sleep(0)
                return x

            return [await run.step("f", f, base + i) for i in range(count)]

        return await asyncio.gather(strand(0, n), strand(100, m))

    got = lives(lambda run: asyncio.run(both(run, 50, 3)), lambda run: asyncio.run(both(run, 50, 10)))
    assert got[1] == list(range(100, 110))


def test_a_task_that_is_ahead_before_another_has_begun_is_no_divergence(lives):
    """Bug: `StepDiverged` when the first of several tasks, or threads, had replayed all of its own."""

    async def strand(run, base, count):
        async def f(x):
            await asyncio.sleep(0)
            return x

        return [await run.step("f", f, base + i) for i in range(count)]

    async def both(run, n, m):
        return await asyncio.gather(strand(run, 0, n), strand(run, 100, m))

    got = lives(lambda run: asyncio.run(both(run, 3, 50)), lambda run: asyncio.run(both(run, 10, 50)))
    assert got[0] == list(range(10))


def test_a_thread_that_is_ahead_before_another_has_begun_is_no_divergence(lives):
    def strand(run, base, count):
        return [run.step("f", abs, base + i) for i in range(count)]

    def then(run):
        from concurrent.futures import ThreadPoolExecutor

        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(strand, run, 0, 10).result()
            return first + pool.submit(strand, run, 100, 50).result()

    assert lives(lambda run: strand(run, 0, 3) + strand(run, 100, 50), then) == [*range(10), *range(100, 150)]


def test_one_task_that_does_all_steps_is_judged_whatever_else_was_there_before(lives):
    async def life(run, first):
        async def f(x):
            return x

        return await run.step("f", f, first)

    async def among_others(runtime):
        other = asyncio.ensure_future(asyncio.sleep(60))
        await asyncio.sleep(0)
        try:
            async with runtime.run("r") as run:
                await life(run, 2)
        finally:
            other.cancel()

    with pytest.raises(outlast.StepDiverged):
        lives(lambda run: asyncio.run(life(run, 1)), lambda run: asyncio.run(life(run, 2)))
    with pytest.raises(outlast.StepDiverged):
        asyncio.run(among_others(outlast.runtime.default()))


def test_more_of_the_same_is_no_divergence(lives):
    assert lives(lambda run: [run.step("f", abs, -i) for i in range(3)], lambda run: [run.step("f", abs, -i) for i in range(5)]) == [0, 1, 2, 3, 4]
