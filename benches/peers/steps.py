"""Durable steps of the Python package beside DBOS on SQLite and a JSONL file with fdatasync, in one run.

    make bench-python                        builds the wheel, installs the peers, runs this
    python benches/peers/steps.py [--quick]  with what is installed here

Each measurement is a process of its own on a fresh store in the same directory (--dir), and each figure the median of
three (--times). A peer that is not installed is left out, and said.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import os
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

# Of a seed, and no pattern that compresses well.
KB = base64.b64encode(random.Random(1).randbytes(750)).decode()
SMALL = KB[:90]


# --- one peer each: `sequence` does durable steps of 1 KB, `resume` is killed after some and started again


class Jsonl:
    """What people write by hand: a line for each step, on disk before the next."""

    name = "JSONL + fdatasync"

    def __init__(self, place: Path) -> None:
        self.path = place / "steps.jsonl"

    def sequence(self, count: int) -> None:
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for i in range(count):
            os.write(fd, (json.dumps({"i": i, "result": KB}) + "\n").encode())
            os.fdatasync(fd)
        os.close(fd)

    def close(self) -> None:
        pass

    def fill(self, count: int) -> None:
        with open(self.path, "w") as file:
            for i in range(count):
                file.write(json.dumps({"i": i, "result": SMALL}) + "\n")

    def resume(self, count: int) -> None:
        done = {line["i"] for line in map(json.loads, open(self.path))}
        assert len(done) == count
        fd = os.open(self.path, os.O_WRONLY | os.O_APPEND)
        os.write(fd, (json.dumps({"i": count, "result": SMALL}) + "\n").encode())
        os.fdatasync(fd)


class Raw:
    """What the disk does: 4 KiB more in a file that grows, and a sync; the same loop as in `make bench`."""

    name = "raw fdatasync, 4 KiB"

    def __init__(self, place: Path) -> None:
        self.path = place / "raw"

    def sequence(self, count: int) -> None:
        block = random.Random(2).randbytes(4096)
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for _ in range(count):
            os.write(fd, block)
            os.fdatasync(fd)
        os.close(fd)

    def close(self) -> None:
        pass


class Outlast:
    name = "outlast (SQLite)"

    def __init__(self, place: Path) -> None:
        import outlast

        self.outlast = outlast
        self.rt = outlast.connect(place / "outlast.db")

    def sequence(self, count: int) -> None:
        with self.rt.run("r", budget=self.outlast.Budget(usd=1)) as run:
            for i in range(count):
                run.step("work", lambda i: KB, i)

    def concurrent(self, runs: int, count: int) -> None:
        async def work(i: int) -> str:
            return KB

        async def one(n: int) -> None:
            async with self.rt.run(f"r{n}", budget=self.outlast.Budget(usd=1)) as run:
                for i in range(count):
                    await run.step("work", work, i)

        async def main() -> None:
            await asyncio.gather(*(one(n) for n in range(runs)))

        asyncio.run(main())

    def close(self) -> None:
        self.rt.close()

    def fill(self, count: int) -> None:
        try:
            with self.rt.run("r", budget=self.outlast.Budget(usd=1)) as run:
                for i in range(count):
                    run.step("work", lambda i: SMALL, i)
                raise KeyboardInterrupt
        except KeyboardInterrupt:
            pass

    def resume(self, count: int) -> None:
        with self.rt.run("r") as run:
            for i in range(count + 1):
                run.step("work", lambda i: SMALL, i)


class Dbos:
    name = "DBOS (SQLite)"

    def __init__(self, place: Path) -> None:
        from dbos import DBOS, SetWorkflowID

        self.DBOS, self.SetWorkflowID = DBOS, SetWorkflowID
        DBOS(config={"name": "bench", "system_database_url": f"sqlite:///{place / 'dbos.sqlite'}", "log_level": "ERROR", "run_admin_server": False})  # fmt: skip

        @DBOS.step()
        def work(i: int, text: str) -> str:
            return text

        @DBOS.step()
        async def work_async(i: int, text: str) -> str:
            return text

        @DBOS.workflow()
        def sequence(count: int, text: str, die: bool) -> None:
            for i in range(count):
                work(i, text)
            if die and os.environ.get("BENCH_LIFE") != "2":
                os._exit(0)
            work(count, text)
            if die:
                told(time.time())

        @DBOS.workflow()
        async def several(count: int) -> None:
            for i in range(count):
                await work_async(i, KB)

        self._sequence, self._several = sequence, several
        DBOS.launch()

    def sequence(self, count: int) -> None:
        self._sequence(count - 1, KB, False)

    def concurrent(self, runs: int, count: int) -> None:
        async def main() -> None:
            await asyncio.gather(*(self._several(count) for _ in range(runs)))

        asyncio.run(main())

    def close(self) -> None:
        self.DBOS.destroy()

    def fill(self, count: int) -> None:
        with self.SetWorkflowID("r"):
            self._sequence(count, SMALL, True)

    def resume(self, count: int) -> None:
        # Recovery began at the launch; the workflow tells the time itself.
        time.sleep(600)


PEERS = {"raw": Raw, "jsonl": Jsonl, "outlast": Outlast, "dbos": Dbos}


def told(value: float) -> None:
    """What a measuring process came to, for the one that started it."""
    print(json.dumps(value), flush=True)
    os._exit(0)


def child(peer: str, what: str, place: Path, count: int) -> None:
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
        made.concurrent(64, count)
    elif what == "fill":
        made.fill(count)
    took = time.perf_counter() - start
    # A store that was left in order is as large as it will stay.
    made.close()
    told(took)


# --- the one that measures


def run(peer: str, what: str, place: Path, count: int, life: str = "1") -> float | None:
    began = time.time()
    environment = {**os.environ, "BENCH_BEGAN": repr(began), "BENCH_LIFE": life, "HOME": str(place)}
    done = subprocess.run(
        [sys.executable, __file__, "--child", peer, what, str(place), str(count)],
        env=environment, capture_output=True, text=True,
    )  # fmt: skip
    lines = done.stdout.split()
    if what == "fill":
        return 0.0
    if not lines:
        print(f"{peer} {what}: {done.stderr.strip().splitlines()[-1:] or 'no answer'}", file=sys.stderr)
        return None
    value = float(lines[-1])
    # DBOS resumes beside its launch, and tells the time of day.
    return value - began if value > 1e9 else value


def size(place: Path) -> int:
    """Bytes of the store; the ballast that lets a full disk be survived is of one size, and no step's."""
    return sum(f.stat().st_size for f in place.rglob("*") if f.is_file() and not f.name.endswith(".ballast"))


def median(times: int, once) -> float | None:
    found = [value for value in (once() for _ in range(times)) if value is not None]
    return statistics.median(found) if found else None


def imports(module: str) -> float | None:
    code = f"import time; t = time.perf_counter(); import {module}; print(time.perf_counter() - t)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    return float(done.stdout) * 1000 if done.returncode == 0 else None


def measure(args: argparse.Namespace) -> dict[str, dict[str, float | None]]:
    installed = [p for p in PEERS if p in ("raw", "jsonl") or imports(p) is not None]
    for peer in PEERS.keys() - set(installed):
        print(f"{peer} is not installed: left out", file=sys.stderr)
    steps, resumes = (300, (1_000,)) if args.quick else (2_000, (10_000, 100_000))
    rows: dict[str, dict[str, float | None]] = {}

    def fresh() -> Path:
        return Path(tempfile.mkdtemp(dir=args.dir, prefix="bench-"))

    def row(name: str, peer: str, value: float | None) -> None:
        rows.setdefault(name, {})[PEERS[peer].name] = value

    # In turns: a disk is not equally fast at all times.
    took: dict[str, list[float]] = {peer: [] for peer in installed}
    sizes: dict[str, list[float]] = {peer: [] for peer in installed}
    for _ in range(args.times):
        for peer in installed:
            place, more = fresh(), fresh()
            seconds = run(peer, "sequence", place, steps)
            # A second store of one step, so that what every store has is not counted.
            run(peer, "sequence", more, 1)
            sizes[peer].append((size(place) - size(more)) / (steps - 1))
            if seconds is not None:
                took[peer].append(steps / seconds)
    for peer in installed:
        row("sequential 1 KB steps/s", peer, statistics.median(took[peer]) if took[peer] else None)
    sequential = rows["sequential 1 KB steps/s"]
    for other in (Raw, Jsonl):
        for peer in installed:
            ours, theirs = sequential[PEERS[peer].name], sequential[other.name]
            row(f"the same, x {other.name}", peer, ours / theirs if ours and theirs else None)

    for peer in installed:
        if peer == "raw":
            continue
        row("bytes per 1 KB step", peer, statistics.median(sizes[peer]))
        if peer != "jsonl":
            each = max(4, steps // 40)

            def concurrent() -> float | None:
                took = run(peer, "concurrent", fresh(), each)
                return None if took is None else 64 * each / took

            row("64 concurrent runs, 1 KB steps/s", peer, median(args.times, concurrent))
            row("import, ms", peer, median(args.times, lambda: imports(peer)))
        for count in resumes:
            place = fresh()
            run(peer, "fill", place, count)
            # Once each: what is resumed is then a step longer.
            row(f"start to first new step after {count:,} steps, s", peer, run(peer, "resume", place, count, life="2"))
    return rows


def main() -> None:
    if sys.argv[1:2] == ["--child"]:
        peer, what, place, count = sys.argv[2:6]
        child(peer, what, Path(place), int(count))
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--quick", action="store_true", help="few steps, to see that it runs")
    parser.add_argument("--times", type=int, default=3, help="measurements for each median")
    parser.add_argument("--dir", help="where the stores are; the disk decides most of it")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.dir or os.getcwd(), prefix=".bench-") as place:
        args.dir = place
        rows = measure(args)
    names = [p.name for p in PEERS.values()]
    print(f"{'':48}" + "".join(f"{name:>20}" for name in names))
    for what, row in rows.items():
        cells = ["-" if row.get(name) is None else f"{row[name]:,.3g}" if row[name] < 10 else f"{row[name]:,.0f}" for name in names]
        print(f"{what:48}" + "".join(f"{cell:>20}" for cell in cells))


if __name__ == "__main__":
    main()
