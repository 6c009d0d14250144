"""The real program, killed at random instants and at every system call by which it writes; judged from outside.

    make crash [KILLS=5000]
    .venv/bin/python scripts/crash/campaign.py [--kills N] [--minutes N] [--seed N] [--scenario NAME]… [--keep DIRECTORY]
    .venv/bin/python scripts/crash/campaign.py --only plain:supervisor.40:self,@20000:all

Each run of a scenario (`scenarios.py`) dies twice: at a write of one of its processes, taken from the list of all of them,
and at a random instant or write of what recovers. It goes on to its end and is judged (`judge.py`) by what a provider and a
service for effects have logged (`outside.py`). What most stores wrote is replayed through a model (`traces.py`). Then faults are planted (`planted.py`): each has to be found. Writes
docs/evidence.json, and docs/evidence.md and README's figure from it; exits with 1 if a run has a fault, or if a planted one was not found.

OUTLAST_BIN names the program; lib_native.so is beside it. Linux, a C compiler; no root, no network.
"""

from __future__ import annotations

import argparse
import datetime
import itertools
import json
import os
import platform
import random
import resource
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import evidence
import traces
from bed import ROOT, Bed, Database, Death, Place
from judge import judged
from planted import BARE, PLANTED, bare
from scenarios import ALL, Scenario

#: Clean runs of each scenario: the second one counts the writes, when all that is made once is there.
CLEAN_RUNS = 2
#: Runs of a scenario between two of its runs on PostgreSQL.
POSTGRES_EVERY = 4
#: Of so many runs on SQLite one makes its store itself, and dies while it does; the others write their traces.
UNTRACED_EVERY = 4


@dataclass
class Tally:
    """A scenario's part of the campaign."""

    scenario: Scenario
    #: Each write of each role, with each kind of death, in a random order; and those that were hit.
    points: list[Death] = field(default_factory=list)
    known: set[Death] = field(default_factory=set)
    hit: set[Death] = field(default_factory=set)
    writes: dict[str, int] = field(default_factory=dict)
    clean_us: int = 0
    runs: int = 0
    on_postgres: int = 0
    kinds: Counter[str] = field(default_factory=Counter)
    calls: Counter[str] = field(default_factory=Counter)
    sums: Counter[str] = field(default_factory=Counter)
    next: int = 0

    def told(self) -> dict:
        return {
            "name": self.scenario.name, "title": self.scenario.title, "runs": self.runs, "on_postgres": self.on_postgres,
            "kills": sum(self.kinds.values()), "kinds": dict(sorted(self.kinds.items())), "writes": self.writes,
            "points": len(self.points), "hit": len(self.hit), "calls": dict(sorted(self.calls.items())), **self.sums,
        }  # fmt: skip


class Campaign:
    def __init__(self, bed: Bed, args: argparse.Namespace, database: Database | None) -> None:
        self.bed, self.args, self.database = bed, args, database
        self.dice = random.Random(args.seed)
        self.lock = threading.Lock()
        self.numbers = iter(range(1, 1 << 30))
        self.faults: list[dict] = []
        self.tallies = [Tally(s) for s in ALL if not args.scenario or s.name in args.scenario]
        self.kills = 0

    def clean(self, tally: Tally) -> None:
        """Counts the writes of a run that nobody kills, which must have no fault itself."""
        scenario = tally.scenario
        for n in range(CLEAN_RUNS):
            place = Place(self.bed, f"{scenario.name}-clean{n}", None, scenario.calls)
            outcome = scenario.live(scenario, place, [])
            self.judge(tally, place, outcome, [])
        counts: Counter[str] = Counter()
        for life in place.lives:
            for word, count in life.writes.items():
                counts[word.split()[0]] += count
        tally.writes = {role: counts[role] for role in scenario.kinds}
        tally.clean_us = int(sum(life.elapsed_s for life in place.lives) * 1e6)
        by_role = [
            [Death(f"{role}.{n}", kind) for n in range(1, tally.writes[role] + 1) for kind in kinds]
            for role, kinds in scenario.kinds.items()
        ]
        for points in by_role:
            self.dice.shuffle(points)
        # Roles in turns: those that write little would hardly die in a short campaign.
        tally.points = [point for turn in itertools.zip_longest(*by_role) for point in turn if point]
        tally.known = set(tally.points)

    def planned(self, tally: Tally) -> list[Death]:
        """A death at a write, and one at random."""
        scenario = tally.scenario
        deaths = [tally.points[tally.next % len(tally.points)]]
        tally.next += 1
        while len(deaths) < scenario.most_deaths:
            if self.dice.random() < 0.5:
                deaths.append(Death(f"@{self.dice.randrange(max(tally.clean_us, 1000))}", self.dice.choice(scenario.victims())))
            else:
                deaths.append(self.dice.choice(tally.points))
        return deaths

    def one(self) -> int:
        """Kills a run of the scenario whose turn it is, and judges it; returns its number."""
        with self.lock:
            n = next(self.numbers)
            tally = self.tallies[n % len(self.tallies)]
            deaths = self.planned(tally)
            # Every other run on PostgreSQL loses its database as well.
            after_s = self.dice.random() * tally.clean_us / 1e6 if self.dice.random() < 0.5 else None
            on_postgres = tally.next % POSTGRES_EVERY == 0
            traced = tally.next % UNTRACED_EVERY != 1
        run = f"{tally.scenario.name}-{self.args.seed}x{n}"
        # Where another run is on it, this one is on SQLite: none waits.
        if not self.database or not on_postgres or not self.database.turn.acquire(blocking=False):
            self.play(tally, run, deaths, traced=traced)
            return n
        try:
            self.play(tally, run, deaths, self.database.url, after_s)
        finally:
            self.database.turn.release()
        return n

    def play(
        self, tally: Tally, run: str, deaths: list[Death], store: str | None = None, after_s: float | None = None, *, traced: bool = False
    ) -> None:  # fmt: skip
        place = Place(self.bed, run, store, tally.scenario.calls, traced=traced)
        losing = threading.Timer(after_s or 0, self.lose_database, [place])
        try:
            if after_s is not None:
                losing.start()
            try:
                outcome = tally.scenario.live(tally.scenario, place, deaths)
            finally:
                # Not in the next run.
                losing.cancel()
                if losing.ident:
                    losing.join()
            self.judge(tally, place, outcome, deaths)
        except Exception:  # noqa: BLE001 (whatever it is, it is told beside the run, and makes the campaign red)
            self.told(tally, place, deaths, [traceback.format_exc()])

    def lose_database(self, place: Place) -> None:
        assert self.database
        strike = self.database.die()
        # A run that has ended meanwhile has lost nothing by it.
        place.elsewhere += [strike] if strike else []

    def judge(self, tally: Tally, place: Place, outcome, deaths: list[Death]) -> None:
        on_postgres = place.store.startswith("postgres")
        # What is in a shared store is checked once, at the end.
        faults, sums = judged(tally.scenario, place, outcome, verify=not on_postgres)
        if place.traced:
            acts, wrong = traces.checked(self.bed.sim, traces.rows(Path(place.store)), place.home / "trace")
            faults += [f"its trace is none of the model's: {wrong}"] if wrong else []
            sums |= {"traces": 1, "acts": acts}
        with self.lock:
            tally.runs += bool(deaths)
            tally.on_postgres += on_postgres and bool(deaths)
            tally.sums.update(sums)
            planned = {str(death): death for death in deaths}
            for strike in outcome.strikes:
                self.kills += 1
                tally.kinds["machine" if strike.death == "all" else " + ".join(sorted(set(strike.killed) - {"other"}) or ["other"])] += 1
                if strike.call:
                    tally.calls[strike.call] += 1
                    death = planned.get(f"{strike.point}:{strike.death}")
                    tally.hit |= {death} & tally.known if death else set()
        if faults:
            self.told(tally, place, deaths, faults)
        else:
            place.gone()

    def told(self, tally: Tally, place: Place, deaths: list[Death], faults: list[str]) -> None:
        only = f"{tally.scenario.name}:{','.join(map(str, deaths))}{' --traced' if place.traced else ''}"
        with self.lock:
            self.faults.append({"run": place.run, "store": place.store, "only": only, "faults": faults[:5]})
        print(f"FAULT in {place.run} (--only {only}):", *faults[:5], sep="\n  ", flush=True)
        if self.args.keep:
            sockets = shutil.ignore_patterns("*.sock")
            shutil.copytree(place.home, self.args.keep / place.run, symlinks=True, dirs_exist_ok=True, ignore=sockets)
            lines = "\n".join(map(json.dumps, self.bed.lines(place.run)))
            (self.args.keep / place.run / "outside.jsonl").write_text(lines)

    def fight(self) -> float:
        """Kills until there were enough, or until the time is over; returns the seconds."""
        began = time.monotonic()
        until = began + self.args.minutes * 60

        def work(_: int) -> None:
            while self.kills < self.args.kills and time.monotonic() < until and len(self.faults) < self.args.faults:
                if self.one() % 50 == 0:
                    print(f"{self.kills} kills, {self.kills / (time.monotonic() - began):.1f} a second", flush=True)

        with ThreadPoolExecutor(self.args.at_once) as pool:
            list(pool.map(work, range(self.args.at_once)))
        return time.monotonic() - began

    def plant(self) -> list[dict]:
        def one(told: tuple[int, str]) -> dict:
            n, name = told
            try:
                found = PLANTED[name](self.bed, f"planted-{n}", name)
            except Exception:  # noqa: BLE001 (a fault that could not be planted was not found)
                print(traceback.format_exc(), flush=True)
                found = []
            print(f"planted: {name}: {found[0][:200] if found else 'NOT FOUND'}", flush=True)
            by = found[0].splitlines()[0].replace(f"{self.bed.place}/", "")[:160] if found else ""
            return {"name": name, "found": bool(found), "by": by}

        with ThreadPoolExecutor(self.args.at_once) as pool:
            return list(pool.map(one, enumerate(PLANTED)))

    def without(self) -> dict[str, int]:
        """The control: the same kind of work without Outlast, killed at each of its writes."""
        sums: Counter[str] = Counter()
        for n in range(1, 4 * BARE.calls + 1):
            sums.update(bare(self.bed, f"bare-{n}", Death(f"agent.{n}", "self")))
        return dict(sums)


def sentence(*words: str) -> str:
    return subprocess.run(words, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=True).stdout.strip()


def cpu() -> float:
    """Seconds of processors that this process and those that it has waited for have used."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(one.ru_utime + one.ru_stime for one in used)


def machine() -> dict:
    memory = next(line for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("MemTotal"))
    return {"cores": os.cpu_count(), "kernel": platform.release().partition("-")[0], "memory_gib": round(int(memory.split()[1]) / (1 << 20))}


def fought(args: argparse.Namespace, bed: Bed, database: Database | None) -> int:
    campaign = Campaign(bed, args, database)
    print(f"seed {args.seed}; clean runs", flush=True)
    with ThreadPoolExecutor(args.at_once) as pool:
        list(pool.map(campaign.clean, campaign.tallies))
    if args.only:
        name, _, deaths = args.only.partition(":")
        tally = next(tally for tally in campaign.tallies if tally.scenario.name == name)
        for n in range(args.times):
            planned = [Death(*text.rsplit(":", 1)) for text in deaths.split(",")]
            campaign.play(tally, f"{name}-{n}", planned, database.url if database else None, traced=args.traced)
        print(f"{campaign.kills} kills, {len(campaign.faults)} runs with faults")
        return bool(campaign.faults)
    if args.planted:
        return not all(one["found"] for one in campaign.plant())
    cpu_before = cpu()
    seconds = campaign.fight()
    cpu_seconds = cpu() - cpu_before
    if database:
        whole = Place(bed, "postgres", database.url, 0)
        code, said = whole.told("verify")
        if code or said.get("damage"):
            campaign.faults.append({"run": "all on PostgreSQL", "store": database.url, "only": "", "faults": [str(said)]})
    planted = campaign.plant()
    told = {
        "date": datetime.date.today().isoformat(), "commit": args.commit or sentence("git", "rev-parse", "--short=12", "HEAD"),
        "version": sentence(str(bed.outlast), "--version"), "profile": args.profile or bed.outlast.parent.name, "machine": machine(), "seed": args.seed,
        "kills": campaign.kills, "seconds": round(seconds), "cpu_seconds": round(cpu_seconds), "at_once": args.at_once, "postgres": bool(database),
        "scenarios": [tally.told() for tally in campaign.tallies], "faults": campaign.faults, "planted": planted,
        "bare": campaign.without(),
    }  # fmt: skip
    args.json.write_text(json.dumps(told, indent=1) + "\n")
    if args.json == evidence.FACTS:
        evidence.write(told)
    missed = [one["name"] for one in planted if not one["found"]]
    print(f"{campaign.kills} kills in {seconds:.0f} s, {len(campaign.faults)} runs with faults, {len(planted) - len(missed)} of {len(planted)} planted faults found")
    return bool(campaign.faults or missed or not campaign.kills)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kills", type=int, default=5000, help="deaths in all")
    parser.add_argument("--minutes", type=float, default=24 * 60, help="most time for them")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 20))
    parser.add_argument("--scenario", action="append", choices=[s.name for s in ALL], help="only these")
    parser.add_argument("--at-once", type=int, default=2 * (os.cpu_count() or 1), help="runs at a time: they wait half of it")
    parser.add_argument("--faults", type=int, default=20, help="stop after so many runs with faults")
    parser.add_argument("--postgres", action="store_true", help="a quarter of the runs on a PostgreSQL of its own")
    parser.add_argument("--planted", action="store_true", help="the planted faults alone")
    parser.add_argument("--keep", type=Path, help="a directory for what runs with faults have left")
    parser.add_argument("--only", help="one run again: SCENARIO:POINT:VICTIMS,…")
    parser.add_argument("--traced", action="store_true", help="with --only: on a store that was made before, and writes its trace")
    parser.add_argument("--times", type=int, default=1, help="how often, with --only")
    parser.add_argument("--commit", help="the commit that the program was built from, where it is not this tree's")
    parser.add_argument("--profile", help="how it was built; otherwise its directory's name")
    parser.add_argument("--json", type=Path, default=evidence.FACTS)
    args = parser.parse_args()

    def stop(number: int, _: object) -> None:
        """Lets the runs under way come to their ends, and then ends."""
        args.kills = 0
        sys.exit(128 + number)

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)
    outlast = Path(os.environ.get("OUTLAST_BIN") or ROOT / "target/debug/outlast").resolve()
    # In memory where there is such a place: what a kill takes is no matter of the disk.
    shm = Path("/dev/shm")
    place = Path(tempfile.mkdtemp(prefix="outlast-crash-", dir=shm if os.access(shm, os.W_OK) else None))
    database, bed = None, None
    try:
        if args.postgres:
            # The server may run under another account.
            place.chmod(0o711)
            database = Database(place / "server")
        bed = Bed(place, outlast)
        return fought(args, bed, database)
    finally:
        if bed:
            bed.close()
        if database:
            database.close()
        shutil.rmtree(place, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
