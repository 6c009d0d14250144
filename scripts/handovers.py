"""The figures of docs/design/files.md on hand-overs: a session that two hosts take from each other, again and again.

    .venv/bin/python scripts/handovers.py [--times N] [--seed N] [--postgres URL] AGENT=DIRECTORY

AGENT is `claude` or `codex`. Each host has a home, a working directory and objects of its own, and with `--postgres` a pid
namespace; else its own SQLite store, and the run comes and goes in a bundle. All processes of a host die at a random instant, in
a tool or beside a call; the other one goes on. Whenever an agent starts, its tree is held to its conversation: files are there,
whole, of just those tools whose results the last call carried. Where the host died before the snapshot beside that call, those
of the tools before it may be missing, and the agent's note names them. At the end no effect was made twice, and nothing was paid
that is no entry.
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
import time
from pathlib import Path

import cli_bed
from cli_bed import OUTLAST, PATIENCE_S, Bed, tool, until

#: Commands in the session, more than the hosts come to.
COMMANDS = 220

#: Stands in place of the agent's program, and notes which files it finds.
WRAPPER = """\
#!/bin/sh
for f in f-*; do [ -e "$f" ] && echo "$f $(cat $f)"; done > {place}/found-$OUTLAST_ATTEMPT
cat log >> {place}/found-$OUTLAST_ATTEMPT
exec {program} "$@"
"""


class Host:
    def __init__(self, bed: Bed, name: str, postgres: str | None) -> None:
        self.bed, self.is_alone = bed, postgres is not None
        self.home = bed.place / name
        self.work = self.home / "work"
        self.work.mkdir(parents=True)
        self.env = bed.env | {"HOME": str(self.home), "OUTLAST_STORE": postgres or str(self.home / "runs.db")}
        self.process: subprocess.Popen | None = None

    def start(self, *words: str | Path) -> None:
        """Starts a command that works until the host dies."""
        apart = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc"] if self.is_alone else []
        with (self.bed.place / "said").open("a") as out:
            self.process = subprocess.Popen(
                [*apart, OUTLAST, *words], cwd=self.work, env=self.env, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True,
            )  # fmt: skip
        self.bed.processes.append(self.process)

    def does(self, *words: str | Path) -> None:
        """Does a command to its end."""
        with (self.bed.place / "said").open("a") as out:
            subprocess.run([OUTLAST, *words], cwd=self.work, env=self.env, stdout=out, stderr=out, check=True, timeout=PATIENCE_S)

    def dies(self) -> None:
        """Kills all that the host started, until nothing is left of it."""
        assert self.process
        if self.is_alone:
            # With the first process of its namespace go all others.
            self.process.kill()
        mark = f"HOME={self.home}".encode()
        while not self.is_alone and (left := [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if bears(pid, mark)]):
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                except ProcessLookupError:
                    pass
            time.sleep(0.01)
        self.process.wait()


def bears(pid: int, mark: bytes) -> bool:
    try:
        return mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False


def paid(bed: Bed) -> int:
    log = bed.place / "paid.log"
    return len(log.read_text().splitlines()) if log.exists() else 0


def told_since(bed: Bed, calls: int) -> str:
    """Returns what the agent was asked after so many calls: the first is its note."""
    return "".join(json.loads(line)["asked"] for line in (bed.place / "paid.log").read_text().splitlines()[calls:])


def told_results(host: Host, bed: Bed) -> set[int]:
    """Returns the tools whose results the run's last call carried."""
    bed.env, bed.work = host.env, host.work
    calls = [entry for entry in bed.told("journal", "r")["entries"] if entry["kind"] == "call"]
    shown = subprocess.run(
        [OUTLAST, "journal", "r", str(calls[-1]["seq"]), "--json"], env=host.env, cwd=host.work, capture_output=True, text=True, check=True
    )  # fmt: skip
    return {int(n) for n in re.findall(r"got-(\d+);", shown.stdout)}


def hand_over(old: Host, new: Host, n: int) -> None:
    if old.is_alone:
        new.start("resume", "r", "--cd", new.work)
        return
    bundle = old.bed.place / f"{n}.bundle"
    old.does("export", "r", "--bundle", bundle)
    if n > 1:
        # A store's newest run stays.
        new.does("run", "--", "true")
        new.does("rm", "r")
    shutil.rmtree(new.work)
    new.work.mkdir()
    new.does("import", bundle, "--into", new.work)
    new.start("resume", "r")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--postgres", help="address of an empty schema; else bundles are handed over")
    parser.add_argument("agent", metavar="AGENT=DIRECTORY")
    args = parser.parse_args()
    agent, program, name = cli_bed.named(args.agent)
    dice = random.Random(args.seed)
    place = Path(tempfile.mkdtemp())
    bed = Bed(place, agent, program)
    wrapper = place / "bin" / agent
    wrapper.parent.mkdir()
    wrapper.write_text(WRAPPER.format(place=place, program=program))
    wrapper.chmod(0o700)
    hosts = [Host(bed, host, args.postgres) for host in ("a", "b")]
    writes = "printf half > f-{n}; sleep 0.1; echo {n} >> log; echo {n} >> {place}/effects; printf ' whole' >> f-{n}; printf 'got-%s;' {n}"
    script = "\n".join(["mock: latency 250ms", *(tool(agent, writes.format(n=n, place=place)) for n in range(COMMANDS))])
    behind = ["-p", *bed.words(script), "--"] if agent == "claude" else ["exec", *bed.words(script)]
    hosts[0].start("run", "--run", "r", "--usd", "100", "--files", "--", wrapper, *behind, "do it once")
    wrong, lost, behind, began = [], set[int](), 0, time.monotonic()
    try:
        for n in range(1, args.times + 1):
            old, new = hosts[(n - 1) % 2], hosts[n % 2]
            calls = paid(bed)
            until("a call is made", lambda: paid(bed) > calls + 1 or old.process.poll() is not None)  # noqa: B023
            time.sleep(dice.uniform(0, 0.5))
            old.dies()
            carried, calls_before = told_results(old, bed), paid(bed)
            hand_over(old, new, n)
            found = place / f"found-{n + 1}"
            until("the agent starts", lambda: found.exists() or new.process.poll() is not None)  # noqa: B023
            calls = paid(bed)
            until("it asks", lambda: paid(bed) > calls or new.process.poll() is not None)  # noqa: B023
            lines = found.read_text().split("\n") if found.exists() else ["nothing"]
            whole = {int(line[2:].split()[0]) for line in lines if re.fullmatch(r"f-\d+ half whole", line)}
            logged = {int(line) for line in lines if line.isdigit()}
            missing = carried - lost - whole
            is_told = all(f"printf half > f-{one};" in told_since(bed, calls_before) for one in missing)
            if whole != logged or not whole <= carried - lost or not is_told or len(lines) != len(whole) + len(logged) + 1:
                wrong.append((n, sorted(carried), lines))
            behind += bool(missing)
            lost |= missing
            print(f"{n}: {time.monotonic() - began:.0f} s, {len(carried)} tools, without {sorted(missing)}", file=sys.stderr, flush=True)
        new.dies()
        bed.env, bed.work = new.env, new.work
        entries = [entry for entry in bed.told("journal", "r")["entries"] if entry["kind"] == "call"]
        done = sum(entry["state"] == "done" for entry in entries)
        effects = (place / "effects").read_text().split()
        said = (place / "said").read_text()
        print(
            f"{name}: {args.times} hand-overs, {args.times - behind - len(wrong)} trees as the conversation has them, {behind} behind it and told; {paid(bed)} calls paid, "
            f"{done} of {len(entries)} entries done, {len(effects) - len(set(effects))} effects twice, "
            f"{said.count('goes on in its session')} sessions gone on with"
        )
        for one in wrong:
            print(one)
    finally:
        for host in hosts:
            if host.process and host.process.poll() is None:
                host.dies()
        bed.end()
        if args.postgres is None or wrong:
            print(place, file=sys.stderr)


if __name__ == "__main__":
    main()
