"""Forks: what was done by a snapshot is shared, and never paid again."""

import datetime

import pytest

import outlast
from outlast import JsonlStore, resume_or_start


@pytest.fixture(autouse=True)
def unsynced(monkeypatch):
    monkeypatch.setenv("OUTLAST_DURABILITY", "process")


class Work:
    def __init__(self):
        self.done = []

    def __call__(self, i):
        self.done.append(i)
        return {"i": i}


def steps(run, work, n):
    return [run.step("work", work, i) for i in range(n)]


def test_a_fork_goes_on_from_a_named_snapshot(rt):
    work = Work()
    with rt.run("r") as run:
        steps(run, work, 3)
        run.checkpoint("cursor", 3)
        run.snapshot("before")
        run.step("work", work, 3)
        run.checkpoint("cursor", 4)
    for _ in range(2):
        with rt.run("r", from_snapshot="before") as fork:
            assert fork.id == "r:before"
            assert fork.latest_checkpoint("cursor") == 3
            assert steps(fork, work, 5) == [{"i": i} for i in range(5)]
    assert work.done == [0, 1, 2, 3, 3, 4]
    assert rt.get("r:before").raw["parent"] == "r"


def test_a_fork_knows_what_its_origin_knew_then(rt):
    def think(n):
        outlast.current().run.state.put("thought", {"n": n})
        return n

    with rt.run("r") as run:
        run.step("think", think, 1)
        run.snapshot("before")
        run.step("think", think, 2)
    with rt.run("r", from_snapshot="before") as fork:
        assert fork.step("think", think, 1) == 1 and fork.state.get("thought") == {"n": 1}
        fork.state.put("thought", {"n": 7})
    with rt.run("r", from_snapshot="before") as fork:
        assert fork.state.get("thought") == {"n": 7}
    with rt.run("r") as run:
        assert run.state.get("thought") == {"n": 2}


def test_a_fork_calls_no_tool_again_that_its_origin_has_called(rt):
    done = []

    @outlast.tool
    def charge(cents):
        done.append(cents)
        return f"receipt {cents}"

    with rt.run("r") as run:
        assert charge(1) == "receipt 1"
        run.snapshot("before")
        charge(2)
    for _ in range(2):
        with rt.run("r", from_snapshot="before"):
            assert [charge(1), charge(3)] == ["receipt 1", "receipt 3"]
    assert done == [1, 2, 3]


def test_a_fork_goes_on_from_the_end_of_an_attempt_or_a_time(rt):
    work = Work()
    with pytest.raises(RuntimeError), rt.run("r") as run:
        steps(run, work, 2)
        raise RuntimeError
    at = datetime.datetime.now(datetime.timezone.utc)
    with rt.run("r") as run:
        steps(run, work, 3)
    for point, again in ((1, [2]), (at, [2]), (2, []), (datetime.datetime(2001, 1, 1, tzinfo=datetime.timezone.utc), [0, 1, 2])):
        work.done.clear()
        with rt.run("r", from_snapshot=point) as fork:
            steps(fork, work, 3)
        assert work.done == again, point


def test_a_snapshot_that_is_not_there_is_told(rt):
    with rt.run("r"):
        pass
    for point in ("never", 7):
        with pytest.raises(outlast.UnknownSnapshot), rt.run("r", from_snapshot=point):
            pass
    with pytest.raises(outlast.UnknownRun), rt.run("none", from_snapshot="x"):
        pass
    for wrong, error in ((1.5, TypeError), (datetime.datetime(2026, 1, 1), ValueError)):
        with pytest.raises(error), rt.run("r", from_snapshot=wrong):
            pass


def test_a_batch_goes_on_in_a_fork(rt):
    work = Work()

    def batch(n, **more):
        return outlast.map(range(n), work, job="b", concurrency=1, store=rt, progress=False, **more)

    assert [r.value["i"] for r in batch(3)] == [0, 1, 2]
    assert [r.value["i"] for r in batch(5)] == [0, 1, 2, 3, 4]
    work.done.clear()
    for again in ([3, 4], []):
        assert [r.value["i"] for r in batch(5, from_snapshot=1)] == [0, 1, 2, 3, 4]
        assert work.done == again
        work.done.clear()


def test_a_generator_goes_on_in_a_fork(home):
    work = Work()
    path = home / "r.jsonl"

    def generator(items):
        for i in items:
            if i == 5 and len(work.done) == 5:
                raise RuntimeError
            yield work(i)

    def life(n, **more):
        try:
            return list(resume_or_start("g", JsonlStore(path), generator, (range(n),), **more))
        except RuntimeError:
            return None

    assert life(8) is None
    assert life(3) == [{"i": i} for i in range(3)]
    work.done.append("second")
    assert len(life(8)) == 8
    work.done[:] = ["third"]
    assert len(life(8, from_snapshot=1)) == 8
    assert work.done == ["third", 5, 6, 7]
    work.done[:] = ["fourth"]
    assert len(life(8, from_snapshot=1)) == 8
    assert len(life(8)) == 8
    assert work.done == ["fourth"]


def test_a_fork_of_a_file_has_a_file_of_its_own(home):
    """Bug: once a file's job was forked, the unchanged script went on in the fork. Consequence: what the job had done after
    the snapshot was done, and paid, again. Cause: the newest run of a job's name was the file's run."""
    work = Work()
    path, own = home / "r.jsonl", home / "r.attempt-1.jsonl"

    def life(n, **more):
        return list(resume_or_start("g", JsonlStore(path), lambda items: (work(i) for i in items), (range(n),), **more))

    life(3)
    life(6)
    before = path.read_bytes()
    work.done.clear()
    assert len(life(8, from_snapshot=1)) == 8 and work.done == [3, 4, 5, 6, 7]
    assert path.read_bytes() == before and len(own.read_text().splitlines()) == 8
    work.done.clear()
    assert len(life(6)) == 6 and work.done == []
    assert len(life(7)) == 7 and work.done == [6]
    assert len(JsonlStore(path).results("g")) == 7 and len(JsonlStore(own).results("g")) == 8
    # A fork whose file is gone writes it anew.
    own.unlink()
    work.done.clear()
    assert len(life(8, from_snapshot=1)) == 8 and work.done == [] and len(own.read_text().splitlines()) == 8
