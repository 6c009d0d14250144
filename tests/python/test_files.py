"""Files that a program keeps with its run: as each step leaves them, whenever the program is killed."""

import asyncio
import json
import os
import shutil
import subprocess

import pytest

import outlast
from conftest import outlast_program

POSTGRES = os.environ.get("OUTLAST_TEST_POSTGRES", "")


def typed(home, *words, store="runs.db"):
    done = subprocess.run(
        [outlast_program(), "--store", store, *words], cwd=home, capture_output=True, text=True, env={**os.environ}
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def snapshots(home, run="r", store="runs.db"):
    return json.loads(typed(home, "files", run, "--json", store=store))["snapshots"]


def tree(directory):
    return {str(path.relative_to(directory)): path.read_text() for path in directory.rglob("*") if path.is_file()}


@pytest.fixture
def work(home):
    directory = home / "work"
    directory.mkdir()
    return directory


def write(path, text):
    with open(path, "a") as file:
        file.write(text)


def test_a_run_has_the_files_that_each_step_left(rt, home, work):
    write(work / "a", "0")
    with rt.run("r", files=work) as run:
        run.step("one", write, work / "a", "1", key="one")
        run.step("idle", len, "abc", key="idle")
        run.step("two", write, work / "b", "2", key="two")
        write(work / "c", "3")
    found = snapshots(home)
    assert [(s["moment"], s["key"]) for s in found] == [("begin", None), ("step", "one"), ("step", "two"), ("end", None)]
    assert [[c["path"] for c in s["changes"]] for s in found] == [[], ["a"], ["b"], ["c"]]
    assert typed(home, "files", "show", "r", f"a@{found[1]['entry']}") == "01"
    typed(home, "undo", "r", "--to", str(found[1]["entry"]))
    assert tree(work) == {"a": "01"}
    typed(home, "undo", "r")
    assert tree(work) == {"a": "0"}


def test_a_failed_step_left_its_files_to_the_end_of_the_life(rt, home, work):
    def fails():
        write(work / "a", "x")
        raise ValueError

    with pytest.raises(ValueError):
        with rt.run("r", files=work) as run:
            run.step("fails", fails, key="fails")
    assert [s["moment"] for s in snapshots(home)] == ["begin", "end"]
    with rt.run("r", files_from="last-step") as run:
        run.step("looks", lambda: tree(work), key="looks")
    assert tree(work) == {}


def test_steps_of_tasks_have_the_files_that_they_left(rt, home, work):
    async def append(name):
        write(work / name, name)

    async def main():
        async with rt.run("r", files=work) as run:
            await run.step("a", append, "a", key="a")
            await run.step("b", append, "b", key="b")

    asyncio.run(main())
    assert [s["key"] for s in snapshots(home)] == [None, "a", "b"]


def test_items_of_a_batch_have_the_files_that_they_left(rt, home, work):
    def item(name):
        write(work / name, name)
        return name

    batch = outlast.map(["a", "b"], item, job="job", key=str, concurrency=1, files=work, store=rt, progress=False)
    assert [result.value for result in batch] == ["a", "b"]
    found = snapshots(home, "job")
    assert [(s["moment"], s["key"]) for s in found] == [("begin", None), ("item", "a"), ("item", "b")]


def test_a_later_life_keeps_files_untold_and_in_another_directory_when_told(rt, home, work):
    other = home / "other"
    other.mkdir()
    for options in ({"files": work}, {}, {"files": other}):
        with pytest.raises(ZeroDivisionError):
            with rt.run("r", **options):
                raise ZeroDivisionError
        told = json.loads(typed(home, "files", "r", "--json"))["directory"]
        assert told == str(other if options.get("files") == other else work)


def test_a_program_says_which_files_are_kept(rt, home, work):
    write(work / ".gitignore", "*.log\n")
    for name in ("a.log", "a.tmp", ".env", "a"):
        write(work / name, "0")
    files = outlast.Files(work, ignored=True, exclude=["*.tmp", "!.env"])

    def kept(paths):
        shown = [subprocess.run(
            [outlast_program(), "--store", "runs.db", "files", "show", "r", f"{path}@{snapshots(home)[-1]['entry']}"], cwd=home
        ).returncode == 0 for path in paths]
        return dict(zip(paths, shown, strict=True))

    wanted = {"a.log": True, "a.tmp": False, ".env": True, "a": True}
    for given in (files, work, None):
        with pytest.raises(ZeroDivisionError):
            with rt.run("r", files=given) as run:
                run.step("write", write, work / "a", "1", key=str(given))
                raise ZeroDivisionError
        assert kept(wanted) == wanted


def test_a_limit_stops_snapshots_and_not_the_program(rt, home, work):
    write(work / "a", "0")
    with rt.run("r", files=outlast.Files(work, max_bytes=1)) as run:
        run.step("write", write, work / "a", "1")
    assert rt.get("r").status == "completed"
    assert list((home / "runs.db.files").glob("*.pack")) == []


def test_what_is_no_directory_is_refused(rt, home):
    with pytest.raises(TypeError, match="files wants a directory"):
        rt.run("r", files=3)
    with pytest.raises(TypeError, match="exclude wants a list of patterns"):
        outlast.Files(home, exclude="*.tmp")
    with pytest.raises(ValueError, match="max_bytes wants a number above 0"):
        outlast.Files(home, max_bytes=0)
    with pytest.raises(ValueError, match="files_from wants"):
        rt.run("r", files=home, files_from="now")
    with pytest.raises(outlast.Error) as e:
        rt.run("r", files=home / "nowhere").__enter__()
    assert e.value.code == "files_io"
    assert rt.get("r").status == "interrupted"


#: Three steps of two writes each. It kills itself at the tick whose number it is given, or never.
TICKING = """
import os, signal, sys
import outlast
from outlast import opening

left = int(sys.argv[1])

def tick():
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)

class Ticking:
    def __init__(self, open_run):
        self._open_run = open_run
    def __getattr__(self, name):
        return getattr(self._open_run, name)
    def take_files(self, key, is_item):
        tick()
        self._open_run.take_files(key, is_item)
        tick()

claim = opening.claim
opening.claim = lambda run: Ticking(claim(run))

def edit(name):
    for text in (name, " whole"):
        with open(os.path.join("work", "all"), "a") as file:
            file.write(text)
        with open(os.path.join("work", name), "a") as file:
            file.write(text)
        tick()

rt = outlast.connect("runs.db")
with rt.run("r", files="work", files_from="last-step") as run:
    for name in ("a", "b", "c"):
        run.step("edit", edit, name)
"""


def test_a_program_that_is_killed_anywhere_goes_on_with_the_files_of_its_last_step(life, home, monkeypatch):
    monkeypatch.setenv("OUTLAST_DURABILITY", "process")
    finished, at = False, 0
    while not finished:
        at += 1
        work = home / "work"
        shutil.rmtree(work, ignore_errors=True)
        for path in home.glob("runs.db*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        work.mkdir()
        finished = life(TICKING, at).returncode == 0
        life(TICKING, 0, ok=True)
        wanted = {"a": "a whole", "b": "b whole", "c": "c whole", "all": "a wholeb wholec whole"}
        assert tree(work) == wanted, f"killed at {at}"
    assert at == 13, "each step: two writes, before and after its snapshot"
    assert "no damage" in typed(home, "verify")


def test_a_program_on_another_machine_begins_with_the_newest_files(life, home):
    assert POSTGRES, "wanted OUTLAST_TEST_POSTGRES, as `make test` sets it"
    schema = f"files_{os.getpid()}"
    store = f"{POSTGRES}&schema={schema}"
    program = """
    import os, signal, sys
    import outlast

    def edit(name):
        with open("work/log", "a") as file:
            file.write(name)

    with outlast.connect(sys.argv[1]).run("r", files="work") as run:
        for name in ("a", "b"):
            run.step("edit", edit, name)
            if len(sys.argv) > 2:
                os.kill(os.getpid(), signal.SIGKILL)
    """
    (home / "work").mkdir()
    try:
        assert life(program, store, "kill").returncode == -9
        shutil.rmtree(home / "work")
        (home / "elsewhere").mkdir()
        life(program, store, ok=True, env={"HOME": str(home / "elsewhere")})
        assert tree(home / "work") == {"log": "ab"}
        assert [s["moment"] for s in snapshots(home, store=store)] == ["begin", "step", "restored", "step"]
    finally:
        subprocess.run(["psql", "-qc", f"DROP SCHEMA IF EXISTS {schema} CASCADE", POSTGRES], check=True)
