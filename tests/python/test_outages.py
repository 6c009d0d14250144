"""A store that is away: nothing new is begun, what is open is recorded when it is back, and the run goes on."""

import subprocess
import sys
import time
from contextlib import contextmanager

import outlast
import pytest


# A process of its own: file locks hold nobody off within one process.
HOLDER = """
import sqlite3, sys
other = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=60)
other.execute("BEGIN IMMEDIATE")
print("held", flush=True)
sys.stdin.readline()
other.execute("ROLLBACK")
"""


@contextmanager
def store_away(path):
    """Another program holds the store's lock: nothing can be written."""
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        yield
        other.stdin.write("\n")


def until_told(run, word):
    """Waits until the heartbeat tells the run so."""
    patience = time.monotonic() + 60
    while run._open_run.word() != word:
        assert time.monotonic() < patience, f"never told {word!r}"
        time.sleep(0.01)


# Bug: a process that could not renew its lease went on beginning steps.
# Consequence: another process had taken the run over by then, and both did the same work.
# Cause: a heartbeat that failed was a warning in the log.
def test_a_process_cut_off_from_its_store_begins_nothing_and_goes_on_when_it_is_back(rt, home):
    with rt.run("r") as run:

        def work():
            with store_away(home / "runs.db"):
                until_told(run, "away")
                with pytest.raises(outlast.LeaseLost, match="begins nothing now"):
                    run.step("during", lambda: 1)
            return "done meanwhile"

        assert run.step("open", work) == "done meanwhile"
        until_told(run, "go on")
        assert run.step("during", lambda: 2) == 2
    with rt.run("r") as again:
        assert again.step("open", lambda: "again") == "done meanwhile"
