"""The figures of docs/design/files.md on kills: shell tasks of an agent, killed at random instants and resumed with `last-tool`.

    .venv/bin/python scripts/files-kills.py [--tasks N] [--kills N] [--seed N] [--at-once N] [--keep DIRECTORY] AGENT…

AGENT is `claude=DIRECTORY` or `codex=DIRECTORY`, which holds its program, or `python`: a program of steps. Each task is a
session of shell commands (edits, moves, builds, `git commit`, `sed -i`, links, modes, removals, odd names, archives, 100 MB
files) with pauses between their writes. A clean shell does each task once, and its tree after each command is noted. Then each
run of the task dies at a random instant: its agent, or in every fourth run the supervisor; a program of steps with all that it
started. It is resumed with `--files last-tool`, or `files_from="last-step"`, and the tree is noted before the agent starts.
Columns:

- exact: trees equal to the clean one at the last tool whose result a call has carried, or at the last recorded step;
- HEAD: how many of these were refused at first, because the tool that was cut off had committed, and came with
  what the refusal says: `--force HEAD`, or `git reset --soft` for a program;
- behind: equal to the clean one at the tool before that;
- mixed: equal to no clean tree;
- as fell: how many were exact without Outlast, which is what an agent finds that is only started again.
"""

from __future__ import annotations

import argparse
import hashlib
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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

#: Commands of a task.
COMMANDS = 6
#: One task in so many has a command that writes 100 MB.
LARGE_EVERY = 10
#: Time that the model thinks, in which the tree is taken.
LATENCY = "250ms"

Tree = dict[str, list]


def tree(root: Path) -> Tree:
    """Returns kind, mode and content of each path, without repositories of git."""
    found: Tree = {}
    for at, directories, files in os.walk(root):
        directories[:] = [name for name in directories if name != ".git"]
        for name in [*directories, *files]:
            path = Path(at, name)
            shown = os.fsencode(path.relative_to(root)).decode("latin-1")
            stat = path.lstat()
            if path.is_symlink():
                found[shown] = ["link", os.readlink(path)]
            elif path.is_dir():
                found[shown] = ["directory", stat.st_mode & 0o7777]
            else:
                with path.open("rb") as file:
                    found[shown] = ["file", stat.st_mode & 0o7777, hashlib.file_digest(file, "sha256").hexdigest()]
    return found


def edit(dice: random.Random, n: int) -> str:
    files = " ".join(f"docs/d{k}.md" for k in dice.sample(range(10), 4))
    return f"for f in {files}; do printf 'half of {n}' >> $f; sleep 0.03; printf ' and the rest\\n' >> $f; done"


def substitute(dice: random.Random, n: int) -> str:
    return f"sed -i 's/line/row {n}/' src/m*.c; sleep 0.04; sed -i '{dice.randint(1, 3)}d' data/*.csv; sleep 0.04"


def move(dice: random.Random, n: int) -> str:
    files = " ".join(f"docs/d{k}.md" for k in dice.sample(range(10), 3))
    return f"mkdir -p moved{n}; for f in {files}; do mv $f moved{n}/; sleep 0.03; done; mv src/below lib{n}"


def build(dice: random.Random, n: int) -> str:
    sources = " ".join(f"m{k}" for k in dice.sample(range(8), 3))
    return f"mkdir -p out{n}; for f in {sources}; do cc -c -o out{n}/$f.o src/$f.c; done; ar rcsD out{n}/all.a out{n}/*.o"


def commit(_: random.Random, n: int) -> str:
    named = "git -c user.name=a -c user.email=a@b"
    return f"echo {n} >> docs/log.md; git add -A; {named} commit -qm 'step {n}'; sleep 0.04; echo committed {n} >> docs/log.md"


def link(dice: random.Random, n: int) -> str:
    target = f"d{dice.randrange(10)}.md"
    return f"ln -sfn {target} docs/current; sleep 0.04; ln -sfn nowhere{n} gone; rm -rf data; sleep 0.04; ln -sfn src data"


def mode(dice: random.Random, n: int) -> str:
    return f"chmod 6{dice.choice('04')}0 src/*.c; sleep 0.04; chmod 700 docs; sleep 0.04; chmod 4{n % 4}4 docs/d2.md"


def remove(_: random.Random, n: int) -> str:
    return f"rm -rf src/below; sleep 0.04; rm -f docs/d3.md data/*.csv; sleep 0.04; mkdir -p empty{n}/below"


def rename(_: random.Random, n: int) -> str:
    odd = f"f=$(printf 'n\\377{n}'); echo half > \"$f\"; sleep 0.04; echo rest >> \"$f\""
    return f"{odd}; if [ -e README.md ]; then mv README.md readme.md; else mv readme.md README.md; fi; sleep 0.04; echo {n} > 'sp ace'"


def archive(_: random.Random, n: int) -> str:
    packed = f"tar --sort=name --mtime=@0 --owner=0 --group=0 -cf all{n}.tar src docs"
    return f"{packed}; sleep 0.03; mkdir -p un{n}; tar -xf all{n}.tar -C un{n}; sleep 0.03; rm all{n}.tar"


def large(dice: random.Random, _: int) -> str:
    at = dice.randrange(100_000_000)
    return f"head -c 100000000 /dev/zero | tr '\\0' x > big; sleep 0.04; printf y | dd of=big bs=1 seek={at} conv=notrunc status=none"


KINDS: list[Callable[[random.Random, int], str]] = [edit, substitute, move, build, commit, link, mode, remove, rename, archive]


def task(number: int) -> list[str]:
    """Returns the commands of a task, the same for the same number."""
    dice = random.Random(number)
    kinds = dice.sample(KINDS, COMMANDS)
    if number % LARGE_EVERY == 0:
        kinds[dice.randrange(COMMANDS)] = large
    return [f"({kind(dice, n)}) 2> /dev/null; true" for n, kind in enumerate(kinds)]


def lay_out(work: Path) -> None:
    """Makes the tree that each task begins with, in a repository."""
    for below in ("src/below", "docs", "data"):
        (work / below).mkdir(parents=True)
    for n in range(10):
        (work / f"docs/d{n}.md").write_text(f"# {n}\n" + "a line\n" * 40)
        (work / f"data/t{n}.csv").write_text("".join(f"{n},{k}\n" for k in range(50)))
        (work / f"src/m{n}.c").write_text(f"/* a line */\nint f{n}(void) {{ return {n}; }}\n")
        (work / f"src/below/{n}").write_text(str(n))
    (work / "README.md").write_text("a task\n")
    for words in (["init", "-q"], ["add", "-A"], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "a"]):
        subprocess.run(["git", *words], cwd=work, check=True)


def clean_trees(commands: list[str]) -> list[Tree]:
    """Returns the tree before the task, and after each of its commands."""
    with tempfile.TemporaryDirectory() as place:
        work = Path(place, "work")
        lay_out(work)
        trees = [tree(work)]
        for command in commands:
            subprocess.run(["sh", "-c", command], cwd=work, env={"PATH": os.environ["PATH"], "HOME": place}, check=True)
            trees.append(tree(work))
        return trees


@dataclass
class Outcome:
    task: int
    seed: int
    after: str
    known: int = 0
    exact: bool = False
    behind: bool = False
    head_moved: bool = False
    as_fell: bool = False
    said: str = ""

    def is_bad(self) -> bool:
        return not (self.exact or self.behind)


#: Stands in place of the agent's program: later lives note the tree that they find, and end.
WRAPPER = """\
#!/bin/sh
if [ "$OUTLAST_ATTEMPT" = 1 ]; then exec {program} "$@"; fi
exec {python} {script} --look . > ../found
"""

#: A program of steps. Its second life notes the tree that it finds, and is gone.
PROGRAM = """\
import json, os, subprocess, sys
import outlast

def does(command):
    subprocess.run(["sh", "-c", command], check=True)

with outlast.connect().run("r", files=".", files_from="last-step") as run:
    if os.path.exists("../killed"):
        subprocess.run([sys.executable, sys.argv[1], "--look", "."], stdout=open("../found", "w"), check=True)
        os._exit(0)
    open("../begun", "w").close()
    for command in json.loads(sys.argv[2]):
        run.step("does", does, command)
"""


def cut_at(dice: random.Random) -> float:
    """Returns a random time behind the start of a task's first command, which takes some 0.15 s, as each does."""
    return dice.uniform(0, COMMANDS * 0.5)


def one_program(place: Path, commands: list[str], outcome: Outcome) -> None:
    from cli_bed import OUTLAST, PATIENCE_S, until

    dice = random.Random(outcome.seed)
    work = place / "work"
    lay_out(work)
    (place / "agent.py").write_text(PROGRAM)
    env = {**os.environ, "HOME": str(place), "OUTLAST_STORE": str(place / "runs.db")}
    words = [sys.executable, place / "agent.py", Path(__file__).resolve(), json.dumps(commands)]
    out = (place / "said").open("a")
    process = subprocess.Popen(words, cwd=work, env=env, start_new_session=True, stdout=out, stderr=out)
    until("the program has begun", lambda: (place / "begun").exists() or process.poll() is not None)
    time.sleep(cut_at(dice) / 2)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    (place / "killed").touch()
    fell = tree(work)
    again = lambda: subprocess.run(words, cwd=work, env=env, stdout=out, stderr=out, timeout=PATIENCE_S, check=False)  # noqa: E731
    again()
    if hint := re.search(r"HEAD has moved.*\n.*`git reset --soft (\w+)`", (place / "said").read_text()):
        outcome.head_moved = True
        subprocess.run(["git", "reset", "-q", "--soft", hint[1]], cwd=work, check=True)
        again()
    told = subprocess.run([OUTLAST, "journal", "r", "--json"], env=env, capture_output=True, check=True).stdout
    entries = json.loads(told)["entries"]
    outcome.known = sum(e["kind"] == "step" and e["state"] == "done" for e in entries)
    outcome.after = f"{outcome.known} steps"
    judge(outcome, place, commands, fell)


def one_agent(place: Path, agent: str, program: Path, commands: list[str], outcome: Outcome) -> None:
    from cli_bed import OUTLAST, PATIENCE_S, Bed, tool, until

    dice = random.Random(outcome.seed)
    bed = Bed(place, agent, program)
    try:
        shutil.rmtree(bed.work)
        lay_out(bed.work)
        (place / "bin").mkdir()
        wrapper = place / "bin" / agent
        script = Path(__file__).resolve()
        wrapper.write_text(WRAPPER.format(program=program, python=sys.executable, script=script))
        wrapper.chmod(0o700)
        bed.program = wrapper
        begun = [f"echo begun >> ../begun; {command}" for command in commands]
        asked = "\n".join([f"mock: latency {LATENCY}", *(tool(agent, command) for command in begun)])
        running = bed.run(["--files", "--restarts", "0"], asked)
        until("the first command began", lambda: (place / "begun").exists() or running.poll() is not None)
        time.sleep(cut_at(dice))
        is_supervisor = outcome.seed % 4 == 0
        guardian = Path(f"/proc/{running.pid}/task/{running.pid}/children")
        try:
            victim = int(guardian.read_text().split()[0])
            if not is_supervisor:
                victim = agent_pid(victim, agent)
            os.kill(victim, signal.SIGKILL)
        except (OSError, IndexError):
            outcome.after = "had ended; "
        code = running.wait(PATIENCE_S)
        calls = [e for e in bed.told("journal", "r")["entries"] if e["kind"] == "call"]
        outcome.known = max(0, len(calls) - 1)
        outcome.after += f"{len(calls)} calls, {'the supervisor' if is_supervisor else 'the agent'}, exit {code}"
        if code == 0:
            # The session was over.
            shutil.copytree(bed.work, place / "found-work", symlinks=True)
            outcome.exact = outcome.as_fell = tree(bed.work) == clean_trees(commands)[-1]
            return
        fell = tree(bed.work)
        resume = [OUTLAST, "resume", "r", "--add-restarts", "1", "--files", "last-tool"]
        bed.quietly(resume).wait(PATIENCE_S)
        if "HEAD has moved" in (place / "said").read_text():
            outcome.head_moved = True
            if tree(bed.work) == fell:
                bed.quietly([*resume, "--force", "HEAD"]).wait(PATIENCE_S)
        judge(outcome, place, commands, fell)
    finally:
        bed.end()


def agent_pid(supervisor: int, agent: str) -> int:
    """Returns the agent's own process. Codex's is started by a program of Node's."""
    def children(pid: int) -> list[int]:
        return [int(word) for task in Path(f"/proc/{pid}/task").iterdir() for word in (task / "children").read_text().split()]

    def named(pid: int) -> str:
        return Path(f"/proc/{pid}/exe").readlink().name

    for pid in children(supervisor):
        for own in [pid, *children(pid)]:
            if agent == "codex" and named(own) == "codex" or agent == "claude" and b"do it once" in Path(f"/proc/{own}/cmdline").read_bytes():
                return own
    raise IndexError("no agent")


def judge(outcome: Outcome, place: Path, commands: list[str], fell: Tree) -> None:
    trees = clean_trees(commands)
    outcome.as_fell = fell == trees[outcome.known]
    outcome.said = (place / "said").read_text()[-600:]
    try:
        found = json.loads((place / "found").read_text())
    except (OSError, ValueError):
        return
    outcome.exact = found == trees[outcome.known]
    outcome.behind = not outcome.exact and outcome.known > 0 and found == trees[outcome.known - 1]
    if outcome.is_bad():
        wanted = trees[outcome.known]
        outcome.said += "".join(
            f"\n{path!r}: {found.get(path)} instead of {wanted.get(path)}"
            for path in sorted(found.keys() | wanted.keys())
            if found.get(path) != wanted.get(path)
        )[:2000]


def series(agent: str, program: Path | None, args: argparse.Namespace) -> list[Outcome]:
    said = threading.Lock()

    def one(n: int) -> Outcome:
        number, seed = args.seed + n // args.kills, args.seed * args.kills + n
        place = Path(tempfile.mkdtemp())
        outcome, commands = Outcome(number, seed, ""), task(number)
        try:
            if program:
                one_agent(place, agent, program, commands, outcome)
            else:
                one_program(place, commands, outcome)
        except Exception as e:
            outcome.said += f"\nthe bed: {e!r}"
        with said:
            facts = [fact for fact in ("exact", "behind", "head_moved", "as_fell") if getattr(outcome, fact)]
            print(outcome if outcome.is_bad() else f"{outcome.seed}: {outcome.after}, {' '.join(facts)}", file=args.log, flush=True)
        if outcome.is_bad() and args.keep:
            shutil.copytree(place, args.keep / f"{agent}-{seed}", symlinks=True, ignore=shutil.ignore_patterns("gate", "*.sock"))
        shutil.rmtree(place, ignore_errors=True)
        return outcome

    with ThreadPoolExecutor(args.at_once) as pool:
        return list(pool.map(one, range(args.tasks * args.kills)))


def main() -> None:
    if sys.argv[1:2] == ["--look"]:
        print(json.dumps(tree(Path(sys.argv[2]))))
        return
    import cli_bed

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", type=int, default=100)
    parser.add_argument("--kills", type=int, default=10, help="runs of each task, each killed once")
    parser.add_argument("--seed", type=int, default=0, help="number of the first task; the next ones count on")
    parser.add_argument("--at-once", type=int, default=2, help="runs at a time")
    parser.add_argument("--keep", type=Path, help="a directory for what a run that went wrong has left")
    parser.add_argument("--log", type=argparse.FileType("a"), default=sys.stderr, help="a file for each outcome")
    parser.add_argument("agents", nargs="+", metavar="AGENT")
    args = parser.parse_args()
    print("| | kills | exact | HEAD | behind | mixed | as fell |\n|---|---|---|---|---|---|---|")
    for argument in args.agents:
        agent, program, name = ("python", None, "steps of a program") if argument == "python" else cli_bed.named(argument)
        told = series(agent, program, args)
        count = lambda fact: sum(fact(one) for one in told)  # noqa: E731
        columns = [
            name, len(told), count(lambda one: one.exact), count(lambda one: one.exact and one.head_moved),
            count(lambda one: one.behind), count(Outcome.is_bad), count(lambda one: one.as_fell),
        ]  # fmt: skip
        print("| " + " | ".join(str(column) for column in columns) + " |", flush=True)


if __name__ == "__main__":
    main()
