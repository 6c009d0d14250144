"""`outlast crashtest` on programs that others wrote: examples of SDKs and frameworks as PyPI has them, and CLI agents, at no cost.

    .venv/bin/python scripts/crash/foreign.py [--max N] [--minutes N] [--only NAME…] [--root DIRECTORY] [--json FILE]

pip brings each example from its package's source distribution (kept in DIRECTORY/target/foreign); nothing of it is changed. An example
is first run alone against `outlast mock`, then killed by `outlast crashtest --mock`, as CLI agents are at once. DIRECTORY (this repository) has the
interpreters with the packages, .venv and .venv-clients, and CLI agents in target/clis (`scripts/clis.sh`). Prints a table in
Markdown, and each finding below it. Exits with 1 if a program could not be tested, or has a finding that its row does not expect.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shutil
import signal
import subprocess
import sys
import tarfile
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
#: Time that pip, or a program that nobody kills, may take.
PATIENCE_S = 600


@dataclass(frozen=True)
class Program:
    name: str
    package: str
    version: str
    #: Files of the source distribution that are copied; none for a CLI agent.
    files: tuple[str, ...]
    #: Arguments of the interpreter, or the CLI agent's command line.
    words: tuple[str, ...]
    #: The environment that has the package: .venv, .venv-clients, or target/clis for npm's.
    home: str = ".venv"
    #: Words of a finding that the program itself has to answer for. Without any it is expected to be sound.
    expected: str = ""


def sdk(package: str, version: str, name: str) -> Program:
    return Program(f"{package} {name}", package, version, (f"examples/{name}.py",), (f"examples/{name}.py",))


def agents(module: str) -> Program:
    files = ("examples/__init__.py", "examples/auto_mode.py", f"examples/{module.replace('.', '/')}.py")
    return Program(f"openai-agents {module}", "openai-agents", "0.24.0", files, ("-m", f"examples.{module}"), ".venv-clients")


PROGRAMS = (
    sdk("openai", "2.54.0", "demo"),
    sdk("anthropic", "2.11.0", "fallbacks"),
    sdk("anthropic", "2.11.0", "message_threads"),
    sdk("anthropic", "2.11.0", "tools_runner"),
    agents("agent_patterns.forcing_tool_use"),
    agents("agent_patterns.parallelization"),
    agents("basic.tool_guardrails"),
    agents("handoffs.message_filter_streaming"),
    agents("memory.advanced_sqlite_session_example"),
    agents("memory.encrypted_session_example"),
    Program("Claude Code", "@anthropic-ai/claude-code", "2.1.197", (), ("claude", "-p", "--", "Say hello."), "target/clis"),
    Program("Codex", "@openai/codex", "0.169.0", (), ("codex", "exec", "--skip-git-repo-check", "Say hello."), "target/clis"),
)

#: Settings by which no program asks a person, tells others of itself, or looks for a newer version.
QUIET = {
    "EXAMPLES_INTERACTIVE_MODE": "auto", "OPENAI_AGENTS_DISABLE_TRACING": "1", "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
    "DISABLE_AUTOUPDATER": "1", "PYTHONDONTWRITEBYTECODE": "1",
}  # fmt: skip


class Untestable(Exception):
    """Why a program could not be brought or run."""


def source(program: Program, root: Path) -> Path:
    """The unpacked source distribution of a program's package."""
    into = root / "target/foreign" / f"{program.package}-{program.version}"
    if not into.is_dir():
        with tempfile.TemporaryDirectory() as place:
            line = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--dest", place]
            line += ["--no-binary", program.package, f"{program.package}=={program.version}"]
            done = subprocess.run(line, capture_output=True, text=True, timeout=PATIENCE_S)
            found = list(Path(place).glob("*.tar.gz"))
            if done.returncode or len(found) != 1:
                raise Untestable(f"pip has no source of {program.package} {program.version}: {done.stderr[-300:]}")
            with tarfile.open(found[0]) as archive:
                archive.extractall(Path(place) / "all", filter="data")
            (top,) = (Path(place) / "all").iterdir()
            into.parent.mkdir(parents=True, exist_ok=True)
            shutil.copytree(top, into)
    return into


def tested(program: Program, args: argparse.Namespace, mock: str, place: Path) -> dict:
    """Crash tests a program in a directory of its own, and returns what the report says, with its time."""
    work = place / "work"
    work.mkdir()
    for name in program.files:
        one, to = source(program, args.root) / name, work / name
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(one, to)
    home = args.root / program.home
    line = [str(home / "bin/python"), *program.words] if program.files else [str(home / "node_modules/.bin" / program.words[0]), *program.words[1:]]
    # A CLI agent's sessions lie in its home, which no life gets a copy of.
    env = {name: value for name, value in os.environ.items() if not name.startswith("OUTLAST_")} | QUIET
    env |= {"HOME": str(place), "OUTLAST_STORE": str(place / "runs.db"), "TMPDIR": str(place / "tmp")}
    env["PATH"] = f"{Path(line[0]).parent}:{env['PATH']}"
    (place / "tmp").mkdir()

    def ended(words: list[str], most_s: float, **more: str) -> subprocess.CompletedProcess[str]:
        with subprocess.Popen(words, cwd=work, env=env | more, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as life:
            try:
                said = life.communicate(timeout=most_s)
            except BaseException:
                # A crash test that is asked to end ends the lives below it.
                life.terminate()
                raise
        return subprocess.CompletedProcess(words, life.returncode, *said)

    keys = {"OPENAI_API_KEY": "sk-foreign", "ANTHROPIC_API_KEY": "sk-ant-foreign"}
    # A CLI agent may have to be told of its provider by its command line, which Outlast does.
    if program.files:
        alone = ended(line, PATIENCE_S, OPENAI_BASE_URL=f"{mock}/v1", ANTHROPIC_BASE_URL=mock, **keys)
        if alone.returncode:
            raise Untestable(f"alone it exits with {alone.returncode}: {' '.join(alone.stderr.split())[-300:]}")
    began = time.monotonic()
    flags = ["--mock", "--usd", "none", "--json", "--max", str(args.max), *(["--minutes", str(args.minutes)] if args.minutes else [])]
    done = ended([args.outlast, "crashtest", *flags, "--", *line], 60 * args.minutes + 10 * PATIENCE_S)
    if done.returncode not in (0, 1):
        raise Untestable(" ".join(done.stderr.split())[-400:])
    report = json.loads(done.stdout)
    deaths = report["deaths"]
    found = {f"{one['what']} ({one['why']})" for tried in deaths for one in tried["findings"]}
    found |= {f"without a death: {one['what']} ({one['why']})" for one in report["clean"]}
    return {
        "calls": report["calls"], "boundaries": len(report["boundaries"]), "possible": report["possible"], "deaths": len(deaths),
        "reached": sum(tried["reached"] for tried in deaths), "bought_again": sum(tried["bought_again"] for tried in deaths),
        "wrong": sum(bool(tried["findings"]) for tried in deaths), "findings": sorted(found), "notes": report["notes"],
        "seconds": round(time.monotonic() - began),
    }  # fmt: skip


def is_expected(program: Program, told: dict) -> bool:
    """Whether a program was killed, and has the finding that its row expects, and no other."""
    found = told.get("findings", [])
    return bool(told.get("deaths")) and bool(found) == bool(program.expected) and all(program.expected in one for one in found)


def table(programs: list[dict]) -> str:
    lines = ["| program | calls | boundaries | deaths | wrong after | bought again | time |", "|---|---|---|---|---|---|---|"]
    for one in programs:
        name = f"{one['name']} ({one['package']} {one['version']})"
        if "error" in one:
            lines.append(f"| {name} | could not be tested | | | | | |")
            continue
        cells = [one["calls"], one["boundaries"], f"{one['reached']} of {one['possible']}", one["wrong"], one["bought_again"], f"{one['seconds']} s"]
        lines.append(f"| {name} | " + " | ".join(map(str, cells)) + " |")
    lines += [f"\n{one['name']}: {text}" for one in programs for text in (*one.get("findings", []), *([one["error"]] if "error" in one else []))]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--max", type=int, default=40, help="most deaths of a program")
    parser.add_argument("--minutes", type=int, default=0, help="most minutes for the deaths of a program")
    parser.add_argument("--only", nargs="+", default=[program.name for program in PROGRAMS], metavar="NAME")
    parser.add_argument("--root", type=Path, default=ROOT, help="where .venv, .venv-clients and target are")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    args = parser.parse_args()
    args.outlast = str(Path(os.environ.get("OUTLAST_BIN") or ROOT / "target/debug/outlast").resolve())
    args.root = args.root.resolve()
    signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    mock = subprocess.Popen([args.outlast, "mock", "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
    told = []
    try:
        assert mock.stdout
        url = mock.stdout.readline().strip()
        for program in PROGRAMS:
            if program.name not in args.only:
                continue
            one = {"name": program.name, "package": program.package, "version": program.version}
            # In memory where there is such a place: a fresh copy for each life is no matter of the disk.
            shm = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
            with tempfile.TemporaryDirectory(prefix="outlast-foreign-", dir=shm) as place:
                try:
                    one |= tested(program, args, url, Path(place))
                except (Untestable, subprocess.TimeoutExpired) as error:
                    one["error"] = str(error)
            one["expected"] = is_expected(program, one)
            told.append(one)
            print(table([one]).splitlines()[2], flush=True)
    finally:
        mock.kill()
        mock.wait()
    print("\n" + table(told))
    if args.json:
        version = subprocess.run([args.outlast, "--version"], capture_output=True, text=True, check=True).stdout.strip()
        args.json.write_text(json.dumps({"date": datetime.date.today().isoformat(), "version": version, "programs": told}, indent=1) + "\n")
    return int(not told or not all(one["expected"] for one in told))


if __name__ == "__main__":
    sys.exit(main())
