"""Scenarios: programs under Outlast as people start them, each with its processes by role and its kinds of death."""

from __future__ import annotations

import json
import random
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from bed import LONGEST_S, Death, Life, Place, Strike

#: The exit code of a run that halts at a limit.
HALTED = 75
#: The exit code of a program that was killed.
KILLED = 128 + 9
#: What is said of a run whose supervisor was killed behind its end.
OVER = "is completed: "
#: What is said where a run, or its store, was not there yet when it died.
NO_RUN = ("no run has the id", "there is no store")
#: What is said of a run that is known to be on another machine.
GOES_ON = "it goes on at "
#: Lives beyond the deaths: one that goes to the end, and one after a budget was raised.
MORE_LIVES = 3


@dataclass
class Outcome:
    """Traces that a run has left for the oracle."""

    place: Place
    #: Faults that showed while it lived: a life that did not go on though nothing killed it.
    faults: list[str] = field(default_factory=list)
    #: What `outlast show` said whenever the run stood at its limit, and the last line of the outside's log then.
    halts: list[tuple[dict, int]] = field(default_factory=list)

    @property
    def strikes(self) -> list[Strike]:
        return [strike for life in self.place.lives for strike in life.strikes] + self.place.elsewhere


@dataclass(frozen=True)
class Scenario:
    name: str
    title: str
    #: The program of `agents`, and how many questions, items or tasks it has.
    agent: str
    calls: int
    #: Roles, each with a word of their command lines: the first that is there counts.
    roles: tuple[tuple[str, str], ...]
    #: Kinds of death at a write of a role.
    kinds: dict[str, tuple[str, ...]]
    live: Callable[[Scenario, Place, list[Death]], Outcome]
    #: Most deaths of a run: an item that kills its process three times is given up.
    most_deaths: int = 2
    limit_nano_usd: int = 1_000_000_000
    #: Statuses of a run that is done.
    done: tuple[str, ...] = ("completed",)

    def usd(self) -> str:
        return f"{self.limit_nano_usd / 1e9:.9f}"

    def victims(self) -> list[str]:
        """Each kind of death, for a random instant: it has to name who dies."""
        named = {role if kind == "self" else kind for role, kinds in self.kinds.items() for kind in kinds}
        return sorted(named)


SUPERVISED = {
    "supervisor": ("self", "all", "supervisor+guardian", "supervisor+agent"),
    "agent": ("self", "all", "supervisor+agent", "guardian"),
    "guardian": ("self", "all"),
}


def program(scenario: Scenario, place: Place) -> list[str]:
    path = str(place.bed.agents / scenario.agent)
    return ["bash", path] if path.endswith(".sh") else [sys.executable, "-S", path]


def died(place: Place, life: Life) -> bool:
    """Whether something was killed. An agent with a planted fault may do that itself."""
    return bool(life.strikes or place.elsewhere) or bool(place.fault) and life.code == KILLED


def supervised(scenario: Scenario, place: Place, deaths: list[Death]) -> Outcome:
    """`outlast run`, and after each death of it `outlast resume`, or the same line again."""
    outlast, outcome = str(place.bed.outlast), Outcome(place)
    line = [outlast, "run", "--run", place.run, "--usd", scenario.usd(), "--restarts", "1000", "--", *program(scenario, place)]
    command, left = line, list(deaths)
    for n in lives_of(place, deaths):
        life = place.lived(command, scenario.roles, left)
        left = left[len(life.strikes) :]
        if life.code == 0 or OVER in life.text:
            return outcome
        # A run that died before it was there is begun.
        if command is not line and any(text in life.text for text in NO_RUN):
            command = line
            continue
        if life.code == HALTED:
            outcome.halts.append((place.told("show", place.run)[1], max(line["n"] for line in place.bed.lines(place.run))))
            place.told("budget", place.run, "--add-usd", "1")
        elif not died(place, life):
            outcome.faults.append(f"life {n} ended with {life.code}, and nothing had killed it: {life.text[-400:]}")
            return outcome
        command = [outlast, "resume", place.run] if n % 2 else line
    outcome.faults.append(f"not at its end after {len(place.lives)} lives")
    return outcome


def lives_of(place: Place, deaths: list[Death]) -> Iterator[int]:
    """Numbers of lives, one more than something may die. While a database recovers, whoever begins is refused: that is none."""
    until, lives = time.monotonic() + LONGEST_S, 0
    # Who died before its run was begun is followed by a resumption that finds none.
    while lives < 2 * len(deaths) + MORE_LIVES:
        lives += 1
        yield lives
        if place.elsewhere and not place.lives[-1].strikes and place.lives[-1].code != HALTED and time.monotonic() < until:
            lives -= 1
            time.sleep(0.2)


def alone(scenario: Scenario, place: Place, deaths: list[Death]) -> Outcome:
    """A program that is started again and again until it has come to its end."""
    outcome, left = Outcome(place), list(deaths)
    for n in lives_of(place, deaths):
        life = place.lived(program(scenario, place), scenario.roles, left)
        left = left[len(life.strikes) :]
        if life.code == 0:
            return outcome
        if not died(place, life):
            outcome.faults.append(f"life {n} ended with {life.code}, and nothing had killed it: {life.text[-400:]}")
            return outcome
    outcome.faults.append(f"not at its end after {len(place.lives)} lives")
    return outcome


def served(scenario: Scenario, place: Place, deaths: list[Death]) -> Outcome:
    """`outlast serve`, begun again on its port while its clients go on."""
    port = place.bed.free_port()
    line = [str(place.bed.outlast), "serve", "--listen", f"127.0.0.1:{port}", "--default-usd", scenario.usd()]
    outcome, left = Outcome(place), list(deaths)
    with (place.home / "clients").open("w") as said:
        clients = subprocess.Popen(
            program(scenario, place), cwd=place.home, env={**place.env, "CRASH_SERVER": str(port)}, stdout=said, stderr=said
        )
    try:
        until = time.monotonic() + LONGEST_S
        while True:
            server = place.started(line, scenario.roles, left)
            while server.process.poll() is None and clients.poll() is None and time.monotonic() < until:
                time.sleep(0.005)
            if clients.poll() is not None or time.monotonic() >= until:
                server.terminate()
            life = server.end()
            left = left[len(life.strikes) :]
            if clients.poll() is not None:
                break
            if not died(place, life):
                outcome.faults.append(f"a server ended with {life.code}, and nothing had killed it: {life.text[-400:]}")
                return outcome
        if clients.poll() != 0:
            outcome.faults.append(f"the clients ended with {clients.poll()}: {(place.home / 'clients').read_text()[-400:]}")
    finally:
        clients.kill()
        clients.wait()
    return outcome


#: In place of ssh: the other machine is a home and a store below this one. What was moved is resumed under the watch.
SSH = """#!/bin/sh
while [ "$1" != -- ]; do shift; done
shift 2
cd "$HOME/there" && HOME="$PWD" OUTLAST_STORE="$PWD/runs.db" exec sh -c "${*% --resume}"
"""


def moved(scenario: Scenario, place: Place, deaths: list[Death]) -> Outcome:
    """A run that has no restarts left, `outlast move`, again after each death of it, and `outlast resume` there."""
    outlast, outcome, left = str(place.bed.outlast), Outcome(place), list(deaths)
    there, work, ssh = place.home / "there", place.home / "work", place.home / "ssh"
    for directory in (there, work / "below", ssh):
        directory.mkdir(parents=True)
    (work / "small").write_text("one\n")
    (work / "below/large").write_bytes(random.Random(1).randbytes(300_000))
    (ssh / "ssh").write_text(SSH)
    (ssh / "ssh").chmod(0o700)
    place.env["PATH"] = f"{ssh}:{place.env['PATH']}"
    flags = ["--files=work", "--restarts", "0", "--kill-at", "call:3"]
    place.lived([outlast, "run", "--run", place.run, "--usd", scenario.usd(), *flags, "--", *program(scenario, place)], scenario.roles, [])
    outcome.halts.append((place.told("show", place.run)[1], max(line["n"] for line in place.bed.lines(place.run))))
    for _ in lives_of(place, deaths):
        life = place.lived([outlast, "move", place.run, f"ssh://there{there}/work"], scenario.roles, left)
        left = left[len(life.strikes) :]
        # Where it is known to be, it goes on; where it was, no more.
        has_arrived = place.told("show", place.run, store=str(there / "runs.db"))[0] == 0
        if has_arrived and "moved" not in json.dumps(place.told("show", place.run)[1].get("halt")):
            outcome.faults.append("it is in two places")
        if life.code == 0 or GOES_ON in life.text:
            break
        if not died(place, life):
            outcome.faults.append(f"a move ended with {life.code}, and nothing had killed it: {life.text[-400:]}")
            return outcome
    code, said = place.told("verify")
    trees = [{path.relative_to(tree): path.read_bytes() for path in tree.rglob("*") if path.is_file()} for tree in (work, there / "work")]
    if code or said.get("damage") or trees[0] != trees[1]:
        outcome.faults.append(f"what was left, or its files: {said} {[sorted(map(str, tree)) for tree in trees]}")
    place.store = place.env["OUTLAST_STORE"] = str(there / "runs.db")
    for n in lives_of(place, deaths):
        life = place.lived([outlast, "resume", place.run, "--add-restarts", "9"], scenario.roles, left)
        left = left[len(life.strikes) :]
        if life.code == 0 or OVER in life.text:
            return outcome
        if not died(place, life):
            outcome.faults.append(f"life {n} there ended with {life.code}, and nothing had killed it: {life.text[-400:]}")
            return outcome
    outcome.faults.append(f"not at its end after {len(place.lives)} lives")
    return outcome


# The supervisor's own line has its agent's behind it.
OF_RUN = (("supervisor", "outlast run "), ("supervisor", "outlast resume "), ("agent", "/agents/"))

PLAIN = Scenario("plain", "a plain program through `outlast run`", "plain.py", 5, OF_RUN, SUPERVISED, supervised)
# Room for three of its five answers.
BUDGET = Scenario(
    "budget", "the same at a limit that is too small, and is then raised", "plain.py", 5, OF_RUN, SUPERVISED, supervised,
    limit_nano_usd=180_000,
)  # fmt: skip
STEPS = Scenario(
    "steps", "a Python agent with steps, tools, state and a budget", "steps.py", 3, OF_RUN, SUPERVISED, supervised
)
MCP = Scenario(
    "mcp", "an agent whose MCP server is behind `outlast mcp`", "recorded.py", 3,
    (("supervisor", "outlast run "), ("supervisor", "outlast resume "), ("recorder", "outlast mcp "), ("tools", "/tools.py"),
     ("agent", "/agents/")),
    SUPERVISED | {
        "recorder": ("self", "all", "recorder+supervisor", "agent+recorder"), "tools": ("self", "all", "tools+recorder"),
    }, supervised,
)  # fmt: skip
LOOP = Scenario(
    "loop", "a shell loop by `outlast shell-init`", "loop.sh", 2,
    (("agent", "/agents/"), ("keeper", " keep "), ("command", " shell-loop ")),
    {"agent": ("self", "all", "keeper+agent"), "command": ("self", "all"), "keeper": ("self", "all")}, alone,
)  # fmt: skip
SERVE = Scenario(
    "serve", "`outlast serve` with two clients", "clients.py", 5, (("server", " serve "),), {"server": ("self",)}, served,
    done=("running", "interrupted"),
)  # fmt: skip
BATCH = Scenario(
    "batch", "a worker of `outlast.map`, four items at a time", "batch.py", 10, (("agent", "/agents/"),), {"agent": ("self",)}, alone
)
MOVE = Scenario(
    "move", "a run that `outlast move` takes to another store, with its files", "plain.py", 5,
    (("receiver", "outlast --json import"), ("sender", " move "), *OF_RUN),
    {"sender": ("self", "all", "sender+receiver"), "receiver": ("self", "all", "sender+receiver")}, moved,
)  # fmt: skip
ALL = (PLAIN, BUDGET, STEPS, MCP, LOOP, SERVE, BATCH, MOVE)
