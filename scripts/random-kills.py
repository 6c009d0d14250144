"""The table of docs/guides/agents.md: Claude Code and Codex killed at random moments of a long session.

    .venv/bin/python scripts/random-kills.py [--kills N] [--seed N] [--keep DIRECTORY] AGENT=DIRECTORY…

AGENT is `claude` or `codex`, DIRECTORY holds its program (`node_modules/.bin`). A model reads files until its context is
longer than 100,000 tokens, and then has effects, each by a tool call; answers stream on while their tools run. Each run is
killed once, a random time behind a random call of the session: the agent, or in every fourth run the supervisor, which
`outlast resume` follows. Columns:

- lost: runs whose last request has not all the results that a request had carried before the kill;
- told again: results among these that the program had not put on disk, and that the note tells;
- begun anew: sessions that the program had not put on disk;
- told: tool calls that had begun, and whose result no request carries: each has to stand in the note;
- twice: effects that were made a second time, by a model that does again whatever it is not told of;
- bought again: the most of the cached context, of kills at 100,000 tokens and more.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import cli_bed
from cli_bed import OUTLAST, PATIENCE_S, tool, until

#: Reads of a file of 20 kB, and effects behind them.
READS = {"claude": 22, "codex": 45}
EFFECTS = 14
LONG_TOKENS = 100_000


def script(agent: str) -> str:
    """Lines for the fake provider. A command tells its output in other words than its own, and its life."""
    lines = []
    for n in range(READS[agent] + EFFECTS):
        does = "cat ../long" if n < READS[agent] else f"sleep 0.1; echo {n} >> ../effects; sleep 0.1"
        command = f"echo begun-{n} $OUTLAST_ATTEMPT >> ../log; {does}; printf 'got-%s;' {n}"
        # It repeats what it is not told of.
        lines.append(tool(agent, command).replace("mock: ", f'mock: unless "begun-{n} " ', 1))
    return "\n".join([*lines, "mock: linger 150ms"])


HEAD = """\
| | kills | completed | lost | told again | begun anew | told | twice | bought again |
|---|---|---|---|---|---|---|---|---|"""


@dataclass
class Outcome:
    seed: int
    after: str
    code: int = 0
    lost: list[int] = field(default_factory=list)
    again_told: int = 0
    anew: bool = False
    in_flight: list[int] = field(default_factory=list)
    untold: list[int] = field(default_factory=list)
    twice: int = 0
    covered: int = 0
    again: int = 0
    part: str = ""

    def is_bad(self) -> bool:
        return bool(self.code or self.lost or self.untold or self.twice)


class Bed(cli_bed.Bed):
    def paid(self) -> list[dict]:
        log = self.place / "paid.log"
        return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []

    def agent_pid(self) -> int | None:
        """The agent's own process, the first with its prompt. Codex's is started by a program of Node's."""
        found = []
        for process in Path("/proc").glob("[0-9]*"):
            try:
                environ = (process / "environ").read_bytes().split(b"\0")
                words = (process / "cmdline").read_bytes().split(b"\0")
                program = (process / "exe").readlink().name
            except OSError:
                continue
            ours = {f"OUTLAST_STORE={self.env['OUTLAST_STORE']}".encode(), b"OUTLAST_ATTEMPT=1"} <= set(environ)
            if ours and b"do it once" in words and (self.agent != "codex" or program == "codex"):
                found.append(int(process.name))
        return min(found, default=None)

    def results(self, attempt: int | None = None) -> set[int]:
        """Tool calls whose results the last request carried, of the whole run or of a life."""
        calls = [e for e in self.told("journal", "r")["entries"] if e["kind"] == "call"]
        if attempt is not None:
            calls = [e for e in calls if e["attempt"] == attempt]
        if not calls:
            return set()
        read = subprocess.run(
            [OUTLAST, "journal", "r", str(calls[-1]["seq"]), "--json"],
            env=self.env, cwd=self.work, capture_output=True, text=True, check=True,
        )  # fmt: skip
        return {int(n) for n in re.findall(r"got-(\d+);", read.stdout)}

    def killed(self, seed: int) -> Outcome:
        dice = random.Random(seed)
        calls, share, whom = dice.randrange(READS[self.agent] + EFFECTS + 1), dice.random(), dice.randrange(4)
        began = time.monotonic()
        running = self.run(["--warm-resume"] if self.agent == "claude" else [], script(self.agent))
        agent = until("the agent runs", self.agent_pid)
        until(f"{calls} calls are made", lambda: len(self.paid()) >= calls or running.poll() is not None)
        # The moment within a call is random; nothing waits for it.
        time.sleep(share * (time.monotonic() - began) / (calls + 1))
        victim = supervisor(running.pid) if whom == 0 else agent
        outcome = Outcome(seed, f"{calls} calls, {'the supervisor' if whom == 0 else 'the agent'}")
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            outcome.after += " (had ended)"
        outcome.code = running.wait(PATIENCE_S)
        if whom == 0:
            outcome.code = self.quietly([OUTLAST, "resume", "r"]).wait(PATIENCE_S)
        self.judge(outcome)
        return outcome

    def judge(self, outcome: Outcome) -> None:
        had = self.results(1)
        outcome.lost = sorted(had - self.results())
        log = (self.place / "log").read_text().splitlines() if (self.place / "log").exists() else []
        begun = {int(line.split()[0][6:]) for line in log if line.endswith(" 1")}
        # A result that is on disk before it is sent is in the conversation that goes on.
        outcome.in_flight = sorted(begun - had - self.results())
        notes = [line["asked"] for line in self.paid() if "you had started" in line["asked"]]
        outcome.again_told = sum(note.count("which this conversation has lost") for note in set(notes))
        outcome.untold = [n for n in outcome.in_flight if not any(f"begun-{n} " in note for note in notes)]
        effects = (self.place / "effects").read_text().split() if (self.place / "effects").exists() else []
        outcome.twice = len(effects) - len(set(effects))
        outcome.anew = "had kept no session" in (self.place / "said").read_text()
        for one in self.told("journal", "r", "--cache")["resumptions"][-1:]:
            outcome.covered, outcome.again = one["covered_tokens"], one["rebought_tokens"]
            outcome.part = (one.get("difference") or {}).get("part", "")


def supervisor(guardian: int) -> int:
    """The supervisor, which the process that was started guards."""
    return int(Path(f"/proc/{guardian}/task/{guardian}/children").read_text().split()[0])


def series(agent: str, program: Path, args: argparse.Namespace) -> list[Outcome]:
    said = threading.Lock()

    def one(n: int) -> Outcome:
        place = Path(tempfile.mkdtemp())
        bed = Bed(place, agent, program)
        try:
            outcome = bed.killed(args.seed + n)
        finally:
            bed.end()
        with said:
            print(outcome, file=args.log, flush=True)
        if outcome.is_bad() and args.keep:
            shutil.copytree(place, args.keep / f"{agent}-{outcome.seed}", symlinks=True, ignore=shutil.ignore_patterns("gate", "*.sock"))
        shutil.rmtree(place, ignore_errors=True)
        return outcome

    with ThreadPoolExecutor(args.at_once) as pool:
        return list(pool.map(one, range(args.kills)))


def row(name: str, all_told: list[Outcome]) -> str:
    flying = sum(len(one.in_flight) for one in all_told)
    told = flying - sum(len(one.untold) for one in all_told)
    long = [one for one in all_told if one.covered >= LONG_TOKENS]
    worst = max((100 * one.again / one.covered for one in long), default=0)
    columns = [
        name, len(all_told), sum(one.code == 0 for one in all_told), sum(bool(one.lost) for one in all_told),
        sum(one.again_told for one in all_told), sum(one.anew for one in all_told), f"{told} of {flying}", sum(one.twice for one in all_told),
        f"{worst:.1f} % (of {len(long)})",
    ]  # fmt: skip
    return "| " + " | ".join(str(column) for column in columns) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=20, help="runs of each program, each killed once")
    parser.add_argument("--seed", type=int, default=0, help="of the first run; the next ones count on")
    parser.add_argument("--at-once", type=int, default=2, help="runs at a time")
    parser.add_argument("--keep", type=Path, help="a directory for what a run that went wrong has left")
    parser.add_argument("--log", type=argparse.FileType("a"), default=sys.stderr, help="a file for each outcome")
    parser.add_argument("agents", nargs="+", metavar="AGENT=DIRECTORY")
    args = parser.parse_args()
    print(HEAD)
    for argument in args.agents:
        agent, program, name = cli_bed.named(argument)
        print(row(name, series(agent, program, args)), flush=True)


if __name__ == "__main__":
    main()
