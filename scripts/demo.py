"""The demo: an agent is killed, its proxy is killed, and the run ends with the spend of a clean one.

    make demo [USD=0.25]
    python scripts/demo.py [--usd 0.25] [--outlast PATH]

A fake provider stands in for OpenAI and Anthropic: no network, no keys. Each run gets a fresh one, so that a
clean run and a killed one meet the same answers and the same caches, and its log counts what was paid for.
Exits 0 only if every receipt agrees with its clean run's. What happened is kept in .run/demo.
"""

import argparse
import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from decimal import Decimal
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
AGENT = ROOT / "examples" / "agent" / "agent.py"
PLACE = ROOT / ".run" / "demo"
LATENCY = "120ms"
CEILING_USD = "0.03"
ROOM_USD = "0.05"
# Against a hang alone: however slow the machine is, what is waited for comes.
PATIENCE_S = 900.0
HALTED = 75


class Broken(Exception):
    """The demo cannot go on, or what it shows is not so."""


class Paper:
    """What the person sees."""

    def __init__(self):
        self.colour = sys.stdout.isatty() and "NO_COLOR" not in os.environ

    def line(self, text: str = "") -> None:
        print(text, flush=True)

    def title(self, text: str) -> None:
        self.line(f"\n{self.paint('1', text)}\n")

    def did(self, what: str, detail: str) -> None:
        self.line(f"    {what:<11} {detail}")

    def kill(self, what: str) -> None:
        self.line(f"    {self.paint('31', 'kill -9')}     {what}")

    def verdict(self, good: bool, word: str, other: str) -> str:
        return self.paint("32", word) if good else self.paint("31", other)

    def paint(self, code: str, text: str) -> str:
        return f"\x1b[{code}m{text}\x1b[0m" if self.colour else text


class Provider:
    """A fake provider with a log of what it was paid for."""

    def __init__(self, outlast: Path, directory: Path, env: dict):
        self.log = directory / "paid.jsonl"
        # How to use it is told there, and the demo knows it.
        with open(directory / "mock.err", "ab") as err:
            self.process = subprocess.Popen(
                [outlast, "mock", "--listen", "127.0.0.1:0", "--latency", LATENCY, "--log", self.log],
                stdout=subprocess.PIPE,
                stderr=err,
                env=env,
                text=True,
            )
        self.url = self.process.stdout.readline().strip()
        if not self.url.startswith("http://"):
            raise Broken(f"the fake provider did not start: it said {self.url!r}")

    def paid(self) -> int:
        return self.log.read_bytes().count(b"\n") if self.log.exists() else 0

    def close(self) -> None:
        self.process.kill()
        self.process.wait()


def only_child(pid: int, whose: str) -> int:
    tasks = Path(f"/proc/{pid}/task")
    children = [int(child) for task in tasks.iterdir() for child in (task / "children").read_text().split()]
    if len(children) != 1:
        raise Broken(f"wanted {whose} to have one child, had {children}")
    return children[0]


class Scene:
    """One run: its directory, its provider, its supervisor."""

    def __init__(self, stage: "Stage", name: str, usd: str):
        self.stage, self.name, self.usd = stage, name, usd
        self.directory = PLACE / name
        self.directory.mkdir(parents=True)
        self.provider = Provider(stage.outlast, self.directory, stage.env)
        self.env = stage.env | {
            "OPENAI_BASE_URL": f"{self.provider.url}/v1",
            "ANTHROPIC_BASE_URL": self.provider.url,
            "OPENAI_API_KEY": "sk-a-fake-key",
            "ANTHROPIC_API_KEY": "sk-a-fake-key",
        }
        self.out = self.directory / "agent.out"
        self.err = self.directory / "outlast.err"
        self.report = self.directory / "desk" / "report.md"
        self.supervisor: subprocess.Popen | None = None

    def run(self) -> None:
        self.spawn("run", "--name", self.name, "--usd", self.usd, "--", sys.executable, AGENT)

    def resume(self) -> None:
        self.spawn("resume", self.name)

    def spawn(self, *arguments) -> None:
        with open(self.out, "ab") as out, open(self.err, "ab") as err:
            self.supervisor = subprocess.Popen(
                [self.stage.outlast, *arguments],
                cwd=self.directory,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
            )

    def wait(self) -> int:
        """Waits for the supervisor; the exit code is 0 or HALTED, or the demo is over."""
        code = self.supervisor.wait(timeout=PATIENCE_S)
        if code not in (0, HALTED):
            said = self.err.read_text().strip()
            raise Broken(f"the run {self.name} ended with exit code {code}:\n{said}")
        return code

    def show(self) -> dict:
        return self.stage.json("show", self.name)

    def driver(self) -> int:
        """The supervisor's process: the only child of its guardian, which is the process that was started."""
        return only_child(self.supervisor.pid, "the guardian")

    def agent(self) -> int:
        """The agent's process."""
        return only_child(self.driver(), "the supervisor")

    def reached(self, what) -> bool:
        """Waits until `what()`; False if the run ended before."""
        deadline = time.monotonic() + PATIENCE_S
        while not what():
            if self.supervisor.poll() is not None:
                return False
            if time.monotonic() > deadline:
                raise Broken(f"the run {self.name} got no further within {PATIENCE_S:.0f} s; see {self.err}")
            time.sleep(0.002)
        return True

    def receipt(self) -> dict:
        told = self.show()
        spent = {unit["unit"]: unit for unit in told["budget"]}
        report = hashlib.sha256(self.report.read_bytes()).hexdigest()[:12] if self.report.exists() else "not written"
        return {
            "status": told["status"],
            "provider was asked": f"{self.provider.paid()} times",
            "dollars": spent["cost_nano_usd"]["spent_usd"],
            "loops": spent["loops"]["spent"],
            "calls in doubt": told["money"]["in_doubt_calls"],
            "report.md, sha256": report,
            "halt": told["halt"]["message"] if told["halt"] else None,
            "attempts": len(told["attempts"]),
            "answers replayed": told["replayed"],
            "dollars saved": told["saved_usd"],
        }

    def close(self) -> None:
        if self.supervisor and self.supervisor.poll() is None:
            self.supervisor.kill()
            self.supervisor.wait()
        self.provider.close()


class Stage:
    """The program, an empty home for it, and the scenes that are open."""

    def __init__(self, outlast: Path, paper: Paper):
        self.outlast, self.paper = outlast, paper
        home = PLACE / "home"
        home.mkdir(parents=True)
        # Nothing of the person's own may lead the demo to a real provider, a proxy or another store.
        kept = {name: os.environ[name] for name in ("PATH", "LANG", "LC_ALL", "TERM", "TMPDIR") if name in os.environ}
        self.env = kept | {"HOME": str(home), "OUTLAST_STORE": str(PLACE / "outlast.db")}
        self.scenes: list[Scene] = []

    def scene(self, name: str, usd: str) -> Scene:
        scene = Scene(self, name, usd)
        self.scenes.append(scene)
        return scene

    def json(self, *arguments: str) -> dict:
        done = subprocess.run(
            [self.outlast, "--json", *arguments],
            cwd=PLACE,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
        )
        if done.returncode != 0:
            raise Broken(f"outlast {' '.join(arguments)} failed: {done.stdout}{done.stderr}")
        return json.loads(done.stdout)

    def close(self) -> None:
        for scene in self.scenes:
            scene.close()


def kill_agent_in_call(scene: Scene, call: int) -> None:
    """Kills the agent while the provider is at work on its call number `call`."""
    paper = scene.stage.paper
    if not scene.reached(lambda: scene.provider.paid() >= call):
        return paper.did("not killed", f"the run had ended before call {call}")
    pid = scene.agent()
    os.kill(pid, signal.SIGKILL)
    paper.kill(f"the agent of {scene.name} (pid {pid}), its call {call} on the way; its supervisor starts it again")


def kill_agent_in_stream(scene: Scene, beginning: str) -> None:
    """Kills the agent when it has shown the `beginning` of a streamed text and some of what follows."""
    paper = scene.stage.paper
    seen = scene.out.stat().st_size

    def mid_stream() -> bool:
        _, found, rest = scene.out.read_bytes()[seen:].decode(errors="replace").rpartition(beginning)
        return bool(found) and len(rest) > 40

    if not scene.reached(mid_stream):
        return paper.did("not killed", "the run had ended before its stream")
    pid = scene.agent()
    os.kill(pid, signal.SIGKILL)
    # A machine that is busy may let the agent finish before this process gets on.
    if scene.report.exists():
        return paper.did("kill -9", f"the agent of {scene.name} (pid {pid}), when its report was written")
    paper.kill(f"the agent of {scene.name} (pid {pid}), in the middle of the stream of call {scene.provider.paid()}")


def kill_supervisor_between_calls(scene: Scene, call: int) -> None:
    """Kills the supervisor, and with it the proxy, after call number `call`; then resumes the run.

    The agent is held (SIGSTOP) until its call is settled: so no call is on the way.
    """
    paper = scene.stage.paper
    if not scene.reached(lambda: scene.provider.paid() >= call):
        return paper.did("not killed", f"the run had ended before call {call}")
    pid, agent = scene.driver(), scene.agent()
    os.kill(agent, signal.SIGSTOP)
    if not scene.reached(lambda: scene.show()["calls_by_state"]["open"] == 0):
        raise Broken("the supervisor ended while its agent was held")
    paid = scene.provider.paid()
    os.kill(pid, signal.SIGKILL)
    scene.supervisor.wait()
    deadline = time.monotonic() + PATIENCE_S
    while is_alive(agent):
        if time.monotonic() > deadline:
            raise Broken(f"the agent (pid {agent}) outlives its supervisor")
        time.sleep(0.01)
    where = f"between calls {paid} and {paid + 1}"
    paper.kill(f"the supervisor and its proxy (pid {pid}), {where}; the agent died with it")
    paper.did("$", f"outlast resume {scene.name}")
    scene.resume()


def is_alive(pid: int) -> bool:
    """Whether the process runs; a dead one that nobody has waited for does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False
    return stat.rpartition(")")[2].split()[0] not in "ZX"


def end(scene: Scene) -> dict:
    """Waits for the run's end, tells it, and returns its receipt."""
    scene.wait()
    receipt, paper = scene.receipt(), scene.stage.paper
    paper.did(receipt["status"], f"{scene.name}: {receipt['dollars']} usd of {scene.usd} usd")
    if receipt["halt"]:
        paper.did("", receipt["halt"])
    return receipt


# What a killed run must have in common with a clean one, and what tells them apart.
SAME = ("status", "provider was asked", "dollars", "loops", "calls in doubt", "report.md, sha256", "halt")
SHOWN = ("attempts", "answers replayed", "dollars saved")


def compare(paper: Paper, clean: dict, killed: dict) -> bool:
    """Prints two receipts side by side; whether they agree."""
    paper.line(f"\n    {'':<20} {'clean run':<14} killed run")
    for row in SAME[:-1] + SHOWN:
        verdict = "" if row in SHOWN else paper.verdict(clean[row] == killed[row], "same", "DIFFERENT")
        paper.line(f"    {row:<20} {clean[row]!s:<14} {killed[row]!s:<14} {verdict}".rstrip())
    differ = [row for row in SAME if clean[row] != killed[row]]
    if differ:
        paper.line(f"\n    {paper.verdict(False, '', 'they differ')} in: {', '.join(differ)}")
    return not differ


def pair(stage: Stage, usd: str, names: tuple[str, str], *kills) -> tuple[Scene, bool]:
    """A clean run and a killed one beside it, on the same budget; the killed one, and whether their receipts agree."""
    scenes = [stage.scene(name, usd) for name in names]
    for scene in scenes:
        stage.paper.did("$", f"outlast run --name {scene.name} --usd {usd} -- python agent.py")
        scene.run()
    for deed in kills:
        deed(scenes[1])
    return scenes[1], compare(stage.paper, *map(end, scenes))


def act_one(stage: Stage, usd: str) -> bool:
    stage.paper.title(f"Act one. The agent is killed twice, its supervisor once; the budget is {usd} usd.")
    _, agree = pair(
        stage,
        usd,
        ("clean", "killed"),
        lambda scene: kill_agent_in_call(scene, 4),
        lambda scene: kill_supervisor_between_calls(scene, 11),
        lambda scene: kill_agent_in_stream(scene, "# Support"),
    )
    return agree


def act_two(stage: Stage) -> bool:
    paper = stage.paper
    paper.title(f"Act two. A budget of {CEILING_USD} usd is too small, for a clean run and for a killed one.")
    killed, agree = pair(
        stage,
        CEILING_USD,
        ("clean-halt", "killed-halt"),
        lambda scene: kill_agent_in_call(scene, 3),
        lambda scene: kill_supervisor_between_calls(scene, 6),
    )
    if not killed.show()["halt"]:
        raise Broken(f"a budget of {CEILING_USD} usd did not halt the run")
    paper.line("\n    With more room it goes on where it was:\n")
    paper.did("$", f"outlast budget killed-halt --add-usd {ROOM_USD}")
    stage.json("budget", "killed-halt", "--add-usd", ROOM_USD)
    killed.usd = str(Decimal(CEILING_USD) + Decimal(ROOM_USD))
    paper.did("$", "outlast resume killed-halt")
    killed.resume()
    return agree & (end(killed)["status"] == "completed")


def play(outlast: Path, usd: str, paper: Paper) -> bool:
    stage = Stage(outlast, paper)
    try:
        return all([act_one(stage, usd), act_two(stage)])
    finally:
        stage.close()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--usd", default="0.25", help="act one's budget (default: 0.25)")
    parser.add_argument("--outlast", type=Path, default=ROOT / "target" / "debug" / "outlast", help="the program")
    args = parser.parse_args()
    paper, began = Paper(), time.monotonic()
    PLACE.parent.mkdir(exist_ok=True)
    with open(PLACE.parent / "demo.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("demo: another demo is running in this directory", file=sys.stderr)
            return 1
        shutil.rmtree(PLACE, ignore_errors=True)
        try:
            good = play(args.outlast.resolve(), args.usd, paper)
        except (Broken, OSError, subprocess.SubprocessError) as error:
            print(f"\ndemo: {error}", file=sys.stderr)
            return 1
    verdict = paper.verdict(good, "The receipts agree.", "The receipts do not agree.")
    paper.line(f"\n{verdict} ({time.monotonic() - began:.0f} s)")
    paper.line("Look for yourself: export OUTLAST_STORE=.run/demo/outlast.db; outlast ls; outlast show killed")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
