"""Steps: keys, values, divergence, doubt, retries, timeouts."""

import asyncio
import dataclasses
import functools
import json
import threading
import time
import warnings

import pydantic
import pytest

import outlast
from outlast import codec, effects, retry, scope
from outlast.steps import spec


@dataclasses.dataclass
class Point:
    x: int
    tags: list = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Line:
    a: Point
    b: Point


class Doc(pydantic.BaseModel):
    title: str
    pages: list[int] = []


@pytest.mark.parametrize(
    "value, wanted",
    [
        (None, None),
        ((1, 2), [1, 2]),
        ({"é": [1.5, "\u2028"]}, {"é": [1.5, "\u2028"]}),
        (Point(1, ["x"]), Point(1, ["x"])),
        (Line(Point(1), Point(2)), Line(Point(1), Point(2))),
        (Doc(title="t", pages=[1]), Doc(title="t", pages=[1])),
        ([Doc(title="t"), {"p": Point(3)}], [Doc(title="t"), {"p": Point(3)}]),
        ({1: 2}, {"1": 2}),
        (2**80, 2**80),
    ],
)
def test_a_value_is_what_was_recorded_from_the_first_life_on(lives, value, wanted):
    seen = []
    again = lives(lambda run: seen.append(run.step("s", lambda: value)), lambda run: run.step("s", lambda: "no"))
    assert seen == [wanted] and again == wanted
    assert type(again) is type(wanted)


def test_a_large_result_is_recorded(lives):
    big = "0123456789abcdef" * (4 << 20)
    assert lives(lambda run: run.step("s", lambda: big), lambda run: run.step("s", lambda: "no")) == big


def test_what_cannot_be_recorded_is_named(rt):
    class Local(pydantic.BaseModel):
        x: int = 1

    with rt.run("r") as run:
        for value, words in [
            (object(), "builtins.object"),
            (1j, "builtins.complex"),
            (Local(), "module level"),
            ("\ud800", "Unicode"),
        ]:
            with pytest.raises(outlast.NotSerializable, match=words):
                run.step("s", lambda: value)
        loop = []
        loop.append(loop)
        with pytest.raises(outlast.NotSerializable):
            run.step("s", lambda: loop)
        assert run.step("s", lambda: "fine") == "fine"


def test_keys_follow_from_name_arguments_and_place(lives):
    calls = []

    def work(x, *, y=0):
        calls.append((x, y))
        return [x, y, len(calls)]

    def program(run):
        return [run.step("w", work, 1), run.step("w", work, 1), run.step("w", work, 2, y=3), run.step("v", work, 1)]

    first = []
    assert lives(lambda run: first.extend(program(run)), program) == first
    assert len(calls) == 4


def test_digests_of_arguments_are_steady():
    def check(a, b, same):
        assert (codec.identity((a,), {}) == codec.identity((b,), {})) is same, (a, b)

    check({"a": 1, "b": 2}, {"b": 2, "a": 1}, True)
    check([1], [1.0], False)
    check("1", 1, False)
    check(b"x", b"y", False)
    check({"x", "y", "z"}, {"z", "y", "x"}, True)
    check(Point(1), Point(1), True)
    check(Point(1), Point(2), False)
    check(object(), object(), True)
    check(functools.partial(len, "a"), functools.partial(len, "a"), True)
    check(functools.partial(len, "a"), functools.partial(len, "b"), False)
    check(Point(1).__eq__, Point(1).__eq__, True)
    check(Line(Point(1), Point(2)).__hash__, Line(Point(1), Point(3)).__hash__, False)
    check(len, max, False)
    check("\ud800", "\ud800", True)
    check([{1: "\ud800"}, {(1,): 2}], [{1: "\ud800"}, {(1,): 2}], True)
    check({(1, 2): 3}, {(1, 2): 3}, True)


def test_other_timing_never_swaps_results(rt):
    async def slow(x, delays):
        await asyncio.sleep(delays[x])
        return x * 10

    async def life(delays, fail):
        async with rt.run("r") as run:
            got = await asyncio.gather(*(run.step("s", functools_partial(slow, delays), x) for x in range(5)))
            if fail:
                raise ZeroDivisionError
            return got

    def functools_partial(fn, delays):
        async def called(x):
            return await fn(x, delays)

        return called

    with pytest.raises(ZeroDivisionError):
        asyncio.run(life([0.05, 0.04, 0.03, 0.02, 0.01], True))
    assert asyncio.run(life([0, 0.01, 0, 0.01, 0], False)) == [0, 10, 20, 30, 40]


def test_an_explicit_key_is_used_once_in_a_life(rt):
    with rt.run("r") as run:
        assert run.step("a", lambda: 1, key="k") == 1
        with pytest.raises(outlast.DuplicateKey, match="'k'"):
            run.step("b", lambda: 2, key="k")


def test_an_explicit_key_stands_whatever_the_arguments(lives):
    assert lives(lambda run: run.step("a", len, "xx", key="k"), lambda run: run.step("b", len, "y", key="k")) == 2


def test_a_step_that_raised_can_be_done_again_in_its_place(lives):
    def fail():
        raise ValueError("bad")

    def first(run):
        for fn in (fail, lambda: 1):
            try:
                run.step("a", fn)
            except ValueError:
                pass

    assert lives(first, lambda run: run.step("a", lambda: 2)) == 1


def test_an_exception_is_journaled_with_its_traceback(rt):
    def broken_parser():
        raise ValueError("no JSON")

    with pytest.raises(ValueError):
        with rt.run("r") as run:
            run.step("parse", broken_parser)
    recorded = rt._engine.recorded(int(rt.get("r").raw["no"]), 0)
    seq, state = recorded.find(spec.key_of("parse", (), {}))
    assert state == "failed"
    error = json.loads(rt._engine.value(int(rt.get("r").raw["no"]), seq))["error"]
    assert (error["type"], error["message"]) == ("builtins.ValueError", "no JSON")
    assert "broken_parser" in error["traceback"]


def test_an_effect_of_unknown_outcome_is_not_had_twice(rt):
    effects = []

    def pay(fail):
        effects.append(1)
        if fail:
            raise fail
        return "paid"

    for error in (KeyboardInterrupt, OSError("cut off")):
        id = f"r-{type(error).__name__}"
        with pytest.raises((KeyboardInterrupt, OSError)):
            with rt.run(id) as run:
                run.step("pay", pay, error, key="p", at_most_once=True)
        for _ in range(2):
            with pytest.raises(outlast.StepInDoubt, match="was begun before"):
                with rt.run(id) as run:
                    run.step("pay", pay, None, key="p", at_most_once=True)
    assert len(effects) == 2
    with pytest.raises(outlast.StepInDoubt):
        with rt.run(id) as run:
            run.step("pay", pay, None, key="p", at_most_once=True)
    with rt.run(id) as run:
        run.resolve("pay", key="p", rerun=True)
        assert run.step("pay", pay, None, key="p", at_most_once=True) == "paid"
    with rt.run("r-type") as run:
        run.resolve("pay", key="p", result="seen on the bill")
        assert run.step("pay", pay, None, key="p", at_most_once=True) == "seen on the bill"
    assert len(effects) == 3


class Response:
    def __init__(self, status, headers=None):
        self.status_code, self.headers = status, headers or {}


class ApiError(Exception):
    def __init__(self, status, headers=None):
        super().__init__(f"status {status}")
        self.response = Response(status, headers)


def test_which_errors_are_tried_again():
    def check(error, again):
        assert (outlast.Retry(3).delay(error, 1) is not None) is again, error

    for status in (408, 409, 425, 429, 500, 502, 503, 529):
        check(ApiError(status), True)
    for status in (400, 401, 402, 403, 404, 422):
        check(ApiError(status), False)
    check(ApiError(429, {"x-should-retry": "false"}), False)
    check(TimeoutError(), True)
    check(ConnectionError(), True)
    check(json.JSONDecodeError("bad", "", 0), True)
    check(outlast.StepTimeout("late"), True)
    check(outlast.BudgetExceeded("over"), False)
    check(outlast.Skip("no"), False)
    assert outlast.Retry(3).delay(TimeoutError(), 4) is None
    for on in ((KeyError,), KeyError, lambda error: isinstance(error, KeyError)):
        assert outlast.Retry(3, on=on).delay(ValueError(), 1) is None, on
        assert outlast.Retry(3, on=on).delay(KeyError(), 1) is not None, on


def test_retry_after_is_honoured_and_else_the_wait_is_bounded():
    for headers, wanted in [({"retry-after": "7"}, 7.0), ({"retry-after-ms": "250"}, 0.25), ({"Retry-After": "3"}, 3.0)]:
        assert outlast.Retry(3).delay(ApiError(429, headers), 1) == wanted
    date = time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime(time.time() + 30))
    assert 27 < outlast.Retry(3).delay(ApiError(503, {"retry-after": date}), 1) <= 30
    for endless in ("inf", "nan", "-1"):
        assert outlast.Retry(3, base=0).delay(ApiError(429, {"retry-after": endless}), 1) == 0
    waits = [outlast.Retry(9, base=1, cap=4).delay(TimeoutError(), n) for n in (1, 2, 3, 4, 9) for _ in range(50)]
    assert 0 <= min(waits) and max(waits) <= 4 and len(set(waits)) > 200


def test_each_try_that_raised_is_an_entry_of_its_own(rt, monkeypatch):
    monkeypatch.setattr(effects, "_sleep", lambda s: None)
    seen = []

    def flaky():
        at = outlast.current()
        seen.append((at.try_, at.seq, at.idempotency_key))
        if len(seen) < 3:
            raise ApiError(503)
        return "ok"

    with rt.run("r") as run:
        assert run.step("f", flaky, retries=4) == "ok"
    assert [s[0] for s in seen] == [1, 2, 3]
    assert len({s[1] for s in seen}) == 3 and len({s[2] for s in seen}) == 1


def test_a_refused_payment_is_not_tried_again(rt):
    calls = []

    def refused():
        calls.append(1)
        raise ApiError(402)

    with rt.run("r") as run:
        with pytest.raises(ApiError):
            run.step("f", refused, retries=5)
    assert calls == [1]


class NoRepr:
    def __repr__(self):
        raise RuntimeError("half made")


class NoText(Exception):
    def __str__(self):
        raise RuntimeError("no text")


def test_what_cannot_be_put_in_words_is_no_reason_to_lose_a_step(lives):
    step = lambda run, result: run.step("s", lambda *_: result, NoRepr(), {NoRepr(): 1}, key="s")
    assert lives(lambda run: step(run, 1), lambda run: step(run, 2)) == 1


def test_an_exception_without_a_text_is_raised_and_journaled(rt):
    def fail():
        raise NoText

    for options in ({}, {"retries": outlast.Retry(1, base=0)}):
        with pytest.raises(NoText):
            with rt.run(f"r{len(options)}") as run:
                run.step("s", fail, **options)
        no = int(rt.get(f"r{len(options)}").raw["no"])
        seq, state = rt._engine.recorded(no, 0).find(spec.key_of("s", (), {}))
        assert state == "failed" and "NoText" in json.loads(rt._engine.value(no, seq))["error"]["type"]


def test_an_async_function_in_a_plain_run_is_told(rt):
    """Bug: the run was completed without the step, and Python's warning of a coroutine was all that was said."""

    async def work():
        return 1

    with pytest.raises(TypeError, match=r"step 's' of run r has an async function, and was never awaited(.|\n)*async with rt.run"):
        with rt.run("r") as run, pytest.warns(RuntimeWarning, match="never awaited"):
            run.step("s", work)
    assert rt.get("r").status == "interrupted"

    async def main():
        with rt.run("r") as run:
            return await run.step("s", work)

    assert asyncio.run(main()) == 1
    with rt.run("r2") as run:
        assert asyncio.run(run.step("s", work)) == 1


def test_a_step_that_takes_too_long_is_told(rt):
    release = threading.Event()
    with rt.run("r") as run:
        with pytest.raises(outlast.StepTimeout, match="0.05 s"):
            run.step("s", release.wait, timeout=0.05)
        release.set()

        async def forever():
            await asyncio.Event().wait()

        with pytest.raises(TimeoutError):
            asyncio.run(_await(run.step("t", forever, timeout=0.05)))
        assert run.step("u", lambda: 1, timeout=5) == 1


async def _await(awaitable):
    return await awaitable


def test_a_cancelled_step_is_run_again_later(rt):
    async def first():
        async with rt.run("r") as run:
            begun = asyncio.Event()

            async def forever():
                begun.set()
                await asyncio.Event().wait()

            task = asyncio.ensure_future(run.step("s", forever))
            await begun.wait()
            task.cancel()
            await task

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(first())
    with rt.run("r") as run:
        assert run.step("s", lambda: 1) == 1


@outlast.step
def plain(x):
    return [x, scope.variable.get() is not None]


@outlast.step(retries=outlast.Retry(2, base=0))
async def fetch(url):
    fetched.append(url)
    if len(fetched) == 1:
        raise ConnectionError
    return plain(url)


fetched = []


def test_the_decorator_binds_to_the_current_run_and_is_plain_outside(rt):
    assert plain(1) == [1, False]
    for _ in range(2):
        with rt.run("r"):
            assert plain(2) == [2, True]
            assert asyncio.run(fetch("u")) == ["u", True]
    assert fetched == ["u", "u"]


def test_a_decorated_function_in_a_bare_thread_warns_that_it_is_not_recorded(rt):
    with rt.run("r"):
        told = []

        def work():
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                plain(3)
                told.extend((w.category, w.filename) for w in caught)

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert told == [(outlast.UnrecordedWarning, __file__)]


def test_steps_of_many_threads_are_all_recorded(rt):
    from concurrent.futures import ThreadPoolExecutor

    def life(fn):
        with rt.run("r") as run, ThreadPoolExecutor(8) as pool:
            return list(pool.map(lambda i: run.step("s", fn, i), range(100)))

    assert life(lambda i: i * i) == [i * i for i in range(100)]
    assert life(lambda i: -1) == [i * i for i in range(100)]


def test_current_outside_of_a_run_is_told(rt):
    with pytest.raises(outlast.NoRun):
        outlast.current()


@pytest.mark.parametrize(
    "bad, error",
    [
        (lambda run: run.step(len, "x"), TypeError),
        (lambda run: run.step("a", "not a function"), TypeError),
        (lambda run: run.step("a", int, key=3), TypeError),
        (lambda run: run.step("a", int, retries=2, at_most_once=True), ValueError),
        (lambda run: run.step("a", lambda: _await(None)), TypeError),
        (lambda run: run.step("a", int, timeout="5"), TypeError),
        (lambda run: run.step("a", int, timeout=-1), ValueError),
        (lambda run: run.step("a", int, timeout=float("nan"), at_most_once=True), ValueError),
        (lambda run: run.step("a", int, retries="3"), TypeError),
        (lambda run: run.step("a", int, retries=True), TypeError),
        (lambda run: outlast.Retry(3, on=[KeyError]), TypeError),
        (lambda run: outlast.step("fetch"), TypeError),
        (lambda run: outlast.step(functools.partial(abs, 1)), TypeError),
        (lambda run: outlast.Retry(3, base=float("nan")), ValueError),
    ],
)
def test_mistakes_are_told(rt, bad, error):
    with rt.run("r") as run:
        with pytest.raises(error):
            bad(run)


def test_retry_delays_are_recorded_nowhere_else():
    assert retry.status_of(ApiError(418)) == 418
