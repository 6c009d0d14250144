"""Who drives a run: one live process, until it is killed, stopped or told to stop."""

import os
import subprocess
import sys
import textwrap
import time

import pytest

import outlast
from conftest import SOURCES, outlast_program


HOLDER = """
    import sys, time, outlast
    with outlast.connect(sys.argv[1]).run("r") as run:
        print(run.step("a", lambda: 1), flush=True)
        sys.stdin.readline()
        try:
            run.step("b", lambda: 2)
            print("went on")
        except outlast.LeaseLost:
            print("lost")
"""


@pytest.fixture
def holder(home, rt):
    """Another process that has run `r` open."""
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(HOLDER), rt.place],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(SOURCES)},
    )  # fmt: skip
    assert child.stdout.readline() == "1\n"
    yield child
    child.kill()
    child.communicate()


def opening(rt):
    """Returns the time that opening a run of nobody takes here and now, in seconds: an opening at once takes not much more."""
    began = time.monotonic()
    with rt.run("nobodys") as run:
        run.step("a", lambda: 1)
    return time.monotonic() - began


def test_a_run_of_a_living_process_is_refused_at_once_and_told_whose_it_is(rt, holder):
    usual = opening(rt)
    began = time.monotonic()
    with pytest.raises(outlast.RunHeld, match=f"pid {holder.pid}"):
        rt.run("r").__enter__()
    assert time.monotonic() - began < 2 + 20 * usual


def test_a_run_of_a_killed_process_is_taken_over_at_once(rt, holder):
    holder.kill()
    holder.wait()
    usual = opening(rt)
    began = time.monotonic()
    with rt.run("r") as run:
        assert run.step("a", lambda: 3) == 1
    assert time.monotonic() - began < 2 + 20 * usual
    assert rt.get("r").raw["restarts"] == 1


def test_a_stopped_process_is_taken_over_when_it_is_asked_for_and_loses_its_lease(rt, holder):
    with rt.run("r", if_held="takeover") as run:
        assert run.step("a", lambda: 3) == 1
        out, _ = holder.communicate("\n", timeout=60)
        assert "lost" in out


def test_a_person_can_stop_a_run(rt):
    with pytest.raises(outlast.StopRequested):
        with rt.run("r") as run:
            run.loop()
            stop = subprocess.Popen([outlast_program(), "--store", rt.place, "stop", "r"], stderr=subprocess.PIPE)
            deadline = time.monotonic() + 60
            while time.monotonic() < deadline:
                run.step("s", lambda: 1)
    assert rt.get("r").status == "interrupted"
    assert stop.wait(60) == 0


def supervised(rt, *arguments, **environment):
    """A supervisor of run `r` in a process of its own."""
    line = [outlast_program(), "--store", rt.place, *arguments]
    return subprocess.Popen(
        line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, **environment},
    )  # fmt: skip


def until(what, done):
    deadline = time.monotonic() + 60
    while not done():
        assert time.monotonic() < deadline, f"waited in vain until {what}"
        time.sleep(0.02)


def test_a_run_is_taken_over_from_a_living_supervisor_whose_agent_ends(rt, home):
    agent = f"echo $$ > {home}/agent.tmp; mv {home}/agent.tmp {home}/agent; exec sleep 1000"
    supervisor = supervised(rt, "run", "--run", "r", "--", "sh", "-c", agent)
    try:
        until("the agent works", lambda: (home / "agent").exists())
        with rt.run("r", if_held="takeover") as run:
            assert run.step("a", lambda: 1) == 1
            out, _ = supervisor.communicate(timeout=60)
            # The agent has ended before its supervisor does.
            assert not os.path.exists(f"/proc/{(home / 'agent').read_text().strip()}"), out
            assert run.step("b", lambda: 2) == 2
        assert supervisor.returncode == 77 and f"pid {os.getpid()}" in out
    finally:
        supervisor.kill()
        supervisor.wait()


ASKS = """
import json, os, urllib.request
body = {"model": "gpt-4o-mini", "max_tokens": 10, "messages": [{"role": "user", "content": "mock: limit 5h 1"}]}
headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
address = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
urllib.request.urlopen(urllib.request.Request(address, json.dumps(body).encode(), headers))
"""


# Bug: a program that wanted a run whose supervisor slept, and had not begun the last attempt, waited for ever, at full
# speed, even with takeover. Cause: the holder was looked up by the newest attempt, and not by the lease.
def test_a_run_is_taken_over_from_a_supervisor_that_waits_without_an_attempt_of_its_own(rt, home):
    mock = subprocess.Popen([outlast_program(), "mock", "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
    url = mock.stdout.readline().strip()
    keys = {"OPENAI_API_KEY": "sk-of-nobody", "OPENAI_BASE_URL": f"{url}/v1"}
    sleeps = []
    try:
        sleeps.append(supervised(rt, "run", "--run", "r", "--", sys.executable, "-c", ASKS, **keys))
        assert any("sleeps until" in line for line in sleeps[0].stdout)
        # Its lease goes to the next supervisor; the only attempt stays its own.
        sleeps[0].kill()
        sleeps[0].wait()
        sleeps.append(supervised(rt, "resume", "r", **keys))
        assert any("sleeps until" in line for line in sleeps[1].stdout)
        with pytest.raises(outlast.RunHeld, match="outlast resume"):
            rt.run("r").__enter__()
        with rt.run("r", if_held="takeover") as run:
            assert run.step("a", lambda: 1) == 1
            out, _ = sleeps[1].communicate(timeout=60)
            assert run.step("b", lambda: 2) == 2
        assert sleeps[1].returncode == 77 and f"pid {os.getpid()}" in out
    finally:
        for one in [*sleeps, mock]:
            one.kill()
            one.wait()
