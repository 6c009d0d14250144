"""Loops of durable steps, a class for each peer that is measured; `steps.py` starts them, each in a process of its own.

A peer is made at a place: a directory, or the URL of a PostgreSQL database. It has some of these methods:

- `sequence(count)`: steps of 1 KB, one after another, in one run;
- `concurrent(runs, count)`: as many steps in each of several runs at once;
- `fill(count)`: small steps of a run that then breaks off;
- `resume(count)`, in another process: the run goes on, to its first new step.
"""

from __future__ import annotations

import asyncio
import base64
import json
import os
import random
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

# Of a seed, and no pattern that compresses well.
KB = base64.b64encode(random.Random(1).randbytes(750)).decode()
SMALL = KB[:90]


def told(value: float) -> NoReturn:
    """Tells the process that measures what this one came to, and ends."""
    print(json.dumps(value), flush=True)
    os._exit(0)


def is_first_life() -> bool:
    return os.environ.get("BENCH_LIFE") != "2"


def is_url(place: str) -> bool:
    return "://" in place


class Peer:
    #: Head of the peer's column.
    name: str
    #: Modules without which the peer is left out. The first is the one that a program imports.
    modules: tuple[str, ...] = ()
    #: Commands without which the peer is left out.
    commands: tuple[str, ...] = ()
    #: SQLite file in the place.
    file: str | None = None
    #: Counts the steps that the store has, in SQL. The schema is the peer's key in `PEERS`.
    recorded: str | None = None

    def __init__(self, place: str) -> None:
        raise NotImplementedError

    def close(self) -> None:
        pass


# --- limits: no engine, only a disk or a database


class Raw(Peer):
    """The disk: 4 KiB more in a file that grows, and a sync; the same loop as in `make bench`."""

    name = "raw fdatasync, 4 KiB"

    def __init__(self, place: str) -> None:
        self.path = os.path.join(place, "raw")

    def sequence(self, count: int) -> None:
        block = random.Random(2).randbytes(4096)
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for _ in range(count):
            os.write(fd, block)
            os.fdatasync(fd)
        os.close(fd)


class Jsonl(Peer):
    """A file that people write by hand: a line for each step, on disk before the next."""

    name = "JSONL + fdatasync"

    def __init__(self, place: str) -> None:
        self.path = os.path.join(place, "steps.jsonl")

    def sequence(self, count: int) -> None:
        fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for i in range(count):
            os.write(fd, (json.dumps({"i": i, "result": KB}) + "\n").encode())
            os.fdatasync(fd)
        os.close(fd)

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


class Bare(Peer):
    """PostgreSQL as a program by hand uses it: a row inserted and committed over one connection, then the next."""

    name = "INSERT + COMMIT"
    modules = ("psycopg",)
    recorded = "SELECT count(*) FROM bare"

    def __init__(self, place: str) -> None:
        import psycopg

        self.db = psycopg.connect(place)
        self.db.execute("CREATE TABLE bare (no bigserial PRIMARY KEY, result text)")
        self.db.commit()

    def sequence(self, count: int) -> None:
        for _ in range(count):
            self.db.execute("INSERT INTO bare (result) VALUES (%s)", [KB])
            self.db.commit()

    def close(self) -> None:
        self.db.close()


# --- engines


class Outlast(Peer):
    name = "Outlast"
    modules = ("outlast",)
    file = "outlast.db"
    # Entries of the kind Step that are Done (crates/core/src/journal/mod.rs).
    recorded = "SELECT count(*) FROM outlast.entries WHERE kind = 1 AND state = 1"

    def __init__(self, place: str) -> None:
        import outlast

        self.outlast = outlast
        self.rt = outlast.connect(place if is_url(place) else os.path.join(place, self.file))

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


class Node(Peer):
    """A loop in Node against a private server of the npm package: what JavaScript pays beyond the engine is HTTP."""

    commands = ("node",)
    #: The loop that `steps.mjs` knows by this name.
    loop: str

    def __init__(self, place: str) -> None:
        self.store = os.path.join(place, "outlast.db")

    def sequence(self, count: int) -> None:
        self.measured(1, count)

    def concurrent(self, runs: int, count: int) -> None:
        self.measured(runs, count)

    def measured(self, runs: int, count: int) -> NoReturn:
        # The wheel's own command, unless another one is named.
        environment = {"OUTLAST_BIN": str(Path(sys.executable).with_name("outlast")), **os.environ}
        script = Path(__file__).with_name("steps.mjs")
        words = ["node", str(script), self.loop, self.store, str(runs), str(count), KB]
        told(float(subprocess.check_output(words, env=environment)))


class Npm(Node):
    name = "Outlast, Node"
    loop = "steps"
    file = "outlast.db"
    recorded = "SELECT count(*) FROM npm.entries WHERE kind = 1 AND state = 1"


class Fetch(Node):
    """Requests that the server answers without its store: nothing is kept."""

    name = "fetch alone, Node"
    loop = "fetch"


class Dbos(Peer):
    name = "DBOS"
    modules = ("dbos",)
    file = "dbos.sqlite"
    recorded = "SELECT count(*) FROM dbos.operation_outputs"

    def __init__(self, place: str) -> None:
        from dbos import DBOS, SetWorkflowID

        self.DBOS, self.SetWorkflowID = DBOS, SetWorkflowID
        url = place if is_url(place) else f"sqlite:///{os.path.join(place, self.file)}"
        DBOS(config={"name": "bench", "system_database_url": url, "log_level": "ERROR", "run_admin_server": False})

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
            if die and is_first_life():
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


class Absurd(Peer):
    name = "Absurd"
    modules = ("absurd_sdk", "absurdctl")
    recorded = "SELECT count(*) FROM absurd.c_default"
    #: Workers of the concurrent runs. A worker has one connection; 16 in one process make 1.4 times the steps of one.
    WORKERS = 16

    def __init__(self, place: str) -> None:
        import absurd_sdk

        self.app = absurd_sdk.Absurd(place)
        if is_first_life():
            schema = [Path(sys.executable).with_name("absurdctl"), "init", "--database", place]
            subprocess.run(schema, check=True, stdout=subprocess.DEVNULL)
            self.app.create_queue()
        self.workers = [absurd_sdk.AsyncAbsurd(place) for _ in range(self.WORKERS)]

        @self.app.register_task("sequence")
        def sequence(params: Any, ctx: Any) -> None:
            for _ in range(params["count"]):
                ctx.step("work", lambda: params["text"])
            if params["breaks_off"] and is_first_life():
                raise InterruptedError
            ctx.step("work", lambda: params["text"])

    def sequence(self, count: int) -> None:
        self.app.spawn("sequence", {"count": count - 1, "text": KB, "breaks_off": False})
        self.app.work_batch()

    def concurrent(self, runs: int, count: int) -> None:
        left = runs

        async def work() -> str:
            return KB

        async def several(params: Any, ctx: Any) -> None:
            nonlocal left
            for _ in range(count):
                await ctx.step("work", work)
            left -= 1
            if not left:
                for worker in self.workers:
                    worker.stop_worker()

        async def main() -> None:
            each = runs // self.WORKERS
            # A worker looks whether it is to stop when it has slept: the default is a quarter of a second.
            works = (w.start_worker(str(n), concurrency=each, poll_interval=0.01) for n, w in enumerate(self.workers))
            await asyncio.gather(*works)

        for worker in self.workers:
            worker.register_task("several")(several)
        for _ in range(runs):
            self.app.spawn("several", {}, queue="default")
        asyncio.run(main())

    def close(self) -> None:
        self.app.close()

    def fill(self, count: int) -> None:
        # A task that raised is due again at once; the lease of one that was killed would have to pass first.
        self.app.spawn("sequence", {"count": count, "text": SMALL, "breaks_off": True})
        self.app.work_batch()

    def resume(self, count: int) -> None:
        self.app.work_batch()


PEERS: dict[str, type[Peer]] = {
    "raw": Raw, "jsonl": Jsonl, "bare": Bare, "outlast": Outlast, "npm": Npm, "fetch": Fetch, "dbos": Dbos, "absurd": Absurd,
}  # fmt: skip
