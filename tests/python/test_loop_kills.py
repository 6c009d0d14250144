"""A bare SDK loop with tools in Python and behind MCP; the agent, the recorder, the server and the supervisor with its
proxy are killed at random: nothing is done twice unasked, and the model is told of whatever is in doubt."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path

from conftest import SOURCES, outlast_program

AGENT = Path(__file__).with_name("loop_agent.py")
PEOPLE = ("ann", "bob")
#: Kills in all, `OUTLAST_TEST_KILLS`, and of one run.
KILLS = int(os.environ.get("OUTLAST_TEST_KILLS", "2"))
OF_A_RUN = 4
#: The exit code of a start whose run another process holds.
HELD = 77
SEED = int(os.environ.get("OUTLAST_TEST_SEED", "18"))


def test_a_loop_killed_anywhere_does_nothing_twice_unasked(home):
    """Two kills; as many as OUTLAST_TEST_KILLS says."""
    rng, kills, doubts = random.Random(SEED), 0, 0
    mock = subprocess.Popen([outlast_program(), "mock", "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
    try:
        url = mock.stdout.readline().strip()
        runs = 0
        while kills < KILLS:
            runs += 1
            place = home / f"r{runs}"
            place.mkdir()
            made, told = Story(place, url).lived(rng, min(OF_A_RUN, KILLS - kills))
            kills, doubts = kills + made, doubts + told
        print(f"seed {SEED}: {kills} kills in {runs} runs, {doubts} calls told of as in doubt")
    finally:
        mock.kill()
        mock.wait()


class Story:
    """One run, from its first start to its end, however often it is killed."""

    def __init__(self, home, url):
        self.home = home
        self.log = home / "log"
        self.supervisor = None
        self.env = {
            **os.environ, "HOME": str(home), "PYTHONPATH": str(SOURCES), "OUTLAST_STORE": str(home / "runs.db"),
            "OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "k",
        }  # fmt: skip

    def lived(self, rng, kills):
        """Kills so often at most, and lets the run end: how often it killed, and how many calls the model was told of."""
        self.start()
        made, pause = 0, threading.Event()
        while made < kills and not self.has_ended():
            victim = rng.choice(["agent", "recorder", "server", "supervisor", "guardian"])
            # After this effect or the next ones: those that are there count from where they are.
            wanted = self.effects() + rng.randrange(3)
            while not self.has_ended() and (self.effects() < wanted or self.pid(victim) is None):
                pause.wait(0.005)
            pause.wait(rng.random() * 0.2)
            made += self.kill(victim)
        self.supervisor.wait()
        while not self.has_ended():
            self.supervisor.wait()
        return made, self.judged()

    def has_ended(self):
        """Whether the run has ended; where its supervisor died, another one is started."""
        code = self.supervisor.poll()
        if code is None or code == 0:
            return code == 0
        errors = (self.home / "errors").read_text()
        # A supervisor whose guardian was killed lives on for a moment, and holds the run.
        assert code == -signal.SIGKILL or code == HELD and "is held by" in errors, f"exit {code}\n{errors}"
        self.start()
        return False

    def start(self):
        line = [outlast_program(), "run", "--run", "r", "--usd", "20", "--restarts", "1000", "--"]
        with open(self.home / "errors", "a") as errors:
            self.supervisor = subprocess.Popen(
                [*map(str, line), sys.executable, str(AGENT), str(self.home), str(outlast_program())],
                cwd=self.home, env=self.env, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors,
            )  # fmt: skip

    def kill(self, victim):
        pid = self.pid(victim)
        if pid is None:
            return 0
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            return 0
        if victim in ("supervisor", "guardian"):
            self.supervisor.wait()
        return 1

    def pid(self, victim):
        """The victim's pid; None while there is none."""
        # What is started is the guardian; its child has the proxy.
        if victim == "guardian":
            return self.supervisor.pid if self.supervisor.poll() is None else None
        if victim == "supervisor":
            return children(self.supervisor.pid)[0] if children(self.supervisor.pid) else None
        first = {"agent": [sys.executable, str(AGENT)], "recorder": [str(outlast_program())], "server": [sys.executable]}[victim]
        last = str(self.home if victim == "agent" else self.log)
        for process in Path("/proc").iterdir():
            try:
                words = process.joinpath("cmdline").read_text().split("\0") if process.name.isdigit() else []
            except OSError:
                continue
            if words[: len(first)] == first and last in words:
                return int(process.name)
        return None

    def effects(self):
        return len(self.lines())

    def lines(self):
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [line for line in lines if not line.startswith("initialize")]

    def judged(self):
        """Holds what was done against what the model was told. Gives how many calls it was told of as in doubt."""
        messages = json.loads((self.home / "said.json").read_text())
        answers = {m["tool_call_id"]: m["content"] for m in messages if m["role"] == "tool"}
        calls = [call for m in messages for call in m.get("tool_calls") or []]
        assert len(calls) == len(answers) == 4 * len(PEOPLE)
        told = 0
        for call in calls:
            tool, name = call["function"]["name"], json.loads(call["function"]["arguments"])["text"]
            begins = f"{'append' if tool == 'mail' else tool} {name}"
            did = [line for line in self.lines() if line == begins or line.startswith(f"{begins} ")]
            unknown = "outcome unknown" in answers[call["id"]]
            told += unknown
            story = f"{begins}: {did}, answered {answers[call['id']]!r}"
            if tool == "pay":
                assert not unknown and len(set(did)) == 1, story
            elif tool != "look":
                # What was told of as in doubt may have been done; nothing was done more often than once.
                assert len(did) == 1 or unknown and not did, story
        return told


def children(pid):
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []
