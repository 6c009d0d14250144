"""The surroundings of a campaign: programs, the world outside, a place for each run, and the watch that kills."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import traces
from outside import Chain

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
#: Longer than any life takes on a loaded machine.
LONGEST_S = 240


@dataclass(frozen=True)
class Death:
    """Where something is to die (`ROLE.N` or `@MICROSECONDS`), and what (`self`, `all`, or roles joined by `+`)."""

    point: str
    victims: str

    def __str__(self) -> str:
        return f"{self.point}:{self.victims}"


@dataclass
class Strike:
    """A death that happened, and the time by which all that it took with it had ended."""

    death: str
    point: str
    at_ns: int
    until_ns: int
    killed: list[str]
    call: str = ""
    target: str = ""


@dataclass
class Life:
    """One life of a command under the watch."""

    code: int
    text: str
    strikes: list[Strike] = field(default_factory=list)
    writes: dict[str, int] = field(default_factory=dict)
    elapsed_s: float = 0.0
    hung: bool = False
    left: bool = False


class Bed:
    """Everything that the runs of a campaign share. A directory of its own, gone at the end."""

    def __init__(self, place: Path, outlast: Path) -> None:
        self.place, self.outlast = place, outlast
        self.agents, lib = place / "agents", place / "lib"
        shutil.copytree(HERE / "agents", self.agents, ignore=shutil.ignore_patterns("__pycache__"))
        # The package as it is built here: its sources, and the extension beside the program.
        package = ROOT / "crates/python/python/outlast"
        shutil.copytree(package, lib / "outlast", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
        (lib / "outlast/_native.abi3.so").symlink_to(outlast.parent / "lib_native.so")
        (place / "bin").mkdir()
        (place / "bin/outlast").symlink_to(outlast)
        self.watch = place / "deathwatch"
        build = ["cc", "-O2", "-o", str(self.watch), str(HERE / "deathwatch.c"), "-lpthread"]
        subprocess.run(build, check=True)
        self.sim, self.armed = outlast.parent / "outlast-sim", place / "armed.db"
        subprocess.run(
            [sys.executable, "-c", f"import outlast; outlast.connect({str(self.armed)!r}).close()"],
            env={**os.environ, "PYTHONPATH": str(lib)}, check=True,
        )  # fmt: skip
        traces.arm(self.armed)
        self.log_path = place / "outside.log"
        self.outside = subprocess.Popen(
            [sys.executable, "-S", str(HERE / "outside.py"), str(self.log_path)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert self.outside.stdout
        self.port = int(self.outside.stdout.readline())
        self._ports, self._lock = iter(range(21_000, 31_000)), threading.Lock()
        self._log, self._read, self._chain = self.log_path.open(encoding="utf-8"), 0, Chain()
        self._of_run: dict[str, list[dict]] = defaultdict(list)

    def close(self) -> None:
        assert self.outside.stdin
        self.outside.stdin.close()
        self.outside.wait()

    def free_port(self) -> int:
        """A port below those that the kernel gives out: none is taken while a server is away."""
        with self._lock:
            for port in self._ports:
                with socket.socket() as free, contextlib.suppress(OSError):
                    free.bind(("127.0.0.1", port))
                    return port
        raise OSError("no port is free")

    def fence(self) -> int:
        """Waits until what was sent to the outside has been logged, and returns the time."""
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LONGEST_S)
        line.request("POST", "/ack", json.dumps({"run": "", "what": "fence"}))
        line.getresponse().read()
        line.close()
        return time.monotonic_ns()

    def lines(self, run: str) -> list[dict]:
        """What the world outside has of a run and of those below its name. Errors: `outside.Broken`."""
        with self._lock:
            had, whole, _ = self._log.read().rpartition("\n")
            # The rest of a line that is being written is read with the next ones.
            self._log.seek(self._read + len((had + whole).encode()))
            self._read = self._log.tell()
            for line in self._chain.lines(had):
                self._of_run[line["run"].rstrip("ab").rstrip("-")].append(line)
            return list(self._of_run[run])


class Database:
    """A PostgreSQL server of the campaign's own."""

    SCRIPT = str(ROOT / "scripts/private-postgres.sh")
    #: So long after its death calls may be lost: it recovers, and all connect anew.
    RECOVERS_NS = 30 * 10**9

    def __init__(self, place: Path) -> None:
        self.place = place
        started = subprocess.run([self.SCRIPT, "start", str(place)], stdout=subprocess.PIPE, text=True, check=True)
        self.url = started.stdout.strip()
        #: One run at a time: the death of a server is every run's that is on it.
        self.turn = threading.Lock()

    def close(self) -> None:
        subprocess.run([self.SCRIPT, "stop", str(self.place)], check=True)

    def die(self) -> Strike | None:
        """Kills a process of it that serves somebody; the server then ends all of them, and recovers."""
        server = int((self.place / "data/postmaster.pid").read_text().split()[0])
        children = Path(f"/proc/{server}/task/{server}/children").read_text().split()
        for pid in children:
            with contextlib.suppress(OSError):
                if "[local]" in Path(f"/proc/{pid}/cmdline").read_text():
                    at = time.monotonic_ns()
                    os.kill(int(pid), signal.SIGKILL)
                    return Strike("database", "", at, at + self.RECOVERS_NS, ["database"])
        return None


class Place:
    """One run's own directory, store and environment."""

    def __init__(self, bed: Bed, run: str, store: str | None, calls: int, fault: str = "", *, traced: bool = False) -> None:
        self.bed, self.run, self.calls, self.fault, self.traced = bed, run, calls, fault, traced
        self.home = bed.place / run
        self.home.mkdir()
        self.store = store or str(self.home / "runs.db")
        if traced:
            shutil.copy2(bed.armed, self.store)
        self.lives: list[Life] = []
        #: Deaths that are not of its own processes.
        self.elsewhere: list[Strike] = []
        #: What a planted fault does to the store between two lives: called with the number of the life that has ended.
        self.between_lives: Callable[[int], None] = lambda _: None
        self.env = {
            "PATH": f"{bed.place}/bin:{os.environ['PATH']}", "HOME": str(self.home), "LANG": "C.UTF-8", "PYTHONPATH": f"{bed.place}/lib:{bed.agents}",
            "OUTLAST_STORE": self.store, "OPENAI_API_KEY": "sk-crash", "OPENAI_BASE_URL": f"http://127.0.0.1:{bed.port}/v1",
            "CRASH_RUN": run, "CRASH_OUTSIDE": str(bed.port), "CRASH_CALLS": str(calls), "CRASH_FAULT": fault,
        }  # fmt: skip

    def started(self, command: list[str], roles: tuple[tuple[str, str], ...], deaths: list[Death]) -> Watched:
        return Watched(self, command, roles, deaths)

    def lived(self, command: list[str], roles: tuple[tuple[str, str], ...], deaths: list[Death]) -> Life:
        return self.started(command, roles, deaths).end()

    def told(self, *words: str, store: str | None = None) -> tuple[int, dict]:
        """Runs `outlast … --json`, on another `store` if one is named: its exit code and what it says. Who asks while a database recovers is refused, and asks again."""
        until = time.monotonic() + LONGEST_S
        while True:
            done = subprocess.run(
                [str(self.bed.outlast), *words, "--json"], cwd=self.home, env=self.env | ({"OUTLAST_STORE": store} if store else {}),
                capture_output=True, text=True, timeout=LONGEST_S,
            )  # fmt: skip
            if "recovery mode" not in done.stderr or time.monotonic() > until:
                break
        try:
            return done.returncode, json.loads(done.stdout or done.stderr)
        except ValueError:
            return done.returncode, {"error": {"message": done.stdout + done.stderr}}

    def gone(self) -> None:
        shutil.rmtree(self.home, ignore_errors=True)


class Watched:
    """A command that runs under the watch."""

    def __init__(self, place: Place, command: list[str], roles: tuple[tuple[str, str], ...], deaths: list[Death]) -> None:
        self.place, n = place, len(place.lives)
        self.report, self.said = place.home / f"watch-{n}", place.home / f"said-{n}"
        words = [str(place.bed.watch), "--report", str(self.report), "--limit", str(LONGEST_S)]
        words += [word for role, text in roles for word in ("--role", f"{role}={text}")]
        words += [word for death in deaths for word in ("--death", str(death))]
        with self.said.open("w") as said:
            self.process = subprocess.Popen(
                [*words, "--", *command], cwd=place.home, env=place.env, stdin=subprocess.DEVNULL, stdout=said, stderr=said
            )

    def terminate(self) -> None:
        """Asks the command itself to end."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        # It was forked by a thread that has ended; so it is among the children of the first.
        with contextlib.suppress(OSError):
            for pid in children.read_text().split():
                os.kill(int(pid), signal.SIGTERM)

    def end(self) -> Life:
        """Waits for the end of all of its processes. Those that a death took with it have ended by then."""
        code = self.process.wait(2 * LONGEST_S)
        until = self.place.bed.fence()
        rows = [json.loads(row) for row in self.report.read_text().splitlines()]
        life = Life(code, self.said.read_text(errors="replace"))
        for row in rows:
            if "death" not in row:
                life.writes, life.elapsed_s = row["writes"], row["elapsed_ns"] / 1e9
                life.hung, life.left = row["hung"], row["left"]
                continue
            life.strikes.append(
                Strike(row["death"], row["point"], row["at_ns"], until, row["killed"], row.get("call", ""), row.get("target", ""))
            )
        self.place.lives.append(life)
        self.place.between_lives(len(self.place.lives))
        return life
