"""A loss of power at every sync point: what a program has acknowledged is there, whatever of the rest reached the disk.

    make power-loss
    .venv/bin/python scripts/crash/power.py [--points N] [--seed N] [--planted] [--keep DIRECTORY]

A program (`play`) uses all that a SQLite store has beside it: the log and its mark, the ballast, results of a batch in JSONL,
snapshots of files. It says in a file what it has been given. `deathwatch` records each write, sync, size and name below its
directory. From that, disks are built as they may be found after a loss of power before each sync: only what was synced; a
random choice of the blocks and names since; all but a part of the last write. Each is opened, and has to have what was said.

A name is there for certain once its directory is synced, a file's bytes once the file is. `--planted` takes syncs away: each kind
that is missed has to be found. OUTLAST_BIN names the program; lib_native.so is beside it.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import random
import shutil
import struct
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
#: What a disk writes whole. Where it tears a page of the database within a checkpoint, the store is refused: its base is not known again.
BLOCK = 4096
#: What is said of a log whose last commit that was not synced is torn, below one under way that is whole: without a mark it looks
#: like a flipped bit. It is refused by name, and whole once it was cut.
TORN_BELOW = "and commits follow there"
#: A record's head: what, place, lengths of its path, of a second path, and of its bytes.
HEAD = struct.Struct("=c7xqIIQ")
STEPS, ITEMS, LIVES = 24, 8, 2
#: Sizes of a step's result: within its row, in a page, over several, and enough for a checkpoint of the log now and then.
SIZES = (1, 100, 3000, 9000, 150_000)


def text_of(what: str, number: int) -> str:
    """A result that compresses badly, the same in each life."""
    chance = random.Random(f"{what} {number}")
    return chance.randbytes(chance.choice(SIZES)).hex()


def play(home: Path) -> None:
    """The program. A line of `said` is written when something has been given: from then on it must not be lost."""
    import outlast

    said = os.open(home / "said", os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def say(what: str, key: object, value: object = None) -> None:
        os.write(said, (json.dumps([what, key, value]) + "\n").encode())

    work = home / "work"
    work.mkdir(exist_ok=True)
    for life in range(LIVES):
        # The log of a store that is closed is gone, and begins anew.
        with contextlib.closing(outlast.connect(home / "runs.db")) as rt:
            # Never left: its process dies, or closes its store.
            steps = rt.run("steps", budget=outlast.Budget(usd=1)).__enter__()
            for i in range(STEPS * (life + 1)):
                steps.step("work", text_of, "step", i)
                say("step", i)
                if i % 4 == 0 and (steps.state.get("at") or -1) < i:
                    steps.state.put("at", i)
                    say("state", i)
            with rt.run(f"files-{life}", budget=outlast.Budget(usd=1), files=work) as run:
                for i in range(4):
                    run.step("write", lambda i: (work / f"{life}-{i}").write_text(text_of("file", i)), i)
                    say("file", [life, i])
            out = home / f"out-{life}.jsonl"
            given = {"job": f"job-{life}", "key": str, "version": "1", "progress": False, "store": rt}
            rows = outlast.map(range(ITEMS), lambda i: text_of("item", i), out=out, **given)
            for row in rows:
                say("item", [life, int(row.key)])
            say("out", life, hashlib.sha256(out.read_bytes()).hexdigest())


class Lost(Exception):
    """Something that was acknowledged, and is not there."""


def check(home: Path, said: list[list], outlast_bin: Path) -> None:
    """Opens a disk as it was found. Errors: `Lost`, and whatever a store says that cannot be opened."""
    import outlast

    def never(what: str, number: int) -> str:
        raise Lost(f"{what} {number}")

    if not said and not (home / "runs.db").exists():
        return
    with contextlib.closing(outlast.connect(home / "runs.db")) as rt:
        steps = [key for what, key, _ in said if what == "step"]
        if steps:
            with rt.run("steps", budget=outlast.Budget(usd=1), if_held="takeover") as run:
                for i in range(max(steps) + 1):
                    if run.step("work", never, "step", i) != text_of("step", i):
                        raise Lost(f"step {i} is another one")
                states = [key for what, key, _ in said if what == "state"]
                if states and (run.state.get("at") or 0) < states[-1]:
                    raise Lost(f"the state {states[-1]}")
        for life in range(LIVES):
            items = [key[1] for what, key, _ in said if what == "item" and key[0] == life]
            given = {"job": f"job-{life}", "key": str, "version": "1", "progress": False, "store": rt}
            rows = list(outlast.map(sorted(items), lambda i: never("item", i), **given)) if items else []
            if any(not row.ok or row.value != text_of("item", int(row.key)) for row in rows):
                raise Lost(f"an item of {items}")
    for what, life, digest in said:
        if what == "out" and hashlib.sha256((home / f"out-{life}.jsonl").read_bytes()).hexdigest() != digest:
            raise Lost(f"out-{life}.jsonl")
    # The snapshots that the journal names are whole, and so is the store.
    done = subprocess.run(
        [str(outlast_bin), "verify", "--json"], env={**os.environ, "OUTLAST_STORE": str(home / "runs.db")}, capture_output=True, text=True, check=False
    )
    if done.returncode or json.loads(done.stdout).get("damage"):
        raise Lost(f"outlast verify: {(done.stdout + done.stderr)[:400]}")


@dataclass
class Record:
    what: str
    at: int
    path: str
    other: str
    data: bytes


def records(log: Path) -> Iterator[Record]:
    with log.open("rb") as file:
        while head := file.read(HEAD.size):
            what, at, path, other, length = HEAD.unpack(head)
            yield Record(what.decode(), at, file.read(path).decode(), file.read(other).decode(), file.read(length))


class File:
    """A file's bytes for certain, and what was done since its last sync: a place and bytes, or a size alone."""

    def __init__(self) -> None:
        self.sure = bytearray()
        self.since: list[tuple[int, bytes | None]] = []

    def sync(self, until: int | None = None) -> None:
        done, self.since = self.since[:until], self.since[until:] if until is not None else []
        for change in done:
            apply(self.sure, *change)

    def through(self, at: int, data: bytes) -> None:
        """Bytes that are on the disk when they are written, with what lay below them and the size that they need."""
        end = at + len(data)
        over = [n for n, (place, old) in enumerate(self.since) if old is None or place < end and at < place + len(old)]
        self.sync(over[-1] + 1 if over else 0)
        apply(self.sure, at, data)


def apply(content: bytearray, at: int, data: bytes | None) -> None:
    end = at if data is None else at + len(data)
    if data is None:
        del content[at:]
    content.extend(bytes(max(0, end - len(content))))
    if data is not None:
        content[at:end] = data


#: A directory, where a file may be.
DIRECTORY = File()


@dataclass
class Disk:
    """Contents of a disk: those that are there for certain, and those that may be."""

    sure: dict[str, File] = field(default_factory=dict)
    now: dict[str, File] = field(default_factory=dict)
    #: Changes of names since the sync of their directories: of each name what it is then, `None` if it is none.
    names: list[dict[str, File | None]] = field(default_factory=list)
    #: File that was written last.
    last: File | None = None
    #: Whether a sync of a path counts.
    is_kept: Callable[[str], bool] = lambda _: True

    def name(self, change: dict[str, File | None]) -> None:
        self.names.append(change)
        named(self.now, change)

    def add(self, record: Record) -> None:
        path, file = record.path, self.now.get(record.path)
        match record.what:
            case "c" if file is None:
                self.name({path: File()})
            case "m" if file is None:
                self.name({path: DIRECTORY})
            case "w" | "d" if file is not None:
                self.last = file
                if record.what == "d" and self.is_kept(path):
                    file.through(record.at, record.data)
                else:
                    file.since.append((record.at, record.data))
            case "t" if file is not None:
                file.since.append((record.at, None))
            case "s" if file is not None and file is not DIRECTORY and self.is_kept(path):
                file.sync()
            case "s" if self.is_kept(path):
                # A directory. A change of names in two of them is one, and is there when either is synced.
                done = [change for change in self.names if any(os.path.dirname(name) == path for name in change)]
                self.names = [change for change in self.names if change not in done]
                for change in done:
                    named(self.sure, change)
            case "u" if file is not None:
                self.name({path: None})
            case "r" if file is not None:
                self.name({path: None, record.other: file})
            case "n" if file is not None and record.other not in self.now:
                self.name({path: None, record.other: file})
            case "l" if file is not None and record.other not in self.now:
                self.name({record.other: file})
            case "x":
                raise ValueError(f"no record tells what was done to {path}")
            case "c" | "m" | "w" | "d" | "t" | "s" | "u" | "r" | "n" | "l":
                # Refused, as the program was; or a sync that is taken away.
                pass
            case other:
                raise ValueError(f"no record is called {other}")

    def found(self, chance: random.Random | None, torn: bool, under: str, to: Path) -> None:
        """Writes a disk as it may be found. `chance`: what of the rest is there; `torn`: all but half of the last write."""
        names = dict(self.sure)
        count = len(self.names) if torn else chance.randint(0, len(self.names)) if chance else 0
        for change in self.names[:count]:
            named(names, change)
        for path, file in names.items():
            place = to / os.path.relpath(path, under)
            if file is DIRECTORY:
                place.mkdir(parents=True, exist_ok=True)
                continue
            content = bytearray(file.sure)
            share = chance.choice((0.1, 0.5, 0.9)) if chance else 0
            for n, (at, data) in enumerate(file.since if torn or chance else []):
                is_torn = torn and file is self.last and n == len(file.since) - 1
                if data is None:
                    if torn or chance and chance.random() < share:
                        apply(content, at, None)
                elif is_torn:
                    apply(content, at, data[: max(0, (at + len(data) // 2) // BLOCK * BLOCK - at)])
                elif torn:
                    apply(content, at, data)
                else:
                    blocks(content, at, data, lambda: bool(chance) and chance.random() < share)
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
            place.chmod(0o600)


def blocks(content: bytearray, at: int, data: bytes, is_there: Callable[[], bool]) -> None:
    first = at
    while first < at + len(data):
        end = min(at + len(data), (first // BLOCK + 1) * BLOCK)
        if is_there():
            apply(content, first, data[first - at : end - at])
        first = end


def named(names: dict[str, File], change: dict[str, File | None]) -> None:
    for name, file in change.items():
        if file is None:
            names.pop(name, None)
        else:
            names[name] = file


#: Syncs that are taken away, each of which has to be missed.
PLANTED: dict[str, Callable[[str], bool]] = {
    "the log's": lambda path: not path.endswith("-wal"),
    "the directories'": lambda path: not os.path.isdir(path),
    "the snapshots'": lambda path: ".files/" not in path,
    "the results'": lambda path: ".jsonl" not in path,
    "the database's": lambda path: not path.endswith("runs.db"),
    "the mark's": lambda path: not path.endswith("-mark"),
}


class Losses:
    """`place`: where the program runs. `other`: a directory on another device, where disks are found: a mark knows by the device
    and the boot whether what was written and not synced can be asked for."""

    def __init__(self, place: Path, other: Path, outlast_bin: Path, seed: int, keep: Path | None = None) -> None:
        assert place.stat().st_dev != other.stat().st_dev, f"{place} and {other} are on one device"
        self.place, self.other, self.outlast_bin, self.seed, self.keep = place, other, outlast_bin, seed, keep
        self.home, self.log = place.resolve() / "home", place / "record"
        #: Disks that were refused as `TORN_BELOW`, and had everything once their log was cut.
        self.refused = 0
        self.home.mkdir()

    def record(self) -> None:
        watch = self.place / "deathwatch"
        subprocess.run(["cc", "-O2", "-o", str(watch), str(HERE / "deathwatch.c"), "-lpthread"], check=True)
        words = [str(watch), "--record", str(self.log), "--under", str(self.home), "--", sys.executable, __file__, "--play", str(self.home)]
        subprocess.run(words, env={**os.environ, "HOME": str(self.place)}, check=True)

    def syncs(self) -> int:
        return sum(record.what in "sd" for record in records(self.log))

    def check(self, found: Path, said: list[list]) -> None:
        try:
            check(found, said, self.outlast_bin)
        except Exception as e:
            if TORN_BELOW not in str(e):
                raise
            words = [str(self.outlast_bin), "repair", str(found / "runs.db"), "--accept-shorter"]
            subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=True)
            check(found, said, self.outlast_bin)
            self.refused += 1

    def misses(self, is_kept: Callable[[str], bool]) -> list[str]:
        """The first losses where syncs are taken away. The power is lost at points behind each of them."""
        paths = [record.path for record in records(self.log) if record.what in "sd"]
        behind = {n + more for n, path in enumerate(paths, 1) if not is_kept(path) for more in range(1, 9)}
        return self.lose(behind, is_kept, most=1, draws=4)[1]

    def lose(
        self, points: set[int] | None = None, is_kept: Callable[[str], bool] = lambda _: True, most: int = 1 << 30, draws: int = 1
    ) -> tuple[int, list[str]]:  # fmt: skip
        """Loses the power before each sync (or those of `points`): what was synced is there, `draws` choices of the rest, a torn
        write. Returns the number of disks, and what was lost."""
        disk, said, disks, lost, n = Disk(is_kept=is_kept), b"", 0, [], 0
        for record in [*records(self.log), Record("s", 0, "", "", b"")]:
            if record.path == str(self.home / "said"):
                said += record.data
                continue
            file = disk.now.get(record.path)
            if record.what == "d" and file:
                # It may be cut off itself.
                file.since.append((record.at, record.data))
                disk.last = file
            if record.what in "sd" and (n := n + 1) and (points is None or n in points):
                chance = random.Random(f"{self.seed} {n}")
                for way, how in (("what was synced", None), *draws * (("some of the rest", chance),), ("a torn write", None)):
                    disks += 1
                    found = self.other / f"found-{disks}"
                    found.mkdir()
                    disk.found(how, way == "a torn write", str(self.home), found)
                    told = [json.loads(line) for line in said.splitlines()]
                    try:
                        self.check(found, told)
                    except Exception as e:  # noqa: BLE001 (whatever keeps a store from going on is told)
                        lost.append(f"before sync {n} ({os.path.basename(record.path)}), {way}: {type(e).__name__}: {str(e)[:300]}")
                        if self.keep:
                            shutil.copytree(found, self.keep / f"{n} {way}", dirs_exist_ok=True)
                    shutil.rmtree(found)
                    if len(lost) >= most:
                        return disks, lost
            if record.what == "d" and file:
                file.since.pop()
            disk.add(record)
        return disks, lost


def sample(syncs: int, count: int, seed: int) -> set[int]:
    """Numbers of a sample of syncs, spread over all of them."""
    chance = random.Random(seed)
    return {min(syncs, int((n + chance.random()) * syncs / count) + 1) for n in range(count)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--play", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--points", type=int, help="so many syncs; all of them if not given")
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 20))
    parser.add_argument("--planted", action="store_true", help="the planted faults alone")
    parser.add_argument("--keep", type=Path, help="a directory for disks on which something was lost")
    args = parser.parse_args()
    sys.path.insert(0, str(ROOT / "tests/python"))
    from conftest import SOURCES, outlast_program

    sys.path.insert(0, str(SOURCES))
    if args.play:
        play(args.play)
        return 0
    with tempfile.TemporaryDirectory(prefix="outlast-power-", dir=ROOT) as place, tempfile.TemporaryDirectory(dir="/dev/shm") as other:
        losses = Losses(Path(place), Path(other), outlast_program(), args.seed, args.keep)
        losses.record()
        syncs = losses.syncs()
        print(f"seed {args.seed}; {syncs} syncs", flush=True)
        missed = []
        for what, is_kept in PLANTED.items():
            lost = losses.misses(is_kept)
            print(f"planted: {what} syncs are taken away: {lost[0] if lost else 'NOT FOUND'}", flush=True)
            missed += [] if lost else [what]
        if args.planted:
            return bool(missed)
        disks, lost = losses.lose(sample(syncs, args.points, args.seed) if args.points else None)
        print(*lost[:20], sep="\n")
        print(f"{disks} losses of power before {args.points or syncs} syncs: {len(lost)} lost something, {losses.refused} were cut by hand; {len(PLANTED) - len(missed)} of {len(PLANTED)} planted faults found")
        return bool(lost or missed or not disks)


if __name__ == "__main__":
    sys.exit(main())
