"""The table of docs/design/files.md: what a snapshot of a large tree costs, beside git's index and restic.

    python3 scripts/files-cost.py [--outlast PATH] [--files N] [--bytes N] [--rounds N] [--restic PATH]

Makes a tree of texts, takes the first snapshot of it, changes 20 files in each round and takes the next. A snapshot's time is
that between the call beside which it is taken and its entry in the journal. git has the same files in a scratch repository:
`git add -A` and `git write-tree`. Beside each time stands that of the processors, which other programs hardly change. Take a
program that was built for release.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import random
import resource
import shutil
import statistics
import subprocess
import tempfile
import time
from pathlib import Path

#: Files that are changed in a round.
CHANGED = 20

#: The agent: for each round it changes files, and asks. The answer takes long enough for the tree to be taken beside it.
AGENT = """
import json, os, sys, urllib.request
sys.path.insert(0, sys.argv[1])
from importlib import import_module
change = import_module("files-cost").change
def ask(n):
    body = {"model": "gpt-4o-mini", "messages": [{"role": "user", "content": f"go on {n}"}]}
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    urllib.request.urlopen(urllib.request.Request(url, json.dumps(body).encode(), headers)).read()
for n in range(int(sys.argv[2])):
    if sys.argv[3] == "changes":
        change(".", n)
    ask(n)
"""


def text(rng: random.Random, words: list[str], length: int) -> str:
    """Lines of words, which compress as sources do."""
    lines: list[str] = []
    while length > 0:
        line = " ".join(rng.choices(words, k=9)) + "\n"
        lines.append(line)
        length -= len(line)
    return "".join(lines)


def make(root: Path, files: int, size: int) -> None:
    rng = random.Random(1)
    words = ["".join(rng.choices("etaoinshrdlucmfw_", k=rng.randint(2, 9))) for _ in range(4000)]
    blocks = [text(rng, words, 2000) for _ in range(3000)]
    for n in range(files):
        path = at(root, n)
        path.parent.mkdir(parents=True, exist_ok=True)
        # Each differs from every other, in each of its blocks.
        parts = [f"{n} {rng.random()}\n{rng.choice(blocks)}" for _ in range(max(1, size // files // 2020))]
        path.write_text("".join(parts))


def at(root: Path, n: int) -> Path:
    return root / f"package{n // 1000}" / f"module{n // 20 % 50}" / f"source{n}.txt"


def change(root: str, round: int) -> None:
    """Appends a line to files in as many directories."""
    for n in range(CHANGED):
        with open(at(Path(root), 997 * (CHANGED * round + n) % 50_000 % _count(root)), "a") as file:
            file.write(f"changed in round {round}\n")


def _count(root: str) -> int:
    return int(Path(root, ".count").read_text())


class Took:
    """Seconds that something took, by the clock and by the processors."""

    def __init__(self, clock: float, cpu: float) -> None:
        self.clock, self.cpu = clock, cpu

    def __sub__(self, other: Took) -> Took:
        return Took(self.clock - other.clock, self.cpu - other.cpu)

    def __str__(self) -> str:
        return f"{self.clock * 1000:,.0f} ms ({self.cpu * 1000:,.0f} ms)"


def took(*command: str | Path, cwd: Path, env: dict[str, str] | None = None) -> Took:
    def now() -> Took:
        used = resource.getrusage(resource.RUSAGE_CHILDREN)
        return Took(time.monotonic(), used.ru_utime + used.ru_stime)

    began = now()
    subprocess.run(command, cwd=cwd, env=env, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    return now() - began


def median(all: list[Took]) -> Took:
    return Took(statistics.median(took.clock for took in all), statistics.median(took.cpu for took in all))


def size(directory: Path) -> int:
    return sum(path.stat().st_size for path in directory.rglob("*") if path.is_file())


def outlast(program: Path, bed: Path, work: Path, rounds: int) -> dict[str, object]:
    env = {"PATH": os.environ["PATH"], "HOME": str(bed), "OUTLAST_STORE": str(bed / "runs.db"), "OPENAI_API_KEY": "sk-x"}
    command = [program, "mock", "--listen", "127.0.0.1:0", "--latency", "1500ms"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env) as mock:
        assert mock.stdout
        env["OPENAI_BASE_URL"] = mock.stdout.readline().strip() + "/v1"
        (bed / "agent.py").write_text(AGENT)
        agent = ["python3", "-SE", bed / "agent.py", Path(__file__).parent]
        run = [program, "run", "--usd", "1", "--restarts", "0"]
        try:
            first = took(*run, "--run", "first", "--files", "--", "true", cwd=work, env=env)
            space = size(bed / "runs.db.files")
            without = took(*run, "--run", "bare", "--", "true", cwd=work, env=env)
            unchanged = took(*run, "--run", "again", "--files", "--", "true", cwd=work, env=env)
            kept = took(*run, "--run", "r", "--files", "--", *agent, str(rounds), "changes", cwd=work, env=env)
            alone = took(*run, "--run", "alone", "--", *agent, str(rounds), "changes", cwd=work, env=env)
        finally:
            mock.terminate()
    printed = subprocess.run([program, "journal", "r", "--json"], env=env, check=True, capture_output=True, text=True).stdout
    entries = json.loads(printed)["entries"]
    opened = lambda entry: datetime.datetime.fromisoformat(entry["opened_at"]).timestamp()
    calls = {e["seq"]: opened(e) for e in entries if e["kind"] == "call"}
    printed = subprocess.run([program, "files", "r", "--json"], env=env, check=True, capture_output=True, text=True).stdout
    beside = {s["entry"] for s in json.loads(printed)["snapshots"] if s["moment"] == "call"}
    taken = [opened(e) for e in entries if e["kind"] == "checkpoint" and e["key"] == "outlast:files"]
    times = [min(t for t in taken if t >= calls[call]) - calls[call] for call in sorted(beside)]
    caches = sum(path.stat().st_size for path in (bed / "runs.db.files").glob("*.cache"))
    return {
        "first": first - without,
        "unchanged": unchanged - without,
        "next": Took(statistics.median(times), (kept - alone - (unchanged - without)).cpu / len(times)),
        "snapshots": len(times),
        "space": space - caches,
        "space after": size(bed / "runs.db.files") - caches,
    }


def git(bed: Path, work: Path, rounds: int) -> dict[str, object]:
    env = {"PATH": os.environ["PATH"], "HOME": str(bed), "GIT_DIR": str(bed / "scratch.git"), "GIT_WORK_TREE": str(work)}
    took("git", "init", "-q", cwd=work, env=env)
    take = ("sh", "-c", "git add -A && git write-tree")
    first = took(*take, cwd=work, env=env)
    unchanged = took(*take, cwd=work, env=env)
    times = []
    for n in range(rounds):
        change(str(work), 1000 + n)
        times.append(took(*take, cwd=work, env=env))
    loose = size(bed / "scratch.git/objects")
    # Objects that no commit names are packed as they are.
    pack = "cd $GIT_DIR && find objects -type f | sed 's#objects/##; s#/##' | git pack-objects -q pack"
    took("sh", "-c", pack, cwd=work, env=env)
    packed = sum(path.stat().st_size for path in (bed / "scratch.git").glob("pack-*"))
    return {"first": first, "unchanged": unchanged, "next": median(times), "space after": loose, "packed": packed}


def restic(program: Path, bed: Path, work: Path, rounds: int) -> dict[str, object]:
    env = {"PATH": os.environ["PATH"], "HOME": str(bed), "RESTIC_PASSWORD": "x", "RESTIC_REPOSITORY": str(bed / "restic")}
    took(program, "init", cwd=work, env=env)
    take = (program, "backup", ".")
    first = took(*take, cwd=work, env=env)
    space = size(bed / "restic")
    unchanged = took(*take, cwd=work, env=env)
    times = []
    for n in range(rounds):
        change(str(work), 2000 + n)
        times.append(took(*take, cwd=work, env=env))
    return {"first": first, "unchanged": unchanged, "next": median(times), "space": space, "space after": size(bed / "restic")}


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--outlast", type=Path, default=Path("target/release/outlast"))
    words.add_argument("--files", type=int, default=50_000)
    words.add_argument("--bytes", type=int, default=1 << 30)
    words.add_argument("--rounds", type=int, default=20)
    words.add_argument("--restic", type=Path)
    asked = words.parse_args()
    bed = Path(tempfile.mkdtemp(prefix="outlast-files-cost-"))
    try:
        work = bed / "work"
        work.mkdir()
        make(work, asked.files, asked.bytes)
        (work / ".count").write_text(str(asked.files))
        os.sync()
        # All of them find the tree in memory.
        held = sum(len(path.read_bytes()) for path in work.rglob("*") if path.is_file())
        print(f"{asked.files} files, {held:,} bytes, load {os.getloadavg()[0]:.1f}")
        found = {"outlast": outlast(asked.outlast.resolve(), bed, work, asked.rounds), "git": git(bed, work, asked.rounds)}
        if asked.restic:
            found["restic"] = restic(asked.restic.resolve(), bed, work, asked.rounds)
        for name, facts in found.items():
            for what, value in facts.items():
                print(f"{name:8} {what:12} {value if isinstance(value, Took) else f'{value:,}'}", flush=True)
        print(f"load {os.getloadavg()[0]:.1f}")
    finally:
        shutil.rmtree(bed)


if __name__ == "__main__":
    main()
