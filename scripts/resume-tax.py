"""The table of docs/guides/plans.md: what a resumption buys again at a context of more than 100,000 tokens.

    .venv/bin/python scripts/resume-tax.py [--kills N] AGENT=DIRECTORY…

AGENT is `claude` or `codex`, DIRECTORY holds its program (`node_modules/.bin`); the same agent can be named with several
versions. Each is killed in a tool and goes on in three ways: by its own `--resume`, without Outlast; under `outlast run`;
and, for Claude Code, under `outlast run --warm-resume`. The fake provider bills its prompt cache as the real ones do.
Without Outlast the program's requests pass a server that records them and changes nothing.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import tempfile
import uuid
from pathlib import Path

import cli_bed
from cli_bed import PATIENCE_S, tool, until

#: Reads of a file of 20 kB that fill the context, by the agent's tool.
READS = {"claude": 22, "codex": 45}
GO_ON = "Go on with the task; check before repeating what was under way."


def script(agent: str) -> str:
    """Lines for the fake provider: it reads a file so many times, then does what the agent is killed in, then checks."""

    lines = [tool(agent, f"cat ../long; echo {n}") for n in range(READS[agent])]
    last = tool(agent, "echo x >> new; echo $PPID > ../cli; (cat ../gate; true)")
    lines.append(last.replace("mock: ", 'mock: unless "check before repeating" ', 1))
    return "\n".join([*lines, *[tool(agent, "true")] * 2])


class Bed(cli_bed.Bed):
    """A bed whose agent is killed in its tool."""

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
        return self.told("journal", "r", "--cache")["resumptions"][-1]

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
            return [self.program, "-p", *chosen, *self.words(script(self.agent)), "--", *prompt]
        named = ",".join(f'"{name}"="{value}"' for name, value in headers.items())
        provider = (
            f'model_providers.p={{name="p",base_url="{self.env["OPENAI_BASE_URL"]}",wire_api="responses",'
            f'env_key="OPENAI_API_KEY",http_headers={{{named}}}}}'
        )
        set_up = ["-c", 'model_provider="p"', "-c", provider, *self.words(script(self.agent))]
        return [self.program, "exec", *set_up, *(["resume", session] if resumes else []), *prompt]

    def ours(self, flags: list[str]) -> dict:
        running = self.run(flags, script(self.agent))
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
    for argument in args.agents:
        agent, program, name = cli_bed.named(argument)
        for way in WAYS:
            if agent == "codex" and "warm" in way:
                continue
            told = [measured(agent, program, way) for _ in range(args.kills)]
            print(row(name, way, told), flush=True)


if __name__ == "__main__":
    main()
