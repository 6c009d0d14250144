"""Tries of steps and items: counted over deaths, each a scope of its own; and what a person says of a step in doubt."""

import json
import os
import subprocess
import sys
import textwrap

import pytest

import outlast
from conftest import SOURCES, outlast_program

STEP = """
    import os, signal, sys, outlast
    rt = outlast.connect("runs.db")

    def flaky():
        at = outlast.current()
        print(at.try_, flush=True)
        if at.try_ == 3 and "die" in sys.argv:
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(f"try {at.try_}")

    with rt.run("r") as run:
        run.step("f", flaky, retries=outlast.Retry(4, base=0))
"""


def test_tries_of_a_step_go_on_being_counted_after_a_death(life):
    assert life(STEP, "die").stdout.split() == ["1", "2", "3"]
    # The third was cut off: it goes on, and the fifth is the last.
    done = life(STEP, ok=False)
    assert done.stdout.split() == ["3", "4", "5"] and "OSError: try 5" in done.stderr
    # It was given up: who runs it again has all tries.
    assert life(STEP, ok=False).stdout.split() == ["1", "2", "3", "4", "5"]


def test_a_death_between_two_tries_gives_none_back(life):
    # In its wait for the next try.
    killing = "import outlast.effects; outlast.effects._sleep = lambda s: 'die' in sys.argv and os.kill(os.getpid(), signal.SIGKILL)"
    program = STEP.replace("at.try_ == 3 and ", "False and ").replace("rt = outlast.connect", f"{killing}\n    rt = outlast.connect")
    assert life(program, "die").stdout.split() == ["1"]
    assert life(program, "die").stdout.split() == ["2"]
    assert life(program, ok=False).stdout.split() == ["3", "4", "5"]


ITEM = """
    import os, signal, sys, outlast
    rt = outlast.connect("runs.db")

    def flaky(i):
        at = outlast.current()
        print(at.try_, flush=True)
        if at.try_ == 2 and "die" in sys.argv:
            os.kill(os.getpid(), signal.SIGKILL)
        raise OSError(f"try {at.try_}")

    out = outlast.map([0], flaky, job="j", key=str, store=rt, retries=outlast.Retry(3, base=0)).wait()
    print([r.attempts for r in out.failed])
"""


def test_tries_of_an_item_go_on_being_counted_after_a_death(life):
    assert life(ITEM, "die").stdout.split() == ["1", "2"]
    assert life(ITEM, ok=True).stdout.split() == ["2", "3", "4", "[4]"]
    assert life(ITEM, ok=True).stdout.split() == ["1", "2", "3", "4", "[4]"], "another start has all tries"


# --- in doubt


CHARGE = """
    import os, signal, sys, outlast
    rt = outlast.connect("runs.db")

    def charge(order):
        print("charged", flush=True)
        if "die" in sys.argv:
            os.kill(os.getpid(), signal.SIGKILL)
        return {"receipt": order}

    try:
        with rt.run("r") as run:
            print(run.step("charge", charge, 7, at_most_once=True)["receipt"])
    except outlast.Error as e:
        print(e.code, e)
"""


def resolve(home, *args):
    done = subprocess.run(
        [outlast_program(), "--store", "runs.db", "resolve", *args],
        cwd=home, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    return done.returncode, done.stdout + done.stderr


@pytest.mark.parametrize(
    "said, wanted",
    [
        (["--result", '{"receipt": "seen on the bill"}'], "seen on the bill\n"),
        (["--failed", "the card was declined"], "step_failed step charge(7) of run r failed, as was said of it: the card was declined\n"),
        (["--rerun"], "charged\n7\n"),
    ],
)  # fmt: skip
def test_a_person_resolves_a_step_in_doubt_and_the_run_goes_on_with_it(home, life, said, wanted):
    assert life(CHARGE, "die").stdout == "charged\n"
    doubted = life(CHARGE, ok=True).stdout
    assert doubted.startswith("step_in_doubt") and "outlast resolve r 'charge(" in doubted
    code, listed = resolve(home, "r")
    assert code == 0 and "charge(" in listed and "cut off" in listed
    code, told = resolve(home, "r", "charge", *said)
    assert code == 0, told
    for _ in range(2):
        assert life(CHARGE, ok=True).stdout == wanted
        if said == ["--rerun"]:
            wanted = "7\n"
        else:
            (entry,) = [e for e in journal(home) if e["kind"] == "step"]
            assert entry["state"] == ("failed" if "--failed" in said else "done")
            assert entry["step"]["at_most_once"] and entry["step"]["resolved_by_person"]


def journal(home):
    command = [outlast_program(), "--store", "runs.db", "journal", "r", "--json"]
    return json.loads(subprocess.run(command, cwd=home, capture_output=True, text=True, timeout=60).stdout)["entries"]


def test_what_cannot_be_resolved_is_said(home, life):
    life(CHARGE, "die")
    for args, wanted in [
        (["r", "other", "--rerun"], "other"),
        (["r", "charge"], "--result"),
        (["r", "charge", "--result", "{no json"], "JSON"),
        (["r", "charge", "--result", "1", "--rerun"], "cannot be used with"),
        (["nobody"], "nobody"),
    ]:
        code, told = resolve(home, *args)
        assert code != 0 and wanted in told, (args, told)
    assert resolve(home, "r", "charge", "--result", "1")[0] == 0
    code, told = resolve(home, "r", "charge", "--rerun")
    assert code != 0 and "no step in doubt" in told
    code, told = resolve(home, "r")
    assert code == 0 and "no step" in told


def test_a_step_is_resolved_in_python_too(rt):
    def pay():
        raise OSError("cut off")

    with pytest.raises(OSError):
        with rt.run("r") as run:
            run.step("pay", pay, at_most_once=True)
    with rt.run("r") as run:
        with pytest.raises(outlast.Error) as unknown:
            run.resolve("other", result=1)
        assert unknown.value.code == "unknown_step"
        run.resolve("pay", failed="the bank said no")
        with pytest.raises(outlast.StepFailed, match="the bank said no"):
            run.step("pay", pay, at_most_once=True)
        run.step("free", lambda: 1)
        with pytest.raises(outlast.StepInDoubt, match="its result is recorded"):
            run.resolve("free", result=2)


# --- the state of an item


def state_of(rt, key):
    """Version and value of a key of the job's state; None for a key that never was."""
    from outlast import _native

    found = _native.States.of(rt._engine).get("run:j", "", key)
    return found and found[1:3]


def test_what_an_item_writes_to_the_state_commits_with_its_result(rt):
    def fn(i):
        state = outlast.current().run.state
        state.put(f"k{i}", outlast.current().try_)
        assert state.get(f"k{i}") == outlast.current().try_, "it reads what it has written"
        if i == 1 or (i == 2 and outlast.current().try_ == 1):
            raise ValueError("no")
        return i

    outlast.map(range(3), fn, job="j", key=str, store=rt, retries=outlast.Retry(1, base=0), concurrency=1).wait()
    found = [state_of(rt, f"k{i}") for i in range(3)]
    assert found == [(1, b"1"), None, (1, b"2")]


def test_an_item_whose_state_another_changed_meanwhile_is_tried_again(rt):
    tried = []

    def fn(i):
        state = outlast.current().run.state
        version, value = state.get_versioned("sum", 0)
        tried.append(i)
        if len(tried) == 1:
            # Elsewhere, between the look and the commit.
            outlast.current().run._open_run.put([("run:j", "", "sum", b"40", None)]).wait()
        state.put("sum", value + 2, expected=version)
        return value

    out = outlast.map([0], fn, job="j", key=str, store=rt, retries=outlast.Retry(1, base=0))
    assert [r.value for r in out] == [40] and len(tried) == 2


ITEM_STATE = """
    import os, signal, sys, outlast
    from outlast import _native
    rt = outlast.connect("runs.db")

    def die(at):
        if sys.argv[1:] == [at]:
            os.kill(os.getpid(), signal.SIGKILL)

    record = _native.record_item
    def recording(*args):
        die("before the record")
        ticket = record(*args)
        if sys.argv[1:] == ["after the record"]:
            ticket.wait()
            die("after the record")
        return ticket
    _native.record_item = recording

    def fn(i):
        outlast.current().run.state.put("seen", i)
        die("in the item")
        return i

    print([r.value for r in outlast.map([7], fn, job="j", key=str, store=rt)])
"""


@pytest.mark.parametrize("where, there", [("in the item", False), ("before the record", False), ("after the record", True)])
def test_an_items_result_and_the_state_it_changed_are_both_there_or_neither(home, life, where, there):
    def state():
        with outlast.connect(home / "runs.db") as rt:
            return state_of(rt, "seen")

    assert life(ITEM_STATE, where).returncode == -9
    assert state() == ((1, b"7") if there else None)
    assert life(ITEM_STATE, ok=True).stdout == "[7]\n"
    assert state() == (1, b"7")


# --- large results


def noise(mib):
    return os.urandom(mib << 19).hex()


def test_a_step_and_an_item_may_have_results_of_64_mib(rt, home):
    text = noise(32) + noise(33)
    with rt.run("r") as run:
        assert run.step("large", lambda: text) == text
        assert run.step("small", lambda: 1) == 1
    out = outlast.map([0], lambda i: text, job="j", key=str, store=rt)
    assert [r.value == text for r in out] == [True]
    rt.close()
    again = outlast.connect(home / "runs.db")
    with again.run("r") as run:
        assert run.step("large", lambda: None) == text
    out = outlast.map([0], lambda i: None, job="j", key=str, store=again)
    assert [(r.value == text, r.cached) for r in out] == [(True, True)]
    again.close()


LARGE = """
    import os, sys, asyncio, outlast
    rt = outlast.connect("runs.db")
    text = os.urandom(16 << 20).hex()

    def large(*_):
        print("ran", flush=True)
        return text if "short" not in sys.argv else "short"

    async def alarge(*_):
        return large()

    how = sys.argv[1]
    if how == "step":
        with rt.run("r") as run:
            got = run.step("large", large)
    elif how == "async":
        async def main():
            async with rt.run("r") as run:
                return await run.step("large", alarge)
        got = asyncio.run(main())
    else:
        got = next(outlast.map([0], large, job="r", key=str, store=rt)).value
    print(got == (text if "short" not in sys.argv else "short"), flush=True)
"""


def stored(home):
    """Bytes of the store's files, those that come and go among them."""
    total = 0
    for name in ("runs.db", "runs.db-wal"):
        try:
            total += (home / name).stat().st_size
        except FileNotFoundError:
            pass
    return total


@pytest.mark.parametrize("how", ["step", "async", "item"])
@pytest.mark.parametrize("then", ["long", "short"])
def test_a_death_between_the_parts_of_a_large_result_and_its_record_makes_it_run_again(home, life, how, then):
    (home / "program.py").write_text(textwrap.dedent(LARGE))
    child = subprocess.Popen(
        [sys.executable, "program.py", how], cwd=home, stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(SOURCES)}, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    # Of some 16 MiB, compressed.
    while child.poll() is None and stored(home) < 5 << 20:
        pass
    child.kill()
    assert child.wait() == -9 and child.stdout.read() == "ran\n", "it was killed before the record"
    assert life(LARGE, how, then, ok=True).stdout == "ran\nTrue\n"
