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
    """How long a run of nobody takes to open here and now: what is done at once takes no more by much."""
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
    assert rt.get("r").raw["spent"]["restarts"] == 1


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
