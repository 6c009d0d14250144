"""The table of docs/guides/plans.md: what a resumption buys again at a context of more than 100,000 tokens.

    .venv/bin/python scripts/resume-tax.py [--kills N] AGENT=DIRECTORY…

AGENT is `claude` or `codex`, DIRECTORY holds its program (`node_modules/.bin`); the same agent can be named with several
versions. Each is killed in a tool and goes on in three ways: by its own `--resume`, without Outlast; under `outlast run`;
and, for Claude Code, under `outlast run --warm-resume`. The fake provider bills its prompt cache as the real ones do.
Without Outlast the program's requests pass a server that records them and changes nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import uuid
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUTLAST = Path(os.environ.get("OUTLAST_BIN", ROOT / "target" / "debug" / "outlast"))
PATIENCE_S = 300
#: Reads of a file of 20 kB that fill the context, by the agent's tool.
READS = {"claude": 22, "codex": 45}
GO_ON = "Go on with the task; check before repeating what was under way."


def script(agent: str) -> str:
    """Lines for the fake provider: it reads a file so many times, then does what the agent is killed in, then checks."""

    def call(command: str) -> str:
        if agent == "claude":
            return f"tool Bash {json.dumps({'command': command})}"
        # Codex shows its model less than a file of this length unless it is asked for.
        return f"tool exec_command {json.dumps({'cmd': command, 'max_output_tokens': 9000})}"

    lines = [f"mock: {call(f'cat ../long; echo {n}')}" for n in range(READS[agent])]
    last = call("echo x >> new; echo $PPID > ../cli; (cat ../gate; true)")
    lines.append(f'mock: unless "check before repeating" {last}')
    return "\n".join([*lines, *[f"mock: {call('true')}"] * 2])


def until(what: str, found):
    """Waits until `found` returns something."""
    began = time.monotonic()
    while time.monotonic() - began < PATIENCE_S:
        if got := found():
            return got
        time.sleep(0.02)
    raise SystemExit(f"waited for {PATIENCE_S} s in vain: {what}")


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
        self.provider(self.serve("mock", "--listen", "127.0.0.1:0"))

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

    def end(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def kill_in_its_tool(self) -> None:
        """Waits until the tool runs and the session is on disk, and kills the agent."""
        cli = self.place / "cli"
        pid = until("the tool runs", lambda: cli.exists() and cli.read_text().strip())

        def kept() -> bool:
            sessions = [*self.place.glob(".claude/projects/*/*.jsonl"), *self.place.glob(".codex/sessions/**/*.jsonl")]
            return any('"tool_use"' in p.read_text() or '"function_call"' in p.read_text() for p in sessions)

        until("its session is kept", kept)
        os.kill(int(pid), signal.SIGKILL)

    def bought_again(self) -> dict:
        told = subprocess.run(
            [OUTLAST, "journal", "r", "--cache", "--json"],
            env=self.env, cwd=self.work, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return json.loads(told.stdout)["resumptions"][-1]

    # The three ways.

    def bare(self) -> dict:
        url = self.serve("serve", "--listen", "127.0.0.1:0", "--default-usd", "none", "--default-loops", "none")
        self.provider(url)
        session = str(uuid.uuid4())
        first = self.quietly(self.bare_words("1", ["do it once"], session))
        self.kill_in_its_tool()
        first.wait()
        if self.agent == "codex":
            name = next(self.place.glob(".codex/sessions/**/*.jsonl")).stem
            session = name[-36:]
        assert self.quietly(self.bare_words("2", [GO_ON], session, resumes=True)).wait(PATIENCE_S) == 0
        return self.bought_again()

    def bare_words(self, life: str, prompt: list[str], session: str, resumes: bool = False) -> list[str]:
        headers = {"X-Outlast-Run": "r", "X-Outlast-Attempt": life}
        if self.agent == "claude":
            self.env["ANTHROPIC_CUSTOM_HEADERS"] = "\n".join(f"{name}: {value}" for name, value in headers.items())
            chosen = ["--resume", session] if resumes else ["--session-id", session]
            return [self.program, "-p", *chosen, *self.words(), "--", *prompt]
        named = ",".join(f'"{name}"="{value}"' for name, value in headers.items())
        provider = (
            f'model_providers.p={{name="p",base_url="{self.env["OPENAI_BASE_URL"]}",wire_api="responses",'
            f'env_key="OPENAI_API_KEY",http_headers={{{named}}}}}'
        )
        set_up = ["-c", 'model_provider="p"', "-c", provider, *self.words()]
        return [self.program, "exec", *set_up, *(["resume", session] if resumes else []), *prompt]

    def words(self) -> list[str]:
        if self.agent == "claude":
            return ["--append-system-prompt", script("claude"), "--allowedTools", "Bash"]
        told = f"developer_instructions={json.dumps(script('codex'))}"
        return ["--skip-git-repo-check", "-m", "gpt-5", "-s", "danger-full-access", "-c", told]

    def ours(self, flags: list[str]) -> dict:
        behind = ["-p", *self.words(), "--"] if self.agent == "claude" else ["exec", *self.words()]
        run = [OUTLAST, "run", "--run", "r", "--usd", "100", *flags, "--", self.program, *behind, "do it once"]
        running = self.quietly(run)
        self.kill_in_its_tool()
        assert running.wait(PATIENCE_S) == 0, (self.place / "said").read_text()[-2000:]
        return self.bought_again()


WAYS = {
    "its own `--resume`, without Outlast": Bed.bare,
    "`outlast run`": lambda bed: bed.ours([]),
    "`outlast run --warm-resume`": lambda bed: bed.ours(["--warm-resume"]),
}


def measured(agent: str, program: Path, way: str) -> dict:
    with tempfile.TemporaryDirectory() as place:
        bed = Bed(Path(place), agent, program)
        try:
            return WAYS[way](bed)
        finally:
            bed.end()


def cause(one: dict) -> str:
    difference = one.get("difference")
    if not difference:
        return "nothing differs"
    return f"`{difference['part']}`" + (f"[{difference['index']}]" if difference.get("index") is not None else "")


def row(name: str, way: str, all_told: list[dict]) -> str:
    worst = max(all_told, key=lambda one: one["rebought_tokens"])
    had, again = worst["covered_tokens"], [one["rebought_tokens"] for one in all_told]
    low, high = min(again), max(again)
    told = f"{high:,}" if low == high else f"{low:,} to {high:,}"
    usd = f", {worst['rebought_nano_usd'] / 1e9:.2f} usd" if high else ""
    return f"| {name} | {way} | {had:,} tokens | {told} ({100 * high / had:.1f} %{usd}) | {cause(worst)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=1, help="times that each is killed in each way")
    parser.add_argument("agents", nargs="+", metavar="AGENT=DIRECTORY")
    args = parser.parse_args()
    print("| | goes on by | the cache had | bought again | differs first in |\n|---|---|---|---|---|")
    for named in args.agents:
        agent, _, directory = named.partition("=")
        if agent not in READS or not (program := Path(directory).resolve() / agent).exists():
            sys.exit(f"{named}: wanted claude=DIRECTORY or codex=DIRECTORY, with the program in it")
        version = subprocess.run([program, "--version"], capture_output=True, text=True, check=True).stdout
        name = f"{'Claude Code' if agent == 'claude' else 'Codex'} {re.search(r'[0-9][0-9.]+', version)[0]}"
        for way in WAYS:
            if agent == "codex" and "warm" in way:
                continue
            told = [measured(agent, program, way) for _ in range(args.kills)]
            print(row(name, way, told), flush=True)


if __name__ == "__main__":
    main()
