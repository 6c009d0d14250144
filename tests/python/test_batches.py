"""Batches: each item is done once over all lives of its job, and its result is what was recorded."""

import asyncio
import os
import threading
import time

import pytest

import outlast
from batches import Work, batch, collected, results


def test_a_finished_item_is_not_run_again_and_its_recorded_result_is_given(rt):
    first, second = Work(lambda i: (i, i * i)), Work()
    assert results(batch(rt, range(20), first)) == {str(i): [i, i * i] for i in range(20)}
    again = batch(rt, range(20), second)
    assert results(again) == {str(i): [i, i * i] for i in range(20)}, "the first life saw what was recorded, too"
    assert sorted(first.ran) == list(range(20)) and second.ran == []
    assert (again.stats.done, again.stats.cached) == (20, 20)


def test_async_items_are_done_once(rt):
    ran = []

    async def fn(item):
        ran.append(item)
        await asyncio.sleep(0)
        return item + 1

    for _ in range(2):
        out = asyncio.run(collected(list(range(50)), fn, concurrency=8))
        assert [r.value for r in out] == list(range(1, 51))
    assert sorted(ran) == list(range(50))


def test_an_awaited_batch_is_whole(rt):
    async def fn(item):
        if item == 3:
            raise ValueError("three")
        return item

    async def source():
        for i in range(10):
            yield i

    async def main():
        return await outlast.amap(source(), fn, job="j")

    out = asyncio.run(main())
    assert (out.stats.done, out.stats.failed, len(out.failed)) == (9, 1, 1)


def test_values_of_classes_come_back_as_their_class(rt):
    made = [r.value for r in batch(rt, ["1h", "2d"], lambda t: outlast.Budget(wall=t))]
    assert made == [outlast.Budget(wall="1h"), outlast.Budget(wall="2d")]


@pytest.mark.parametrize("order", ["input", "completion"])
def test_results_stream_while_the_batch_runs(rt, order):
    gate = threading.Event()
    out = batch(rt, range(3), lambda i: gate.wait(20) if i == 2 else i, order=order, concurrency=3)
    first = [next(out).value, next(out).value]
    gate.set()
    assert sorted(first) == [0, 1] and next(out).value is True
    assert [r.value for r in out] == [*first, True]


def test_results_come_in_the_order_of_the_input_or_as_they_are_done(rt):
    def fn(i):
        if i == 0:
            done.wait(20)
        return i

    for order, wanted in (("completion", [1, 2, 3, 0]), ("input", [0, 1, 2, 3])):
        done, got = threading.Event(), []
        out = batch(rt, range(4), fn, job=order, order=order, concurrency=2)
        for _ in range(3 if order == "completion" else 0):
            got.append(next(out).value)
        done.set()
        assert [r.value for r in out] == wanted and got == wanted[: len(got)]


def test_steps_of_an_item_serve_its_later_tries_and_lives(rt):
    fetched = []

    @outlast.step
    def fetch(i):
        fetched.append(i)
        return f"page {i}"

    def fn(i):
        page = fetch(i)
        return outlast.current().run.step("parse", lambda text: parse(text), page)

    def parse(text):
        if broken:
            raise ValueError("cannot parse")
        return text.upper()

    broken = True
    assert [r.status for r in batch(rt, range(3), fn, retries=outlast.Retry(1, base=0))] == ["failed"] * 3
    broken = False
    assert [r.value for r in batch(rt, range(3), fn)] == ["PAGE 0", "PAGE 1", "PAGE 2"]
    assert sorted(fetched) == [0, 1, 2]


def test_an_item_has_an_idempotency_key_of_its_own_that_outlives_its_failures(rt):
    keys = {}

    def fn(i):
        keys.setdefault(i, []).append(outlast.current().idempotency_key)
        if len(keys[i]) == 1:
            raise ValueError
        return 1

    for _ in range(2):
        batch(rt, range(3), fn).wait()
    assert all(a == b for a, b in keys.values()) and len({a for a, _ in keys.values()}) == 3


def test_two_batches_on_one_job_do_each_item_once(rt):
    work_ = Work(lambda i: time.sleep(0.001) or i)
    one, two = (batch(rt, range(200), work_) for _ in range(2))
    assert [r.value for r in two] == [r.value for r in one] == list(range(200))
    assert sorted(work_.ran) == list(range(200)) and rt.get("j").status == "completed"


def test_a_job_is_not_another_run(rt):
    with rt.run("r"):
        pass
    with pytest.raises(outlast.Error, match="no batch job"):
        batch(rt, [1], Work(), job="r")
    with pytest.raises(outlast.Error, match="no batch job"):
        outlast.job("r", store=rt)


def test_a_resume_is_linear_in_what_is_done_and_asks_for_none_of_it(rt, monkeypatch):
    from outlast import _native
    from outlast.batch.jobrun import JobRun
    from outlast.opening import RunSpec

    most = 100_000 if os.environ.get("OUTLAST_TEST_ALL_KILLS") else 8_000
    source = [{"i": i} for i in range(most)]
    job = JobRun(rt, RunSpec("j", job="j"))
    job.create()
    open_run = job.join()
    open_ = [_native.claim_item(open_run, str(i), i, None, None, "keep", "keep", False) for i in range(most)]
    ended = [_native.record_item(open_run, ticket.wait()[1], "done", b"1") for ticket in open_]
    assert all(ticket.wait()[0] == "done" for ticket in ended)
    open_run.end("complete")

    asked = []
    monkeypatch.setattr(_native, "claim_item", lambda *a: asked.append(a))
    took = {}
    for count in (most // 8, most):
        began = time.process_time()
        assert sum(r.value for r in batch(rt, source[:count], lambda i: 1, key=lambda d: d["i"])) == count
        took[count] = time.process_time() - began
    assert asked == [], "what is done costs no question"
    assert took[most] < 20 * took[most // 8]
