"""Items that fail, are late, or are to come slower."""

import asyncio
import collections.abc
import errno
import os
import threading
import time

import pytest

import outlast
from batches import Work, batch, collected


def test_a_failed_item_is_collected_and_runs_again_at_the_next_start_until_it_is_dead(rt):
    work_ = Work(lambda i: 1 / i)
    for start in (1, 2, 3, 4):
        out = batch(rt, [0, 1], work_)
        got = {r.key: r for r in out}
        assert got["0"].status == ("failed" if start < 3 else "dead") and got["1"].ok
        with pytest.raises(ZeroDivisionError if start < 4 else outlast.ItemFailed, match="division"):
            got["0"].value
        assert [r.key for r in out.failed] == ["0"] or start == 4
    assert work_.ran.count(0) == 3 and work_.ran.count(1) == 1
    job = outlast.job("j", store=rt)
    item = next(job.items(status="dead"))
    assert (item.key, item.failed_starts) == ("0", 3) and str(item.error) == str(next(iter(job._results())).error)
    assert isinstance(item.error, outlast.ItemFailed) and "ZeroDivisionError: division by zero" in item.error.message
    assert "in fn" not in item.error.traceback and item.error.traceback.endswith("ZeroDivisionError: division by zero\n")
    job.reset("0")
    assert [r.value for r in batch(rt, [0, 1], Work(lambda i: "repaired"))] == ["repaired", 1.0]


def test_a_skipped_item_is_a_tombstone(rt):
    def fn(i):
        work_.ran.append(i)
        raise outlast.Skip("empty")

    work_ = Work()
    for _ in range(2):
        (r,) = batch(rt, [0], fn)
        assert (r.ok, r.status, str(r.error)) == (False, "skipped", "empty")
        with pytest.raises(outlast.Skip):
            r.value
    assert work_.ran == [0] and rt.get("j").status == "completed"


def test_equal_failures_in_a_row_stop_the_batch(rt):
    def fn(i):
        raise ValueError(f"no answer to request {i}")

    out = batch(rt, range(1000), fn, concurrency=2)
    with pytest.raises(outlast.RepeatedFailure, match="20 items in a row"):
        out.wait()
    assert 20 <= out.stats.failed <= 22


class Unauthorized(Exception):
    status_code = 401


def of_environment(i):
    return os.environ["NO_SUCH_KEY"]


def unauthorized(i):
    raise RuntimeError("no answer") from Unauthorized()


def not_installed(i):
    import no_such_library  # noqa: F401


def full(i):
    raise OSError(errno.ENOSPC, "no space left on device")


class Forbidden(Exception):
    status_code = 403

    def __init__(self, **headers):
        self.headers = headers


def forbidden(i):
    raise Forbidden(**{"x-outlast-run": "j"})


@pytest.mark.parametrize("fn", [of_environment, unauthorized, not_installed, full, forbidden])
def test_a_reason_outside_of_the_items_is_no_verdict_about_one(rt, fn):
    """Bug: three starts without a key left items dead. Consequence: nothing ran them again once the key was there. Cause: every
    failure counted against its item."""
    for _ in range(4):
        (r,) = batch(rt, [0], fn)
        assert r.status == "failed"
    assert outlast.job("j", store=rt).item(0).failed_starts == 0
    assert [r.value for r in batch(rt, [0], Work(lambda i: "done"))] == ["done"]


def test_a_page_that_may_not_be_read_is_its_items_own_failure(rt):
    def fn(i):
        raise Forbidden(server="nginx")

    batch(rt, [0], fn).wait()
    assert outlast.job("j", store=rt).item(0).failed_starts == 1


@pytest.mark.parametrize("count", [20, 2])
def test_a_start_that_fails_alike_is_no_verdict_about_its_items(rt, count):
    job = None
    for _ in range(4):
        out = batch(rt, range(count), lambda i: {}["key"], concurrency=1)
        if count == 20:
            with pytest.raises(outlast.RepeatedFailure, match="20 items in a row failed alike: KeyError: 'key'"):
                out.wait()
        assert {r.status for r in out.failed or out} == {"failed"}
        job = outlast.job("j", store=rt)
        assert job.counts["failed"] == count and {item.failed_starts for item in job.items()} == {0}
    assert {r.value for r in batch(rt, range(count), Work(lambda i: "done"))} == {"done"}


def test_failures_that_differ_or_stand_beside_what_is_done_count(rt):
    def fn(i):
        raise ValueError(["a", "b"][i % 2])

    batch(rt, range(2), fn, concurrency=1).wait()
    assert [item.failed_starts for item in outlast.job("j", store=rt).items()] == [1, 1]
    for _ in range(3):
        batch(rt, range(3), lambda i: i if i == 0 else {}["key"], job="beside", concurrency=1).wait()
    assert outlast.job("beside", store=rt).counts["dead"] == 2


def test_a_start_that_fails_alike_takes_back_the_death_that_it_caused(rt):
    for _ in range(2):
        for i in range(20):
            batch(rt, [i], lambda i: [][i]).wait()
    out = batch(rt, range(20), lambda i: {}["key"], concurrency=1)
    with pytest.raises(outlast.RepeatedFailure):
        out.wait()
    assert (out.stats.dead, out.stats.failed, {r.status for r in out.failed}) == (0, 20, {"failed"})
    assert {(item.status, item.failed_starts) for item in outlast.job("j", store=rt).items()} == {("failed", 2)}


def test_failed_results_come_in_the_order_of_the_input(rt):
    turn = threading.Event()

    def fn(i):
        if i == 0:
            assert turn.wait(60)
        elif i == 2:
            turn.set()
        raise ValueError(str(i) * (i + 1))

    assert [r.index for r in batch(rt, range(3), fn).wait().failed] == [0, 1, 2]


def test_on_error_raise_stops_at_the_first(rt):
    out = batch(rt, range(1000), lambda i: 1 / (i - 5), on_error="raise", concurrency=1)
    with pytest.raises(ZeroDivisionError):
        out.wait()
    assert (out.stats.done, out.stats.failed, out.stats.pending) == (5, 1, 994)


class TooMany(Exception):
    status_code = 429

    def __init__(self, after):
        self.headers = {"retry-after": after}


def test_tries_are_made_again_and_retry_after_is_honoured(rt):
    times = []

    def fn(i):
        times.append(time.monotonic())
        if len(times) < 3:
            raise TooMany("0.2")
        return outlast.current().try_

    (r,) = batch(rt, [0], fn, retries=4)
    assert (r.value, r.attempts) == (3, 3)
    assert all(b - a >= 0.19 for a, b in zip(times, times[1:]))


def test_a_402_is_not_tried_again(rt):
    class Pay(Exception):
        status_code = 402

    def fn(i):
        work_.ran.append(i)
        raise Pay

    work_ = Work()
    (r,) = batch(rt, [0], fn, retries=5)
    assert r.status == "failed" and len(work_.ran) == 1


def test_a_late_thread_fails_its_item_and_keeps_its_slot(rt):
    gate, running, most = threading.Event(), [], []

    def fn(i):
        running.append(i)
        most.append(len(running))
        gate.wait(60 if i == 0 else 0.05)
        running.remove(i)
        return i

    out = batch(rt, range(12), fn, timeout=2, concurrency=2)
    assert [r.status for r in out] == ["failed"] + ["done"] * 11
    gate.set()
    assert isinstance(out.failed[0].error, outlast.StepTimeout) and max(most) <= 2


def test_a_late_task_is_cancelled_and_may_be_tried_again(rt):
    tries = []

    async def fn(i):
        tries.append(i)
        if len(tries) == 1:
            await asyncio.sleep(60)
        return i

    (r,) = asyncio.run(collected([1], fn, timeout=2, retries=outlast.Retry(1, base=0)))
    assert r.value == 1 and len(tries) == 2


def test_a_rate_spaces_the_starts(rt):
    began = time.monotonic()
    batch(rt, range(6), Work(), rate="20/s", concurrency=6).wait()
    assert time.monotonic() - began >= 0.25 - 0.01


def test_a_first_result_that_cannot_be_recorded_stops_the_batch_and_a_later_one_fails_its_item(rt):
    ran = []
    with pytest.raises(outlast.NotSerializable, match="item '0' of job j: a value of class .*object"):
        batch(rt, range(100), lambda i: ran.append(i) or object(), concurrency=1).wait()
    assert ran == [0] and [item.key for item in outlast.job("j", store=rt).items("open")] == ["0"], "it is paid once, and pending"
    out = batch(rt, range(3), lambda i: object() if i == 1 else i, concurrency=1)
    assert [r.status for r in out] == ["done", "failed", "done"]
    assert isinstance(out.failed[0].error, outlast.NotSerializable)


def test_a_declared_result_that_cannot_be_recorded_is_told_before_any_call(rt):
    def refused(i) -> list[int | Unrecordable]:
        pytest.fail("it was called")

    async def awaited(i) -> dict[str, Unrecordable | None]:
        pytest.fail("it was called")

    def open_to_all(i) -> "collections.abc.Mapping[str, typing.Any] | Nowhere":  # noqa: F821
        return {"i": i}

    def used_up(i) -> collections.abc.Iterator[int]:
        pytest.fail("it was called")

    for fn, make, cls in ((refused, outlast.map, "Unrecordable"), (awaited, outlast.amap, "Unrecordable"), (used_up, outlast.map, "Iterator")):
        with pytest.raises(outlast.NotSerializable, match=f"declares that it returns .*{cls}.*; nothing was called"):
            make(range(3), fn, job="j", store=rt)
    assert [r.value for r in batch(rt, [1], open_to_all)] == [{"i": 1}]


class Unrecordable:
    pass


def test_an_item_that_waits_for_its_turn_is_not_claimed(rt):
    out = batch(rt, range(8), Work(), rate="1/h", concurrency=8)
    assert next(out).value == 0
    job = outlast.job("j", store=rt)
    assert (job.counts["done"], list(job.items("open"))) == (1, []), "a death of the process would be counted against it"


def test_an_error_that_cannot_say_itself_fails_its_item(rt):
    class Mute(Exception):
        def __str__(self):
            raise ValueError

    def fn(i):
        raise Mute

    (r,) = batch(rt, [1], fn)
    assert r.status == "failed" and isinstance(r.error, Mute)


class NoRoom(Exception):
    status_code = 429
    headers = {"x-outlast-code": "admission_timeout"}


def test_a_call_that_found_no_room_for_a_while_is_not_held_against_its_item(rt):
    def fn(i):
        work_.ran.append(i)
        if len(work_.ran) == 1:
            raise NoRoom
        return i

    work_ = Work()
    (r,) = batch(rt, [0], fn)
    assert (r.ok, r.attempts, len(work_.ran)) == (True, 1, 2)


@pytest.mark.parametrize("timeout", [None, 20])
def test_a_task_that_is_cancelled_by_what_it_waits_for_fails_its_item_only(rt, timeout):
    async def fn(i):
        if i == 1:
            inner = asyncio.create_task(asyncio.sleep(60))
            asyncio.get_running_loop().call_soon(inner.cancel)
            await inner
        return i

    def statuses():
        return [r.status for r in asyncio.run(collected(range(3), fn, timeout=timeout))]

    if hasattr(asyncio.Task, "cancelling"):
        assert statuses() == ["done", "failed", "done"]
    else:
        # Python 3.10 does not tell who is cancelled: it counts as the batch.
        with pytest.raises(asyncio.CancelledError):
            statuses()
