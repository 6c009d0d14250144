"""The file of a batch's results."""

import asyncio
import csv
import datetime
import decimal
import gc
import importlib.util
import json
import os
import pathlib
import threading

import pyarrow.parquet
import pytest

import outlast
from batches import Work, batch


def test_wait_drains_and_the_file_is_there_when_all_is_done(rt, home):
    path = home / "out.jsonl"
    gate = threading.Event()
    out = batch(rt, range(5), lambda i: gate.wait(20) and {"i": i}, out=path)
    assert not path.exists()
    gate.set()
    assert out.wait() is out
    assert [(x["key"], x["value"]) for x in lines(path)] == [(str(i), {"i": i}) for i in range(5)]
    assert [p.name for p in home.glob("out.jsonl*")] == ["out.jsonl"]


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def beside(path):
    return [p.name for p in path.parent.glob(f"{path.name}.*")]


def test_its_lines_are_the_same_in_each_life(rt, home):
    path = home / "out.jsonl"

    def fn(i):
        if i == 1:
            raise ValueError("no text")
        if i == 2:
            raise outlast.Skip("empty")
        return outlast.Retry(i)

    told = []
    for _ in range(4):
        batch(rt, range(3), fn, out=path).wait()
        told.append([{k: x.get(k) for k in ("key", "ok", "value", "error")} for x in lines(path)])
    values = {"retries": 0, "base": 0.5, "cap": 60.0, "on": None}
    assert told == 4 * [
        [
            {"key": "0", "ok": True, "value": values, "error": None},
            {"key": "1", "ok": False, "value": None, "error": "ValueError: no text"},
            {"key": "2", "ok": False, "value": None, "error": "Skip: empty"},
        ]
    ], "classes by their fields, as `outlast export` has them"


def test_a_link_stays_one_and_permissions_are_kept(rt, home):
    path, link = home / "target.jsonl", home / "link.jsonl"
    path.write_text("old")
    path.chmod(0o600)
    link.symlink_to(path)
    batch(rt, range(3), lambda i: i, out=link).wait()
    assert link.is_symlink() and [x["value"] for x in lines(path)] == [0, 1, 2]
    assert path.stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("where", [".", "none/out.jsonl", "pipe", "/dev/null"])
def test_a_place_where_no_file_can_be_is_told_before_any_call(rt, home, where):
    os.mkfifo(home / "pipe")
    work_ = Work()
    with pytest.raises(OSError, match="out= "):
        batch(rt, range(3), work_, out=home / where)
    assert work_.ran == [] and not list(home.glob("*.partial.*"))


def test_what_a_killed_process_left_is_removed_and_what_a_live_one_writes_is_not(rt, home):
    path, gate = home / "out.jsonl", threading.Event()
    (home / "out.jsonl.partial.999999").write_text("{}")
    (home / "out.jsonl.partial.mine").write_text("a user's own")
    one = batch(rt, range(3), lambda i: gate.wait(20) and i, out=path, job="one")
    two = batch(rt, range(3), lambda i: gate.wait(20) and i, out=path, job="two")
    pid = os.getpid()
    assert sorted(beside(path)) == sorted([f"out.jsonl.partial.{pid}", f"out.jsonl.partial.{pid}.2", "out.jsonl.partial.mine"])
    gate.set()
    one.wait(), two.wait()
    assert beside(path) == ["out.jsonl.partial.mine"] and len(lines(path)) == 3


def test_nothing_stays_beside_it_however_the_batch_ends(rt, home):
    path = home / "out.jsonl"
    path.write_text("old\n")

    def refuse(i):
        raise ValueError

    async def one_of_many():
        async def fn(i):
            await asyncio.sleep(0)
            return i

        async for _ in outlast.amap(range(100), fn, job="async", out=path):
            break

    for _ in batch(rt, range(100), lambda i: i, out=path, job="left"):
        break
    with pytest.raises(ValueError):
        batch(rt, range(100), refuse, out=path, job="raised", on_error="raise").wait()
    with pytest.raises(outlast.DuplicateKey):
        batch(rt, [1, 1], refuse, out=path, job="refused")
    asyncio.run(one_of_many())
    gc.collect()
    assert beside(path) == [] and path.read_text() == "old\n"


def table(rt, home, name):
    """A job of six items with all that a table has to tell, written to a file of this name."""
    kept = {0: "a text", 1: {"n": [1.5, None]}, 2: decimal.Decimal("1.10"), 3: {"a", "b"}}

    def fn(i):
        if i == 4:
            raise ValueError("no text\nat all")
        if i == 5:
            raise outlast.Skip("empty")
        return kept[i]

    return batch(rt, range(6), fn, out=home / name).wait()


@pytest.mark.parametrize("ending", ["jsonl", "csv", "parquet"])
def test_a_file_is_written_by_its_ending_with_the_same_rows(rt, home, ending):
    path = home / f"out.{ending}"
    table(rt, home, path.name)
    table(rt, home, "rows.jsonl")
    rows = lines(home / "rows.jsonl")
    assert [list(row) for row in rows] == 6 * [["key", "ok", "value", "error", "attempts", "cost_usd", "started", "ended"]]
    assert [(row["ok"], row["value"], row["error"]) for row in rows] == [
        (True, "a text", None),
        (True, {"n": [1.5, None]}, None),
        (True, "1.10", None),
        (True, ["a", "b"], None),
        (False, None, "ValueError: no text\nat all"),
        (False, None, "Skip: empty"),
    ]
    # Of items that ran once: the failed one ran in both starts.
    times = [(row["started"], row["ended"]) for row in rows[:4]]
    if ending == "jsonl":
        assert lines(path)[:4] == rows[:4]
    elif ending == "csv":
        read = list(csv.DictReader(path.open(newline="")))
        assert [(row["started"], row["ended"]) for row in read[:4]] == times
        assert [row["value"] for row in read] == ["a text", '{"n":[1.5,null]}', "1.10", '["a","b"]', "", ""]
        assert [row["ok"] for row in read] == 4 * ["true"] + 2 * ["false"] and read[4]["error"] == "ValueError: no text\nat all"
    else:
        read = pyarrow.parquet.read_table(path).to_pylist()
        assert [row["value"] for row in read] == ["a text", '{"n":[1.5,null]}', "1.10", '["a","b"]', None, None]
        assert [row["error"] for row in read] == [row["error"] for row in rows]
        assert [tuple(row[at].strftime("%Y-%m-%dT%H:%M:%S.%fZ") for at in ("started", "ended")) for row in read[:4]] == times


def test_values_of_one_kind_keep_their_type_in_parquet_and_in_frames(rt, home):
    made = batch(rt, range(3), lambda i: {"n": i, "at": datetime.date(2026, 1, 1 + i)}, out=home / "out.parquet").wait()
    values = [{"n": i, "at": datetime.date(2026, 1, 1 + i)} for i in range(3)]
    assert pyarrow.parquet.read_table(home / "out.parquet")["value"].to_pylist() == values
    empty = batch(rt, range(3), lambda i: {}, out=home / "empty.parquet", job="empty").wait()
    assert pyarrow.parquet.read_table(home / "empty.parquet")["value"].to_pylist() == 3 * ["{}"]
    for holder in (made, outlast.job("j", store=rt)):
        assert holder.to_arrow()["value"].to_pylist() == values
        frame = holder.to_pandas()
        assert list(frame["value"]) == values and frame["attempts"].dtype == "int64"
        assert str(frame["ended"].dtype).endswith("UTC]") and (frame["ended"] >= frame["started"]).all()
    assert list(empty.to_pandas()["value"]) == [{}, {}, {}]
    some = batch(rt, range(2), lambda i: i if i else 1 / i, job="some").wait().to_pandas()
    assert [repr(value) for value in some["value"]] == ["None", "1"] and some["error"][0] == "ZeroDivisionError: division by zero"


@pytest.mark.parametrize("name", ["out", "out.xlsx", "out.json", "out.jsonl.gz"])
def test_an_ending_that_means_nothing_is_told_before_any_call(rt, home, name):
    with pytest.raises(ValueError, match=r"out= wants a file that ends in \.jsonl, \.csv, \.parquet, had"):
        batch(rt, range(3), pytest.fail, out=home / name)
    assert beside(home / name) == []


def test_parquet_without_a_library_for_it_is_told_before_any_call(rt, home, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(ImportError, match="pip install pyarrow"):
        batch(rt, range(3), pytest.fail, out=home / "out.parquet")


def test_results_are_kept_and_come_from_the_store_as_often_as_they_are_asked_for(rt):
    """Bug: `map(...).wait()`, and a second iteration, gave nothing. Consequence: an empty list, without a word. Cause: each
    result was handed out once."""

    def fn(i):
        if i == 1:
            raise ValueError("one")
        return {"i": i}

    async def later(i):
        return fn(i)

    async def awaited():
        out = await outlast.amap(range(3), later, job="async", key=str)
        return [[r.key async for r in out], [r.key for r in out], [r.key async for r in out]]

    out = batch(rt, range(3), fn).wait()
    for _ in range(2):
        told = list(out)
        assert [(r.key, r.ok, r.cached) for r in told] == [("0", True, False), ("1", False, False), ("2", True, False)]
        assert told[0].value == {"i": 0} and str(told[1].error) == "one" and told[0].value is not told[0].value
    assert asyncio.run(awaited()) == 3 * [["0", "1", "2"]]
    begun = batch(rt, range(3), fn)
    assert next(begun).cached and [r.key for r in begun] == ["0", "1", "2"] and [r.cached for r in begun] == [True, False, True]


def test_an_async_batch_that_was_not_awaited_is_no_list(rt):
    async def fn(i):
        return i

    out = outlast.amap(range(3), fn, job="j", store=rt)
    with pytest.raises(TypeError, match="once it was awaited"):
        list(out)


def test_a_batch_with_failures_that_ended_is_completed(rt):
    out = table(rt, rt_home(rt), "out.csv")
    assert (out.stats.failed, rt.get("j").status) == (1, "completed")


def rt_home(rt):
    return pathlib.Path(rt.place).parent


def test_what_is_shown_names_the_failure_and_escapes_it(rt):
    def fn(i):
        if i:
            raise ValueError("<b>no</b> text\nat all")
        return i

    out = batch(rt, range(2), fn).wait()
    assert [repr(r) for r in out] == ["<Result 0 done>", "<Result 1 failed: ValueError: <b>no</b> text>"]
    assert repr(out) == "<outlast.Batch j: 1 of 2 items done, 1 failed, 0.00 usd>"
    job = outlast.job("j", store=rt)
    assert repr(job) == "<outlast.Job j: completed, 1 of 2 items done, 1 failed, 0.00 usd>"
    for shown in (out._repr_html_(), job._repr_html_()):
        assert "&lt;b&gt;no&lt;/b&gt; text" in shown and "<b>" not in shown
    assert "1.50 usd" in outlast.Budget(usd="1.5")._repr_html_() and "completed" in rt.get("j")._repr_html_()


@pytest.mark.parametrize("what", ["key", "content"])
def test_an_exception_of_key_or_content_names_the_item(rt, what):
    with pytest.raises(outlast.Unkeyable, match=rf"^{what}= raised KeyError: 'nope' for item 1, {{'id': 'b'}}"):
        batch(rt, [{"id": "a", "nope": 1}, {"id": "b"}], pytest.fail, **{"key": lambda d: d["id"], what: lambda d: d["nope"]})
