"""The commands for jobs, on jobs that Python made."""

import decimal
import json
import subprocess
import threading
import time
import traceback

import pytest

import outlast
from batches import Work, batch, until
from conftest import outlast_program
from outlast import JsonlStore, resume_or_start


@pytest.fixture
def command(rt):
    """Runs `outlast …` on the store of `rt`, and gives what it prints: `command("jobs", code=0)`."""

    def run(*args, code=0, store=rt.place):
        # A file of results has a store of its own.
        where = [] if store is None else ["--store", store]
        done = subprocess.run([outlast_program(), *args, *where], capture_output=True, text=True, timeout=60)
        assert done.returncode == code, done.stdout + done.stderr
        return done.stdout + done.stderr

    return run


def test_results_are_exported_as_the_function_returned_them(rt, command):
    batch(rt, range(3), lambda i: {"value": i} if i else outlast.Retry(1)).wait()
    lines = [json.loads(line) for line in command("export", "j").splitlines()]
    retry = {"retries": 1, "base": 0.5, "cap": 60.0, "on": None}
    assert [(x["key"], x["value"]) for x in lines] == [("0", retry), ("1", {"value": 1}), ("2", {"value": 2})]


def test_an_export_has_the_lines_that_a_file_of_results_has(rt, command, home):
    def fn(i):
        if i == 1:
            raise ValueError("no text\nat all")
        if i == 2:
            raise outlast.Skip("empty")
        return {"$outlast": decimal.Decimal("1.10"), "of": {2, 1}}

    batch(rt, range(3), fn, out=home / "out.jsonl").wait()
    assert command("export", "j").splitlines() == [json.dumps(json.loads(line), separators=(",", ":")) for line in open(home / "out.jsonl")]
    lines = [json.loads(line) for line in command("export", "j").splitlines()]
    assert [(x["value"], x["error"]) for x in lines] == [
        ({"$outlast": "1.10", "of": [1, 2]}, None),
        (None, "ValueError: no text\nat all"),
        (None, "Skip: empty"),
    ]


def test_a_halted_job_says_that_its_budget_ended(rt, command):
    def fn(i):
        with outlast.reserve(usd=0.4, label="speech") as held:
            held.settle(usd=0.4)

    with pytest.raises(outlast.BudgetExceeded):
        batch(rt, range(9), fn, budget=outlast.Budget(usd=1), concurrency=1).wait()
    told = command("inspect", "j")
    assert "halted" in told.splitlines()[0] and "budget" in told.splitlines()[1] and "→ outlast --store " in told and " budget j --add-usd" in told


def test_numbers_that_json_does_not_have_are_exported_as_null(rt, command, home):
    values = [float("nan"), {"a": [float("inf"), 1.5], "b": "NaN"}, 10**400]
    batch(rt, range(3), lambda i: values[i], out=home / "out.jsonl").wait()
    lines = [json.loads(line, parse_constant=pytest.fail) for line in command("export", "j").splitlines()]
    assert [x["value"] for x in lines] == [None, {"a": [None, 1.5], "b": "NaN"}, 10**400]
    lines = [json.loads(line, parse_constant=pytest.fail) for line in (home / "out.jsonl").read_text().splitlines()]
    assert [x["value"] for x in lines] == [None, {"a": [None, 1.5], "b": "NaN"}, 10**400]


def test_a_job_tells_what_its_items_raised_and_that_its_script_is_to_be_started(rt, command):
    def fn(i):
        if i == 1:
            raise ValueError("no text\nat all")
        return i

    batch(rt, range(3), fn).wait()
    assert "  1 failed: ValueError: no text\n    input 1 (1)\n" in command("inspect", "j")
    assert "input 1 failed (1): ValueError: no text\n" in command("inspect", "j", "--gaps")
    assert json.loads(command("inspect", "j", "--json"))["failures"][0]["error"] == "ValueError: no text"
    assert "start its script" in command("ls")
    assert "start its program again" in command("resume", "j", code=1)
    for _ in range(2):
        batch(rt, range(3), fn).wait()
    assert "  1 dead: it failed in 3 starts; ValueError: no text\n    input 1 (1)\n" in command("inspect", "j")
    assert "retry --failed" in command("ls"), "its script alone would run nothing"
    assert f"→ outlast --store {rt.place} retry j --failed" in command("show", "j")
    assert rt.get("j").status == "completed"
    command("retry", "j", "--failed")
    job = outlast.job("j", store=rt)
    assert (job.status, job.why, job.counts["open"]) == ("interrupted", "items of it are pending again", 1)


def test_a_job_that_stopped_keeps_its_reason(rt, command):
    """Bug: nothing that looked at a job told why it had stopped. Cause: the reason was raised, and kept nowhere."""

    def check(job, why):
        assert outlast.job(job, store=rt).why == why and why in repr(outlast.job(job, store=rt))
        for words in (["jobs"], ["ls"], ["show", job], ["inspect", job], ["inspect", job, "--attempts"]):
            assert why in " ".join(command(*words).split()), words
        assert json.loads(command("inspect", job, "--json"))["why"] == why

    with pytest.raises(outlast.RepeatedFailure):
        batch(rt, range(30), lambda i: {}["key"], concurrency=1).wait()
    check("j", "20 items in a row failed alike: KeyError: 'key'")
    with pytest.raises(ZeroDivisionError):
        batch(rt, range(3), lambda i: 1 / i, job="zero", concurrency=1, on_error="raise").wait()
    check("zero", "ZeroDivisionError: division by zero")
    batch(rt, range(1, 3), lambda i: 1 / i, job="zero").wait()
    assert outlast.job("zero", store=rt).why is None
    with pytest.raises(ValueError):
        with rt.run("plain"):
            raise ValueError("no\ntext")
    assert (rt.get("plain").status, rt.get("plain").why) == ("interrupted", "ValueError: no")


# Bug: a batch that ended with failures said nothing; `inspect` listed one cause for each of them, by their numbers; and a
# traceback began with frames of this package.
def test_failures_are_told_at_the_end_grouped_by_cause_and_without_frames_of_ours(rt, command, capfd):
    def fn(i):
        if i % 10 == 7:
            raise ValueError(f"no text in doc-{i}")
        return i

    out = batch(rt, range(40), fn).wait()
    assert f"job j: 36 of 40 items done, 4 failed, 0.00 usd: `outlast inspect j --store {rt.place}` tells why" in capfd.readouterr().err
    assert "  4 failed: ValueError: no text in doc-7\n    input 7 (7), 17 (17), 27 (27), … 1 more" in command("inspect", "j")
    frames = traceback.extract_tb(out.failed[0].error.__traceback__)
    assert [frame.name for frame in frames] == ["fn"]
    batch(rt, range(4), lambda i: i, job="whole").wait()
    assert "tells why" not in capfd.readouterr().err


def test_a_job_under_way_tells_how_many_items_its_input_has_and_how_long_the_rest_takes(rt, command):
    go, at_three = threading.Event(), threading.Event()

    def fn(i):
        if i == 3:
            at_three.set()
            assert go.wait(60)
        return i

    out = batch(rt, range(10), fn, concurrency=1)
    assert at_three.wait(60)
    # The batch notes its active time with each heartbeat.
    until(lambda: json.loads(command("inspect", "j", "--json"))["job"]["left_ms"])
    told = json.loads(command("inspect", "j", "--json"))
    assert (told["job"]["items"], told["job"]["done"], told["job"]["open"]) == (10, 3, 7), "they add up"
    assert "3 of 10 items ended" in command("inspect", "j")
    go.set()
    assert out.wait().stats.done == 10
    assert json.loads(command("inspect", "j", "--json"))["job"]["left_ms"] is None
    assert "10 of 10 items ended" in command("inspect", "j")


def test_a_sound_job_is_no_damage(rt, command):
    """Bug: `verify` called every job of a known length damaged, and `--repair` forgot the length. Cause: the number of the
    input's items was compared as if the items told it."""
    batch(rt, range(3), lambda i: i, job="j").wait()
    assert command("verify").endswith("1 run, no damage\n")


def test_what_is_reset_is_run_by_the_next_start(rt, command):
    batch(rt, ["a b", "c"], Work(lambda i: 1 / (i == "c"))).wait()
    assert "2 items will run again" in command("retry", "j", "--failed", "--key", "c", "--key", "c")
    work_ = Work()
    assert [r.value for r in batch(rt, ["a b", "c"], work_)] == ["a b", "c"] and sorted(work_.ran) == ["a b", "c"]
    assert "nothing of it failed" in command("retry", "j", "--failed")
    assert "outlast export j" in command("retry", "j", "--key", "none", code=1)


def test_a_job_is_forked_from_where_a_person_named_it(rt, command):
    work_ = Work()
    batch(rt, range(3), work_).wait()
    command("snapshot", "j", "three")
    batch(rt, range(5), work_).wait()
    assert "a fork of j" in command("fork", "j", "--from-snapshot", "three")
    work_.ran.clear()
    out = batch(rt, range(5), work_, from_snapshot="three").wait()
    assert sorted(work_.ran) == [3, 4] and out.stats.cached == 3
    command("snapshot", "j", "three")
    assert "run j:three exists already" in command("fork", "j", "--from-snapshot", "three", code=1)
    with pytest.raises(outlast.Error) as error:
        batch(rt, range(5), work_, from_snapshot="three")
    assert error.value.code == "run_exists"
    with rt.run("r") as run, pytest.raises(outlast.Error, match="snapshot's name is 1 to 64") as error:
        run.snapshot("a b")
    assert error.value.code == "bad_snapshot"


def test_a_file_of_results_is_a_job_for_every_command(home, command):
    path, done = home / "r.jsonl", []

    def generator(items):
        for i in items:
            done.append(i)
            yield {"value": i}

    def life(n, **more):
        return list(resume_or_start("a job", JsonlStore(path), generator, (range(n),), **more))

    life(2)
    assert "snapshot two at entry" in command("snapshot", str(path), "two", store=None)
    life(4)
    lines = [json.loads(line) for line in command("export", str(path), store=None).splitlines()]
    assert [x["value"] for x in lines] == [{"value": i} for i in range(4)]
    assert "done 4 " in command("inspect", str(path), store=None)
    assert "4 results, no damage" in command("verify", str(path), store=None)
    (found,) = json.loads(command("jobs", "--json", store=f"{path}.outlast.db"))["jobs"]
    job = outlast.job(found["run"], store=f"{path}.outlast.db")
    assert [item.value for item in job.items(status="done")] == [{"value": i} for i in range(4)]
    assert "a fork of" in command("fork", str(path), "--from-snapshot", "two", store=None)
    done.clear()
    assert len(life(4, from_snapshot="two")) == 4 and done == [2, 3]
    # The file is still its own job's.
    assert len(life(5)) == 5 and done == [2, 3, 4]
    assert "done 5 " in command("inspect", str(path), store=None)
    assert len(command("export", str(path), store=None).splitlines()) == 5


def test_a_batch_that_a_person_stops_or_cancels_drains_and_says_so(rt, command):
    def fn(i):
        begun.set()
        time.sleep(0.01)
        return i

    for verb, error, status in (("stop", outlast.StopRequested, "interrupted"), ("cancel", outlast.RunEnded, "cancelled")):
        begun = threading.Event()
        out = batch(rt, range(100_000), fn, job=verb)
        assert begun.wait(20)
        command(verb, verb)
        with pytest.raises(error) as raised:
            out.wait()
        assert "script again" in raised.value.hint or "job=…" in raised.value.hint
        assert (rt.get(verb).status, out.stats.failed) == (status, 0) and out.stats.done < 50_000
    again = batch(rt, range(10), fn, job="stop").wait()
    assert again.stats.done == 10, "started again, it goes on"


def test_the_program_that_changed_a_limit_or_reset_an_item_is_told(rt, command):
    with pytest.raises(ZeroDivisionError), rt.run("t", budget=outlast.Budget(usd=1)):
        raise ZeroDivisionError
    with rt.run("t", budget=outlast.Budget(usd=2, amend=True)):
        pass
    told = command("journal", "t")
    assert "limits" in told and "by python:" in told, told
    batch(rt, range(2), lambda i: i).wait()
    outlast.job("j", store=rt).reset("1")
    assert "reset by python:" in command("journal", "j")


def test_a_job_that_cannot_be_attached_to_is_shown(rt, command):
    """Bug: the hint named `outlast resume`, which goes on with no run of a program's own."""
    batch(rt, range(3), lambda i: 1 / i, job="j").wait()
    told = command("attach", "j", code=1)
    assert "`outlast show j" in told and "resume" not in told
