"""Batches: each item is done once over all lives of its job, whatever its input, its code and its failures do."""

import asyncio
import functools
import json
import os
import threading
import time

import pytest

import outlast
from outlast.batch import code, options, progress


class Work:
    """A function of an item that notes what it is called with."""

    def __init__(self, body=lambda item: item):
        self.body = body
        self.ran = []

    def __call__(self, item):
        self.ran.append(item)
        return self.body(item)


def results(batch):
    return {r.key: (r.value if r.ok else r.status) for r in batch}


def batch(rt, items, fn, **options):
    return outlast.map(items, fn, **{"job": "j", "key": str, "store": rt, "concurrency": 4, **options})


async def collected(items, fn, **options):
    return [r async for r in outlast.amap(items, fn, **{"job": "j", "key": str, **options})]


# --- what is done is done


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
    assert sorted(first) == [0, 1] and [r.value for r in out] == [True]


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
        assert got + [r.value for r in out] == wanted


def test_wait_drains_and_the_file_is_there_when_all_is_done(rt, home):
    path = home / "out.jsonl"
    gate = threading.Event()
    out = batch(rt, range(5), lambda i: gate.wait(20) and {"i": i}, out=path)
    assert not path.exists()
    gate.set()
    assert out.wait() is out
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(x["key"], x["value"]) for x in lines] == [(str(i), {"i": i}) for i in range(5)]
    assert [p.name for p in home.glob("out.jsonl*")] == ["out.jsonl"]


# --- the input


def test_keys_that_are_equal_are_an_error_before_any_call(rt):
    work_ = Work()
    with pytest.raises(outlast.DuplicateKey, match="items 0 and 2"):
        batch(rt, ["a", "b", "a"], work_)
    assert work_.ran == []


@pytest.mark.parametrize("dedupe, wanted", [("first", ["a", "b"]), ("ordinal", ["a", "b", "a#2", "a#3"])])
def test_equal_keys_are_left_out_or_numbered_if_asked(rt, dedupe, wanted):
    assert [r.key for r in batch(rt, ["a", "b", "a", "a"], Work(), dedupe=dedupe)] == wanted


def test_without_a_key_an_item_is_known_by_its_content(rt):
    work_ = Work()
    for items in ([{"a": 1}, {"b": 2}], [{"b": 2}, {"a": 1}, {"c": 3}]):
        batch(rt, items, work_, key=None).wait()
    assert work_.ran == [{"a": 1}, {"b": 2}, {"c": 3}] or work_.ran == [{"b": 2}, {"a": 1}, {"c": 3}]


def test_reordering_is_free_new_keys_run_and_vanished_ones_are_counted(rt):
    batch(rt, range(10), Work()).wait()
    work_ = Work()
    out = batch(rt, [12, 9, 3, 11, 0], work_)
    assert [r.value for r in out] == [12, 9, 3, 11, 0]
    assert sorted(work_.ran) == [11, 12] and out.stats.vanished == 7
    assert outlast.job("j", store=rt).counts["done"] == 12, "what vanished stays in the store"


def changed(rt, items, work_, **options):
    return batch(rt, items, work_, key=lambda d: d["id"], content=lambda d: d["text"], **options)


def docs(*texts):
    return [{"id": f"d{i}", "text": text, "seen": 1} for i, text in enumerate(texts)]


def test_an_item_with_other_content_runs_again_and_the_rest_does_not(rt):
    texts = ["t"] * 40
    changed(rt, docs(*texts), Work(lambda d: d["text"])).wait()
    texts[7] = "new"
    work_ = Work(lambda d: d["text"])
    items = [{**d, "seen": 2} for d in docs(*texts)]
    assert [r.value for r in changed(rt, items, work_)] == texts
    assert [d["id"] for d in work_.ran] == ["d7"]


@pytest.mark.parametrize("on_change, runs", [("rerun", 1), ("keep", 0)])
def test_other_content_runs_again_or_is_kept(rt, on_change, runs):
    changed(rt, docs("one"), Work(lambda d: d["text"])).wait()
    work_ = Work(lambda d: d["text"])
    out = changed(rt, docs("two"), work_, on_change=on_change, rerun=True)
    assert [r.value for r in out] == ["two" if runs else "one"] and len(work_.ran) == runs


def test_other_content_fails_if_asked(rt):
    changed(rt, docs("one"), Work()).wait()
    with pytest.raises(outlast.JobChanged, match="'d0'"):
        changed(rt, docs("two"), Work(), on_change="fail")


def test_what_would_be_paid_again_is_told_before_the_first_call(rt):
    changed(rt, docs(*"abcdefghij"), Work(lambda d: d["text"])).wait()
    work_ = Work(lambda d: d["text"])
    with pytest.raises(outlast.JobChanged, match="10 of 10 done items"):
        changed(rt, docs(*"ABCDEFGHIJ"), work_)
    assert work_.ran == []
    changed(rt, docs(*"ABCDEFGHIJ"), work_, rerun=True).wait()
    assert len(work_.ran) == 10


def test_a_version_wins_and_without_one_changed_code_is_warned_of_and_kept(rt, capfd):
    batch(rt, range(4), lambda i: i + 1).wait()
    capfd.readouterr()
    assert [r.value for r in batch(rt, range(6), lambda i: i * 100)] == [1, 2, 3, 4, 400, 500]
    assert "4 items keep the result of its old code, and 2 run with the new" in capfd.readouterr().err
    with pytest.raises(outlast.JobChanged, match="version changed"):
        batch(rt, range(6), lambda i: i * 100, version=2)
    assert [r.value for r in batch(rt, range(6), lambda i: i * 100, version=2, rerun=True)] == [0, 100, 200, 300, 400, 500]
    work_ = Work()
    batch(rt, range(6), work_, version=2).wait()
    assert work_.ran == []


def test_code_is_known_without_its_lines_and_comments():
    def made(source):
        scope = {}
        exec(source, scope)
        return code.digest(scope["f"])

    plain = made("def f(x):\n    return [x for y in {1, 2}]")
    assert plain == made("\n\n# why\ndef f(x):\n    'says what'\n\n    return [x for y in {1, 2}]")
    others = ["def f(x):\n    return [x for y in {1, 3}]", "def f(x, n=2):\n    return [x for y in {1, 2}]", "def f(x):\n    return [g for y in {1, 2}]"]
    assert len({plain, *map(made, others)}) == 4
    assert code.digest(functools.partial(test_code_is_known_without_its_lines_and_comments, 1)) != plain


def test_resume_modes(rt):
    batch(rt, range(4), lambda i: i).wait()
    same, again, other = lambda i: i, Work(), Work()
    assert [r.cached for r in batch(rt, range(4), same, resume="if_unchanged")] == [True] * 4
    with pytest.raises(outlast.JobChanged):
        batch(rt, range(4), other, resume="if_unchanged")
    batch(rt, range(4), again, resume="never").wait()
    assert sorted(again.ran) == [0, 1, 2, 3]


def test_results_of_a_completed_job_expire_and_those_of_an_unfinished_one_do_not(rt):
    def fn(i):
        if i == 1 and not whole:
            raise ValueError
        return i

    whole = False
    batch(rt, range(3), fn).wait()
    work_, whole = Work(fn), True
    batch(rt, range(3), work_, ttl=0).wait()
    assert work_.ran == [1], "it was not completed"
    expired = Work(fn)
    batch(rt, range(3), expired, ttl=0).wait()
    assert sorted(expired.ran) == [0, 1, 2]
    kept = Work(fn)
    batch(rt, range(3), kept, ttl="30d").wait()
    assert kept.ran == []


# --- failures


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
    assert (item.key, item.failed_starts, item.error["type"]) == ("0", 3, "builtins.ZeroDivisionError")
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
        gate.wait(20 if i == 0 else 0.05)
        running.remove(i)
        return i

    out = batch(rt, range(12), fn, timeout=0.2, concurrency=2)
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

    (r,) = asyncio.run(collected([1], fn, timeout=0.2, retries=outlast.Retry(1, base=0)))
    assert r.value == 1 and len(tries) == 2


def test_a_rate_spaces_the_starts(rt):
    began = time.monotonic()
    batch(rt, range(6), Work(), rate="20/s", concurrency=6).wait()
    assert time.monotonic() - began >= 0.25 - 0.01


@pytest.mark.parametrize("text, seconds", [("500/m", 0.12), ("10/s", 0.1), ("3600/h", 1.0), (4, 0.25), (None, None)])
def test_rates_are_read(text, seconds):
    assert options.interval(text) == (None if seconds is None else pytest.approx(seconds))


@pytest.mark.parametrize(
    "given, error",
    [
        ({"rate": "fast"}, ValueError),
        ({"concurrency": 0}, ValueError),
        ({"order": "random"}, ValueError),
        ({"job": ""}, TypeError),
        ({"timeout": -1}, ValueError),
        ({"key": lambda i: None}, TypeError),
    ],
)
def test_bad_arguments_are_told_at_once(rt, given, error):
    with pytest.raises(error):
        batch(rt, [1], Work(), **given)


def test_the_wrong_kind_of_function_is_told_at_once(rt):
    async def fn(i):
        return i

    with pytest.raises(TypeError, match="use outlast.amap"):
        batch(rt, [1], fn)
    with pytest.raises(TypeError, match="use outlast.map"):
        outlast.amap([1], lambda i: i, job="j")


def test_a_result_that_cannot_be_recorded_fails_its_item(rt):
    (r,) = batch(rt, [1], lambda i: object())
    assert r.status == "failed" and isinstance(r.error, outlast.NotSerializable)


# --- what runs in an item


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


# --- several at once, and the end


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
    from outlast.batch import fleeting

    mounts = tmp_path / "mounts"
    mounts.write_text("d / ext4 rw 0 0\nt /dev/shm tmpfs rw 0 0\no /box overlay rw 0 0\n")
    real = open
    monkeypatch.setattr("builtins.open", lambda path, *a, **k: real(mounts if path == "/proc/self/mounts" else path, *a, **k))
    for place, kind in (("/home/x.db", None), ("/dev/shm/x.db", "tmpfs"), ("/box/a/x.db", "overlay"), ("postgres://h/d", None)):
        assert fleeting.kind(place) == kind


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
    assert 4 <= counts["done"] < 100 and counts["open"] == 0


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
    # Whichever is first: a look at the file, or a write that fails.
    assert error.value.code in ("store_vanished", "store_io")
    rt.close()


def test_a_resume_is_linear_in_what_is_done_and_asks_for_none_of_it(rt, monkeypatch):
    from outlast import _native
    from outlast.batch.jobrun import JobRun

    most = 100_000 if os.environ.get("OUTLAST_TEST_ALL_KILLS") else 8_000
    source = [{"i": i} for i in range(most)]
    job = JobRun(rt, "j", None, {})
    job.create()
    seat = job.join()
    open_ = [_native.claim_item(seat, str(i), i, None, None, "keep", "keep", False) for i in range(most)]
    ended = [_native.record_item(seat, ticket.wait()[1], "done", b'{"value":1}') for ticket in open_]
    assert all(ticket.wait()[0] == "done" for ticket in ended)
    seat.end("complete")

    asked = []
    monkeypatch.setattr(_native, "claim_item", lambda *a: asked.append(a))
    took = {}
    for count in (most // 8, most):
        began = time.monotonic()
        assert sum(r.value for r in batch(rt, source[:count], lambda i: 1, key=lambda d: d["i"])) == count
        took[count] = time.monotonic() - began
    assert asked == [], "what is done costs no question"
    assert took[most] < 20 * took[most // 8]
