"""Durable steps of the Python package beside others', in one run: on the disk, or with --postgres on one PostgreSQL server.

    make bench                               builds the wheel, installs the peers, has this in its table, with and without --postgres
    .venv-bench/bin/python benches/peers/steps.py [--postgres] [--quick]  alone, with what is installed there

On the disk the peers are the npm package, a bare loop of `fetch` in Node, DBOS on SQLite and a JSONL file with fdatasync; on
PostgreSQL they are DBOS, Absurd and psycopg's bare loop of INSERT and COMMIT. The server is started for it in the same directory
(--dir), and syncs its log as servers do.

Each measurement is a process of its own on a fresh store, and each figure the median of three (--times), the peers in
turns. Steps are counted in the store afterwards: a measurement that has not recorded each of them fails. A peer that is
not installed is left out, and said.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Iterable, Iterator

from loops import PEERS, told

#: Runs that are driven at once.
CONCURRENT = 64
#: Languages of the programs that are ours.
LANGUAGES = {"outlast": "Python", "npm": "Node"}
SERVER = Path(__file__).resolve().parents[2] / "scripts" / "private-postgres.sh"


# --- where the steps go


class Disk:
    """A directory for each measurement."""

    name = "SQLite and files"
    peers = ("raw", "jsonl", "outlast", "npm", "fetch", "dbos")
    #: Programs of ours, and what limits each: the best of these.
    ours = {"outlast": ("raw", "jsonl"), "npm": ("fetch",)}
    resumed = (10_000, 100_000)

    def __init__(self, place: Path) -> None:
        self.place = place

    @contextlib.contextmanager
    def fresh(self) -> Iterator[str]:
        with tempfile.TemporaryDirectory(dir=self.place, prefix="bench-") as place:
            yield place

    def recorded(self, peer: str, place: str) -> int | None:
        """Steps that the store has; None for a plain file."""
        if PEERS[peer].file is None:
            return None
        with contextlib.closing(sqlite3.connect("file::memory:", uri=True)) as db:
            db.execute(f"ATTACH ? AS {peer}", [f"file:{place}/{PEERS[peer].file}?mode=ro"])
            return int(db.execute(PEERS[peer].recorded).fetchone()[0])

    def bytes(self, place: str) -> int | None:
        """Bytes of the store; the ballast that lets a full disk be survived is of one size, and no step's."""
        return sum(f.stat().st_size for f in Path(place).rglob("*") if f.is_file() and not f.name.endswith(".ballast"))


class Postgres:
    """A database for each measurement, on one server."""

    name = "PostgreSQL"
    peers = ("bare", "outlast", "dbos", "absurd")
    ours = {"outlast": ("bare",)}
    resumed = (10_000,)

    def __init__(self, place: Path) -> None:
        self.directory = place / "pg"
        # As root, the server runs under another account, which has to get through.
        place.chmod(0o711)
        # The script says on standard error what it lacks.
        started = subprocess.run([SERVER, "start", self.directory, "synced"], stdout=subprocess.PIPE, text=True)
        if started.returncode:
            sys.exit(started.returncode)
        self.url = started.stdout.strip()
        self.made = 0

    def stop(self) -> None:
        subprocess.run([SERVER, "stop", self.directory], check=True)

    @contextlib.contextmanager
    def fresh(self) -> Iterator[str]:
        self.made += 1
        name = f"bench_{self.made}"
        psql(self.url, f"CREATE DATABASE {name}")
        try:
            yield self.url.replace("/postgres?", f"/{name}?", 1)
        finally:
            psql(self.url, f"DROP DATABASE {name} WITH (FORCE)")

    def recorded(self, peer: str, place: str) -> int | None:
        return int(psql(place, PEERS[peer].recorded))

    def bytes(self, place: str) -> int | None:
        return None


def psql(url: str, sql: str) -> str:
    return subprocess.check_output(["psql", "-XqAt", "-v", "ON_ERROR_STOP=1", "-d", url, "-c", sql], text=True)


# --- one measurement


def child(peer: str, what: str, place: str, count: int) -> None:
    """One measurement, in this process."""
    began = float(os.environ["BENCH_BEGAN"])
    made = PEERS[peer](place)
    if what == "resume":
        made.resume(count)
        told(time.time() - began)
    start = time.perf_counter()
    if what == "sequence":
        made.sequence(count)
    elif what == "concurrent":
        made.concurrent(CONCURRENT, count)
    elif what == "fill":
        made.fill(count)
    took = time.perf_counter() - start
    # A store that was left in order is as large as it will stay.
    made.close()
    told(took)


class Measured:
    """Measurements of one store's peers."""

    def __init__(self, store: Disk | Postgres, home: Path, times: int) -> None:
        self.store, self.home, self.times = store, home, times
        self.peers = [peer for peer in store.peers if is_installed(peer)]
        #: Whether a measurement failed.
        self.failed = False

    def run(self, peer: str, what: str, place: str, count: int, recorded: int, life: str = "1") -> float | None:
        """Seconds of a measurement in a process of its own; None if it failed, or recorded another number of steps."""
        began = time.time()
        environment = {**os.environ, "BENCH_BEGAN": repr(began), "BENCH_LIFE": life, "HOME": str(self.home)}
        done = subprocess.run(
            [sys.executable, __file__, "--child", peer, what, place, str(count)],
            env=environment, capture_output=True, text=True,
        )  # fmt: skip
        lines = done.stdout.split()
        if not lines and (done.returncode or what != "fill"):
            return self.fail(peer, what, *(done.stderr.strip().splitlines()[-1:] or ["no answer"]))
        had = self.store.recorded(peer, place)
        if had not in (None, recorded):
            return self.fail(peer, what, f"wanted {recorded} steps in the store, had {had}", done.stderr.strip())
        # A run that is broken off by the end of its process tells no time.
        value = float(lines[-1]) if lines else 0.0
        # DBOS resumes beside its launch, and tells the time of day.
        return value - began if value > 1e9 else value

    def fail(self, peer: str, what: str, *why: str) -> None:
        self.failed = True
        print(f"{peer}, {what}: {' '.join(why)}", file=sys.stderr)

    def turns(self, what: str, count: int, runs: int = 1) -> tuple[dict[str, float], dict[str, float]]:
        """Steps a second of each peer, and the bytes of its store then: medians. A disk is not equally fast at all
        times, so the peers take turns."""
        rates: dict[str, list[float]] = {}
        sizes: dict[str, list[float]] = {}
        for _ in range(self.times):
            for peer in self.peers:
                # What has no runs, like a plain file, cannot do several.
                if not hasattr(PEERS[peer], what):
                    continue
                with self.store.fresh() as place:
                    seconds = self.run(peer, what, place, count, runs * count)
                    size = self.store.bytes(place)
                if seconds is not None:
                    rates.setdefault(peer, []).append(runs * count / seconds)
                    if size is not None:
                        sizes.setdefault(peer, []).append(size)
        return medians(rates), medians(sizes)

    def resumes(self, count: int) -> dict[str, float]:
        """Seconds from the start of a process to the first new step of a run that has `count` steps. Once each: the
        run is then a step longer."""
        found = {}
        for peer in self.peers:
            if not hasattr(PEERS[peer], "resume"):
                continue
            with self.store.fresh() as place:
                if self.run(peer, "fill", place, count, count) is not None:
                    took = self.run(peer, "resume", place, count, count + 1, life="2")
                    if took is not None:
                        found[peer] = took
        return found


def medians(found: dict[str, list[float]]) -> dict[str, float]:
    return {peer: statistics.median(values) for peer, values in found.items()}


def imports(module: str) -> float | None:
    code = f"import time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return float(done.stdout) * 1000 if done.returncode == 0 else None


def is_installed(peer: str) -> bool:
    missing = [module for module in PEERS[peer].modules if imports(module) is None]
    missing += [command for command in PEERS[peer].commands if shutil.which(command) is None]
    if missing:
        print(f"{peer} is left out: not installed: {', '.join(missing)}", file=sys.stderr)
    return not missing


# --- the table


@dataclass
class Row:
    """Name of a thing that is measured, and its figure for each peer that has one. Of "/s" more is better, of any other unit less."""

    what: str
    unit: str
    figures: dict[str, float]

    def best(self, peers: Iterable[str]) -> tuple[str, float] | None:
        """The best of these peers by name, and its figure."""
        found = [(peer, self.figures[peer]) for peer in peers if peer in self.figures]
        best = (max if self.unit == "/s" else min)(found, key=lambda pair: pair[1], default=None)
        return best and (PEERS[best[0]].name, best[1])


def measure(measured: Measured, quick: bool) -> list[Row]:
    store = measured.store
    steps = 300 if quick else 2_000
    rates, full = measured.turns("sequence", steps)
    rows = [Row("1 KB steps, one after another", "/s", rates)]
    if full:
        # Less a store of one step, so that what every store has is not counted.
        _, empty = measured.turns("sequence", 1)
        sizes = {peer: (size - empty[peer]) / (steps - 1) for peer, size in full.items() if peer in empty}
        rows.append(Row("a 1 KB step in the store", "bytes", sizes))
    each = max(4, steps // 40)
    at_once, _ = measured.turns("concurrent", each, CONCURRENT)
    rows.append(Row(f"1 KB steps of {CONCURRENT} runs at once", "/s", at_once))
    modules = {peer: PEERS[peer].modules[0] for peer in measured.peers if PEERS[peer].modules}
    took = {peer: [imports(module) or 0.0 for _ in range(measured.times)] for peer, module in modules.items()}
    rows.append(Row("import", "ms", medians(took)))
    for count in (1_000,) if quick else store.resumed:
        resumed = {peer: seconds * 1000 for peer, seconds in measured.resumes(count).items()}
        rows.append(Row(f"start to first new step after {count:,} steps", "ms", resumed))
    return rows


def show(store: Disk | Postgres, rows: list[Row]) -> None:
    def cell(value: float | None) -> str:
        return "-" if value is None else f"{value:,.3g}" if value < 10 else f"{value:,.0f}"

    print(f"{store.name:48}" + "".join(f"{PEERS[peer].name:>22}" for peer in store.peers))
    for row in rows:
        print(f"{f'{row.what} ({row.unit})':48}" + "".join(f"{cell(row.figures.get(peer)):>22}" for peer in store.peers))


def as_json(store: Disk | Postgres, rows: list[Row]) -> str:
    """Rows of the table of `make bench`: one for each program of ours, with its limit and the best peer."""
    limits = {limit for limits in store.ours.values() for limit in limits}
    peers = [peer for peer in store.peers if peer not in limits and peer not in store.ours]
    found = [
        {
            "what": f"{LANGUAGES[ours]}, {store.name}: {row.what}",
            "unit": row.unit,
            "ours": row.figures[ours],
            "limit": row.best(store.ours[ours]),
            "peer": row.best(peers),
        }
        for row in rows
        for ours in store.ours
        if ours in row.figures
    ]
    return json.dumps(found)


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        peer, what, place, count = sys.argv[2:6]
        child(peer, what, place, int(count))
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--postgres", action="store_true", help="on a PostgreSQL server of its own, not on SQLite and files")
    parser.add_argument("--json", action="store_true", help="rows for the table of `make bench`")
    parser.add_argument("--quick", action="store_true", help="few steps, to see that it runs")
    parser.add_argument("--times", type=int, default=3, help="measurements for each median")
    parser.add_argument("--dir", help="where the stores are; the disk decides most of it")
    args = parser.parse_args()
    # The server is to end with this process.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with contextlib.ExitStack() as stack:
        place = Path(stack.enter_context(tempfile.TemporaryDirectory(dir=args.dir or os.getcwd(), prefix=".bench-")))
        store: Disk | Postgres = Disk(place)
        if args.postgres:
            store = Postgres(place)
            stack.callback(store.stop)
        measured = Measured(store, place, args.times)
        rows = measure(measured, args.quick)
        print(as_json(store, rows)) if args.json else show(store, rows)
    if measured.failed:
        sys.exit("some measurements failed: see above")


if __name__ == "__main__":
    main()
