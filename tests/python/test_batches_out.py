"""The file of a batch's results."""

import asyncio
import gc
import json
import os
import threading

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
            {"key": "2", "ok": False, "value": None, "error": "empty"},
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
