"""The article's example, killed at each of its three crash points: it resumes as its table says."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ports import free_port
from test_statehouse_client import OUTLAST, Server

AGENT = Path(__file__).resolve().parents[2] / "examples" / "statehouse" / "agent.py"
STEPS = ["0", "1", "2", "3"]


def lines(directory, name):
    path = directory / name
    return path.read_text().splitlines() if path.exists() else []


def check_effects(logs, asked, called):
    """What the model was asked, how often the API was called for step 2, and that each effect happened once."""
    assert lines(logs, "asked.log") == asked
    assert [line.split()[1] for line in lines(logs, "done.log")] == [f"/search/{n}" for n in STEPS]
    of_two = [line for line in lines(logs, "called.log") if line.endswith("/2")]
    assert len(of_two) == called and len(set(of_two)) == 1


CASES = [
    # Not recorded: the decision is repeated.
    ("before:2", ["0", "1", "2", "2", "3"], 1),
    # Pending: the stored action again, with its id; the model is not asked.
    ("after:2", STEPS, 2),
    # Complete: on to the next step.
    ("done:2", STEPS, 1),
]


@pytest.mark.parametrize("crash, asked, called", CASES)
def test_the_example_resumes_after_each_of_its_crash_points(tmp_path, crash, asked, called):
    server = Server(tmp_path)

    def agent(*more):
        line = [sys.executable, AGENT, "--url", f"127.0.0.1:{server.port}", "--task", "t", "--logs", tmp_path, *more]
        return subprocess.run(line, capture_output=True, text=True, timeout=60)

    assert agent("--crash", crash).returncode == -signal.SIGKILL
    server.restart()
    again = agent()
    assert again.returncode == 0, again.stderr
    assert f"Resuming from step {3 if crash == 'done:2' else 2}" in again.stdout
    assert "Task already complete" in agent().stdout
    check_effects(tmp_path, asked, called)
    server.kill()


@pytest.mark.parametrize("crash, asked, called", CASES)
def test_under_a_run_the_example_needs_nobody_to_start_it_again(tmp_path, crash, asked, called):
    env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "OUTLAST_STORE": str(tmp_path / "runs.db")}
    line = [OUTLAST, "run", "--run", "r", "--grpc", f"127.0.0.1:{free_port()}", "--"]
    line += [sys.executable, AGENT, "--task", "t", "--logs", tmp_path, "--crash", crash, "--once"]
    done = subprocess.run(line, env=env, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    check_effects(tmp_path, asked, called)
