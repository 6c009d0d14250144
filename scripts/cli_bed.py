"""A directory in which scripts run CLI agents as they are published: a store, the fake provider, nothing else around it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUTLAST = Path(os.environ.get("OUTLAST_BIN", ROOT / "target" / "debug" / "outlast"))
PATIENCE_S = 300


def until(what: str, found):
    """Waits until `found` returns something."""
    began = time.monotonic()
    while time.monotonic() - began < PATIENCE_S:
        if got := found():
            return got
        time.sleep(0.02)
    raise SystemExit(f"waited for {PATIENCE_S} s in vain: {what}")


def named(argument: str) -> tuple[str, Path, str]:
    """Reads `AGENT=DIRECTORY`: the agent, its program there, and its name with its version."""
    agent, _, directory = argument.partition("=")
    if agent not in ("claude", "codex") or not (program := Path(directory).resolve() / agent).exists():
        raise SystemExit(f"{argument}: wanted claude=DIRECTORY or codex=DIRECTORY, with the program in it")
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
    called = "Claude Code" if agent == "claude" else "Codex"
    return agent, program, f"{called} {re.search(r'[0-9][0-9.]+', version)[0]}"


def tool(agent: str, command: str) -> str:
    """A line for the fake provider: the model runs this shell command."""
    if agent == "claude":
        return f"mock: tool Bash {json.dumps({'command': command})}"
    # Codex shows its model less than a long file unless it is asked for.
    return f"mock: tool exec_command {json.dumps({'cmd': command, 'max_output_tokens': 9000})}"


class Bed:
    """A directory with a session to be, a store, and the fake provider."""

    def __init__(self, place: Path, agent: str, program: Path) -> None:
        self.place, self.agent, self.program = place, agent, program
        self.processes: list[subprocess.Popen] = []
        self.work = place / "work"
        self.work.mkdir()
        (place / "long").write_text("a line of a long file that the agent has been told to read\n" * 330)
        os.mkfifo(place / "gate")
        git = ["git", "-c", "user.name=a", "-c", "user.email=a@b"]
        for words in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "a"]):
            subprocess.run([*git, *words], cwd=self.work, check=True)
        self.env = {
            "PATH": f"{program.parent}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(place),
            "OUTLAST_STORE": str(place / "runs.db"),
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
            "OPENAI_API_KEY": "sk-table",
            "ANTHROPIC_API_KEY": "sk-ant-table",
        }
        self.provider(self.serve("mock", "--listen", "127.0.0.1:0", "--log", str(place / "paid.log")))

    def provider(self, url: str) -> None:
        self.env |= {"ANTHROPIC_BASE_URL": url, "OPENAI_BASE_URL": f"{url}/v1"}

    def start(self, words: list[str], **more) -> subprocess.Popen:
        words = [str(word) for word in words]
        process = subprocess.Popen(
            words, cwd=self.work, env=self.env, stdin=subprocess.DEVNULL, start_new_session=True, **more
        )
        self.processes.append(process)
        return process

    def serve(self, *words: str) -> str:
        """Starts a server of Outlast's, and returns its address."""
        log = self.place / f"{words[0]}.log"
        with log.open("w") as out:
            self.start([OUTLAST, *words], stdout=out, stderr=out)
        found = lambda: re.search(r"http://[\d.:]+", log.read_text())  # noqa: E731
        return until(f"outlast {words[0]} listens", found)[0].rstrip(":")

    def quietly(self, words: list[str]) -> subprocess.Popen:
        with (self.place / "said").open("a") as out:
            return self.start(words, stdout=out, stderr=out)

    def words(self, script: str) -> list[str]:
        """Options of the agent, with lines for the fake provider in its system text."""
        if self.agent == "claude":
            return ["--append-system-prompt", script, "--allowedTools", "Bash"]
        told = f"developer_instructions={json.dumps(script)}"
        return ["--skip-git-repo-check", "-m", "gpt-5", "-s", "danger-full-access", "-c", told]

    def run(self, flags: list[str], script: str) -> subprocess.Popen:
        """Starts the agent under `outlast run`, as the run `r`."""
        behind = ["-p", *self.words(script), "--"] if self.agent == "claude" else ["exec", *self.words(script)]
        words = ["run", "--run", "r", "--usd", "100", *flags, "--", self.program, *behind, "do it once"]
        return self.quietly([OUTLAST, *words])

    def told(self, *words: str) -> dict:
        """Returns the JSON that `outlast WORDS --json` prints."""
        told = subprocess.run(
            [OUTLAST, *words, "--json"], env=self.env, cwd=self.work, capture_output=True, text=True, check=True
        )
        return json.loads(told.stdout)

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
