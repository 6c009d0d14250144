"""A person's word on a tool call: asked for by `run.approve`, given by `outlast approve`, over any number of deaths."""

import asyncio
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

import outlast
from conftest import ROOT, SOURCES, outlast_program


class Person:
    """Somebody at the command line."""

    def __init__(self, home):
        self.store = home / "runs.db"
        self.environment = {**os.environ, "OUTLAST_STORE": str(self.store), "USER": "ann"}

    def types(self, *words, ok=True, **env):
        line = [str(outlast_program()), *map(str, words)]
        done = subprocess.run(line, env={**self.environment, **env}, capture_output=True, text=True, timeout=60)
        assert (done.returncode == 0) == ok, f"{words}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done

    def approvals(self, *words):
        if not self.store.exists():
            return []
        return json.loads(self.types("approvals", "--json", *words).stdout)["approvals"]

    def sees(self, count=1):
        """Waits until so many are pending."""
        until = time.monotonic() + 60
        while len(found := self.approvals()) != count:
            assert time.monotonic() < until, found
            time.sleep(0.02)
        return found

    def says(self, *words):
        """Decides, from a thread of its own, once there is something to decide."""

        def decide():
            self.types("approve", self.sees()[0]["id"], *words)

        thread = threading.Thread(target=decide)
        thread.start()
        return thread

    def status(self, run):
        return json.loads(self.types("show", run, "--json").stdout)["status"]


@pytest.fixture
def person(home):
    return Person(home)


def test_an_agent_goes_on_when_a_person_has_approved(rt, person):
    with rt.run("r") as run:
        deciding = person.says("--reason", "go ahead")
        word = run.approve("deploy", {"to": "prod"}, side_effect="write")
        deciding.join()
        assert (word.required, word.decided_by, word.reason) == (True, "ann", "go ahead")
        assert word.decided_at is not None and word.decided_at.tzinfo is not None
        # It is found again, and nobody is asked a second time.
        assert run.approve("deploy", {"to": "prod"}, side_effect="write") == word
        assert person.approvals() == []
        (shown,) = person.approvals("--all")
        assert (shown["id"], shown["tool"], shown["arguments"]) == (word.id, "deploy", {"to": "prod"})
    with rt.run("r") as again:
        assert again.is_replay and again.approve("deploy", {"to": "prod"}) == word
        with pytest.raises(outlast.RunCompleted):
            again.approve("deploy", {"to": "test"})


def test_a_denial_says_why_and_who(rt, person):
    with rt.run("r") as run:
        deciding = person.says("--deny", "--reason", "not on a friday", "--by", "bob")
        with pytest.raises(outlast.ApprovalDenied) as e:
            run.approve("deploy", {"to": "prod"})
        deciding.join()
        assert (e.value.code, e.value.status, e.value.reason, e.value.by) == ("approval_denied", "denied", "not on a friday", "bob")
        assert "bob" in str(e.value) and "friday" in str(e.value)
        with pytest.raises(outlast.ApprovalDenied):
            run.approve("deploy", {"to": "prod"})
    with rt.run("r") as again:
        with pytest.raises(outlast.ApprovalDenied):
            again.approve("deploy", {"to": "prod"})


def test_a_tool_that_only_reads_waits_for_nobody(rt):
    """Bug: a call that states that it has no side effect was refused as a bad one; over REST it waited for a person."""
    with rt.run("r") as run:
        word = run.approve("search", {"q": "tea"}, side_effect="")
        assert (word.required, word.id) == (False, None)
    with rt.run("r") as again:
        assert again.is_replay and not again.approve("search", {"q": "tea"}, side_effect="").required
        with pytest.raises(outlast.RunCompleted):
            again.approve("search", {"q": "tea"})


def test_what_nobody_decides_in_time_is_a_no(rt, person):
    with rt.run("r") as run:
        with pytest.raises(outlast.ApprovalDenied) as e:
            run.approve("deploy", timeout=0.2)
        assert (e.value.code, e.value.status) == ("approval_timeout", "timeout")
        assert run.view().status == "running"
        refused = person.types("approve", e.value.id, ok=False)
        assert "expired" in refused.stderr


def test_equal_arguments_are_one_question_however_they_are_written(rt, person):
    @dataclasses.dataclass
    class Target:
        to: str
        user: str

    with rt.run("r") as run:
        deciding = person.says()
        word = run.approve("deploy", {"to": "prod", "user": "é"})
        deciding.join()
        assert run.approve("deploy", {"user": "é", "to": "prod"}) == word
        assert run.approve("deploy", Target("prod", "é")) == word
        with pytest.raises(outlast.ApprovalDenied):
            run.approve("deploy", {"user": "e", "to": "prod"}, timeout=0.1)


def test_a_key_stands_for_its_arguments_only(rt, person):
    with rt.run("r") as run:
        deciding = person.says()
        run.approve("deploy", {"to": "test"}, key="release")
        deciding.join()
        with pytest.raises(outlast.Error) as e:
            run.approve("deploy", {"to": "prod"}, key="release")
        assert e.value.code == "other_arguments"
        for bad in (0, -1, float("nan")):
            with pytest.raises(ValueError):
                run.approve("deploy", timeout=bad)
        with pytest.raises(outlast.Error) as e:
            run.approve("")
        assert e.value.code == "bad_approval"
        with pytest.raises(outlast.NotSerializable):
            run.approve("deploy", object())


def test_tasks_wait_beside_each_other_and_the_run_until_the_last(rt, person):
    async def main():
        async with rt.run("r") as run:
            # Only while the loop goes round can this task have them answered.
            asked = [asyncio.create_task(run.approve("deploy", n)) for n in range(3)]
            found = await asyncio.to_thread(person.sees, 3)
            for n, one in enumerate(found):
                assert (await asyncio.to_thread(person.status, "r")) == "waiting"
                await asyncio.to_thread(person.types, "approve", one["id"], *(["--deny"] if n == 1 else []))
            said = await asyncio.gather(*asked, return_exceptions=True)
            assert [type(s).__name__ for s in said].count("ApprovalDenied") == 1
            assert run.view().status == "running"

    asyncio.run(main())


def test_a_person_stops_a_run_that_waits(rt, person):
    with pytest.raises(outlast.StopRequested):
        with rt.run("r") as run:

            def stop():
                person.sees()
                person.types("stop", "r", "--wait", "0s")

            stopping = threading.Thread(target=stop)
            stopping.start()
            try:
                run.approve("deploy")
            finally:
                stopping.join()
    assert rt.get("r").status == "interrupted"


AGENT = """
    import os, sys, outlast
    run_id = os.environ.get("OUTLAST_RUN_ID", "r")
    with outlast.connect().run(run_id) as run:
        with open("asked", "a") as asked:
            asked.write(f"{os.getpid()}\\n")
        try:
            word = run.approve("deploy", {"to": "prod"})
        except outlast.ApprovalDenied as e:
            print("denied", e.by, flush=True)
            sys.exit(0)
        run.step("deploy", lambda: open("deployed", "a").write("x"))
        print("approved by", word.decided_by, flush=True)
"""


def _pids(home, count):
    until = time.monotonic() + 60
    path = home / "asked"
    while not path.exists() or len(lines := path.read_text().split()) < count:
        assert time.monotonic() < until
        time.sleep(0.02)
    return [int(pid) for pid in lines]


@pytest.mark.parametrize("when", ["pending", "decided"])
def test_kill_9_of_the_agent_and_of_the_supervisor_loses_no_question_and_no_answer(home, person, when):
    program = home / "agent.py"
    program.write_text(textwrap.dedent(AGENT))
    environment = {**person.environment, "PYTHONPATH": str(SOURCES)}

    def supervised(*words):
        line = [str(outlast_program()), *words]
        return subprocess.Popen(line, cwd=home, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    first = supervised("run", "--run", "r", "--", sys.executable, str(program))
    (question,) = person.sees()
    # The agent dies, and its supervisor starts it again: it finds its question.
    os.kill(_pids(home, 1)[-1], signal.SIGKILL)
    os.kill(_pids(home, 2)[-1], 0)
    assert [a["id"] for a in person.sees()] == [question["id"]]
    # Everything dies.
    first.kill()
    first.communicate(timeout=60)
    if when == "decided":
        person.types("approve", question["id"])
    next = supervised("resume", "r")
    if when == "pending":
        _pids(home, 3)
        assert [a["id"] for a in person.sees()] == [question["id"]]
        person.types("approve", question["id"])
    out, err = next.communicate(timeout=60)
    assert next.returncode == 0, err
    assert "approved by ann" in out
    assert (home / "deployed").read_text() == "x"
    assert len(person.approvals("--all")) == 1
    assert person.status("r") == "completed"


def test_the_agent_does_not_approve_itself(home, person, life):
    """From within a run neither the command nor REST decides."""
    program = home / "agent.py"
    program.write_text(textwrap.dedent("""
        import json, os, subprocess, threading, urllib.request, urllib.error, outlast

        def cheat():
            store, url, token = (os.environ[f"OUTLAST_{n}"] for n in ("STORE", "URL", "TOKEN"))
            program = os.environ["PROGRAM"]
            listed = []
            while not listed:
                done = subprocess.run([program, "approvals", "--json"], capture_output=True, text=True)
                listed = json.loads(done.stdout)["approvals"]
            id = listed[0]["id"]
            done = subprocess.run([program, "approve", id], capture_output=True, text=True)
            print("command", done.returncode, "is a person's here" in done.stderr, flush=True)
            request = urllib.request.Request(
                f"{url}/v1/approvals/{id}", data=b'{"decision":"approve"}', headers={"Authorization": f"Bearer {token}"})
            try:
                urllib.request.urlopen(request)
            except urllib.error.HTTPError as e:
                print("rest", e.code, e.headers["X-Outlast-Code"], flush=True)
            open("cheated", "x").close()

        cheating = threading.Thread(target=cheat)
        cheating.start()
        with outlast.connect().run() as run:
            try:
                run.approve("deploy")
            except outlast.ApprovalDenied as e:
                print("still", e.status, "by", e.by, flush=True)
        cheating.join()
    """))
    environment = {**person.environment, "PYTHONPATH": str(SOURCES), "PROGRAM": str(outlast_program())}
    line = [str(outlast_program()), "run", "--run", "r", "--", sys.executable, str(program)]
    agent = subprocess.Popen(line, cwd=home, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    until = time.monotonic() + 60
    while not (home / "cheated").exists() and agent.poll() is None and time.monotonic() < until:
        time.sleep(0.02)
    # What the agent tried decided nothing: a person still can.
    for asked in person.sees():
        person.types("approve", asked["id"], "--deny")
    out, err = agent.communicate(timeout=60)
    assert "command 1 True" in out, out + err
    assert "rest 403 no_run_decides" in out, out + err
    assert "still denied by ann" in out, out + err


def test_a_policy_says_what_is_asked_for(home, person):
    settings = home / ".config/outlast"
    settings.mkdir(parents=True)
    (settings / "outlast.toml").write_text(
        '[policies.careful]\ntools = ["search", "deploy"]\nneeds_approval = [{ tool = "deploy" }]\n'
    )
    program = home / "agent.py"
    program.write_text(textwrap.dedent("""
        import outlast
        with outlast.connect().run() as run:
            print("free", run.approve("search", {"q": 1}), flush=True)
            for tool in ("drop", "deploy"):
                try:
                    run.approve(tool, timeout=0.2)
                except outlast.ApprovalDenied as e:
                    print(tool, e.status, flush=True)
    """))
    environment = {**person.environment, "PYTHONPATH": str(SOURCES)}
    line = [str(outlast_program()), "run", "--run", "r", "--policy", "careful", "--", sys.executable, str(program)]
    done = subprocess.run(line, cwd=home, env=environment, capture_output=True, text=True, timeout=60)
    assert "free Approval(id=None, required=False" in done.stdout, done.stdout + done.stderr
    assert "drop blocked" in done.stdout and "deploy timeout" in done.stdout
    assert [a["status"] for a in person.approvals("--all")] == ["timeout", "blocked"]


def test_a_run_of_ones_own_is_under_a_named_policy_too(rt, home, person, life):
    settings = home / ".config/outlast/outlast.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text('[policies.careful]\nusd = 2\ntools = ["search"]\n')
    program = """
        import outlast, sys
        rt = outlast.connect("runs.db")
        with rt.run("r", policy="careful", budget=outlast.Budget(usd=float(sys.argv[1]))) as run:
            print(run.approve("search").required, rt.get("r").budget.usd.limit)
            try:
                run.approve("drop")
            except outlast.ApprovalDenied as e:
                print(e.code)
    """
    assert life(program, 9, ok=True).stdout.split() == ["False", "2.0", "approval_blocked"]
    # It keeps it, also when there is none of the name any more.
    settings.unlink()
    assert life(program, 9, ok=True).stdout.split() == ["False", "2.0", "approval_blocked"]
    missing = life(program.replace('"r"', '"s"'), 9, ok=False)
    assert "unknown_policy" in missing.stderr or "no policy 'careful'" in missing.stderr or 'no policy "careful"' in missing.stderr
