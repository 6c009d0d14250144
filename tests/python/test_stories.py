"""Stories that Python and JavaScript play alike: one table, an agent in each language, processes that are killed.

Each life of a story is a process. It does things in a run; the table tells what it says of them, and which lines it adds to a
ledger outside. `dies` is `kill -9` of itself.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from conftest import SOURCES, outlast_program

STORIES = Path(__file__).resolve().parents[1] / "stories"
TABLE = json.loads((STORIES / "stories.json").read_text())
RUN = "story"
#: Where `scripts/typescript.sh` has installed runtimes. Read here, because tests do not see such variables.
BESIDE = os.environ.get("OUTLAST_TEST_TYPESCRIPT", "")


def javascript(runtime, *words):
    """A line that plays in Node, or in a runtime that `scripts/typescript.sh` has installed."""
    own = Path(BESIDE, "node_modules", ".bin", runtime)
    found = shutil.which("node") if runtime == "node" else str(own)
    assert found and Path(found).exists(), f"{runtime} is wanted: scripts/setup.sh npm, scripts/typescript.sh DIRECTORY"
    return [found, *words, str(STORIES / "agent.mjs")]


PLAYERS = {
    "python": lambda: [sys.executable, str(STORIES / "agent.py")],
    "node": lambda: javascript("node"),
    "bun": lambda: javascript("bun"),
    "deno": lambda: javascript("deno", "run", "--allow-all"),
}


def lines(path):
    return path.read_text().splitlines() if path.exists() else []


class Play:
    def __init__(self, home, player):
        self.home, self.player = home, player
        self.ledger = home / "ledger"
        self.env = {
            **os.environ,
            "PYTHONPATH": str(SOURCES),
            "OUTLAST_BIN": str(outlast_program()),
            "OUTLAST_STORE": str(home / "runs.db"),
            "STORY_RUN": RUN,
            "STORY_LEDGER": str(self.ledger),
        }

    def ask(self, *words):
        return subprocess.run([outlast_program(), *words], env=self.env, capture_output=True, text=True, timeout=60)

    def outlast(self, *words):
        done = self.ask(*words)
        assert done.returncode == 0, (words, done.stderr)

    def begin(self, life, said):
        env = {**self.env, "STORY_LIFE": json.dumps(life), "STORY_SAID": str(said)}
        return subprocess.Popen(self.player, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def until(self, what, process):
        """Waits until `what()` gives something, while the process lives."""
        while not (found := what()):
            assert process.poll() is None, process.communicate()[0]
            time.sleep(0.02)
        return found

    def answer(self, word, process):
        """A person answers the first question that is asked, if one is asked."""

        def asked():
            listed = self.ask("approvals", "--json")
            # The process may not have made the store yet.
            return listed.returncode == 0 and json.loads(listed.stdout)["approvals"]

        found = self.until(asked, process)
        self.outlast("approve", found[0]["id"], "--by", "ann", *(["--deny"] if word == "no" else []))

    def live(self, number, life):
        if "types" in life:
            self.outlast(*[RUN if word == "RUN" else word for word in life["types"]])
        holder = None
        if life.get("beside"):
            held = self.home / "held"
            holder = self.begin({"does": [["hold"], ["die"]]}, held)
            self.until(lambda: lines(held), holder)
        before, said = len(lines(self.ledger)), self.home / f"said-{number}"
        process = self.begin(life, said)
        if "approves" in life:
            self.answer(life["approves"], process)
        out, _ = process.communicate(timeout=120)
        if holder:
            holder.communicate(timeout=60)
        told = [json.loads(line) for line in lines(said)]
        wanted = [*life["says"], *([{"opens": life["opens"]}] if "opens" in life else [])]
        assert told == wanted, (number, life, out)
        assert lines(self.ledger)[before:] == life["adds"], (number, life, out)


def play(home, player, story):
    playing = Play(home, PLAYERS[player]())
    for number, life in enumerate(story["lives"], 1):
        playing.live(number, life)


@pytest.mark.parametrize("story", TABLE, ids=lambda story: story["name"])
def test_the_story_in_python(home, story):
    play(home, "python", story)


@pytest.mark.clients
@pytest.mark.parametrize("player", ["node", "bun", "deno"])
@pytest.mark.parametrize("story", TABLE, ids=lambda story: story["name"])
def test_the_story_in_javascript(home, player, story):
    play(home, player, story)
