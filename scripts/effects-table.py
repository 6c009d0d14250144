"""The table of docs/guides/frameworks.md: what a kill at each boundary costs a clerk, without Outlast and with it.

    .venv-clients/bin/python scripts/effects-table.py [--write] [FRAMEWORK…]

Each program of examples/frameworks is killed as each model call is sent, as each answer is there, and before and after
each charge; it is started again each time. What was paid twice and charged twice is counted at the provider and the shop.
`--write` puts the table into the guide; without it, the script exits with 1 where the guide shows another one.
"""

from __future__ import annotations

import argparse
import http.client
import http.server
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
EXAMPLES = ROOT / "examples" / "frameworks"
GUIDE = ROOT / "docs" / "guides" / "frameworks.md"
sys.path.insert(0, str(EXAMPLES))

import shop  # noqa: E402

FRAMEWORKS = {
    "langgraph": "LangGraph",
    "pydantic_ai": "PydanticAI",
    "openai_agents": "OpenAI Agents",
    "claude_agent": "Claude Agent",
}
#: How a clerk is run: the prefix of its program, and whether `outlast run` starts it again.
WAYS = {"plain": ("plain", False), "alone": ("with", False), "outlast run": ("with", True)}
#: The framework that resumes a session: its model is asked anew. How often is a matter of what the session had kept by the
#: kill, so that the table has the most: each kill in a tool costs a call, each at a later call two at most.
RESUMED, MOST = "claude_agent", {"alone": 11, "outlast run": 12}
CALLS = len(shop.CUSTOMERS) + 1
MODEL_PATHS = ("/v1/chat/completions", "/v1/responses", "/v1/messages")
PATIENCE_S = 300


def deaths(late: bool) -> list[str]:
    """The moments of one clerk's deaths, in their order: early ones, before anything is paid or charged, or late ones."""
    call, charge = ("answered", "after") if late else ("sent", "before")
    moments = [f"{call} 0"]
    for n, customer in enumerate(shop.CUSTOMERS, 1):
        moments += [f"{charge} {customer}", f"{call} {n}"]
    return moments


class Clerk:
    """One program in a directory of its own, from its first start to its end."""

    def __init__(self, framework: str, way: str, outlast: Path, place: Path, late: bool) -> None:
        prefix, self.supervised = WAYS[way]
        self.place = place
        self.outlast = outlast
        self.program = EXAMPLES / f"{prefix}_{framework}.py"
        (place / "deaths").write_text("".join(f"{moment}\n" for moment in deaths(late)))
        self.errors = place / "errors"

    def work(self) -> tuple[int, int]:
        """Runs the clerk to its end: how many model calls were paid, and how many charges made."""
        paid = self.place / "paid"
        mock = subprocess.Popen(
            [self.outlast, "mock", "--listen", "127.0.0.1:0", "--log", paid],
            cwd=self.place, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        gate = None
        try:
            assert mock.stdout is not None
            gate = Gate(self, mock.stdout.readline().strip())
            self.lives(self.environment(f"http://127.0.0.1:{gate.server_port}"))
        finally:
            if gate is not None:
                gate.shutdown()
                gate.server_close()
            mock.kill()
            mock.wait()
        left = (self.place / "deaths").read_text()
        if left:
            raise SystemExit(f"{self.program.name} ({'outlast run' if self.supervised else 'alone'}) ended before its death {left.splitlines()[0]!r}: {self.errors.read_text()}")
        return len(paid.read_text().splitlines()), len((self.place / "charged").read_text().splitlines())

    def lives(self, env: dict[str, str]) -> None:
        # The shell says the pid that dies.
        line = ["sh", "-c", 'echo $$ >pid; exec "$0" "$1"', sys.executable, str(self.program)]
        if self.supervised:
            line = [str(self.outlast), "run", "--run", "clerk", "--usd", "20", "--", *line]
        while True:
            moments = self.left()
            with self.errors.open("w") as errors:
                life = subprocess.Popen(
                    line, cwd=self.place, env=env, stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, start_new_session=True
                )
                code = life.wait(timeout=PATIENCE_S)
            if not self.supervised:
                kill_group(life.pid)
            if code == 0:
                return
            if self.supervised or self.left() == moments:
                raise SystemExit(f"{self.program.name} ended with exit code {code}:\n{self.errors.read_text()}")

    def left(self) -> list[str]:
        return (self.place / "deaths").read_text().splitlines()

    def dies(self, moment: str) -> bool:
        """Kills the clerk where its next death is this one. It is gone when this returns."""
        left = self.left()
        if left[:1] != [moment]:
            return False
        (self.place / "deaths").write_text("".join(f"{line}\n" for line in left[1:]))
        pids = shop.kill_tree(int((self.place / "pid").read_text()))
        while any(map(is_alive, pids)):
            time.sleep(0.001)
        return True

    def environment(self, url: str) -> dict[str, str]:
        return {
            **{name: value for name, value in os.environ.items() if not name.startswith(("OUTLAST_", "ANTHROPIC_", "OPENAI_", "CLAUDE"))},
            "HOME": str(self.place),
            "PYTHONPATH": os.pathsep.join([str(ROOT / "crates" / "python" / "python"), str(EXAMPLES)]),
            "OUTLAST_STORE": str(self.place / "runs.db"),
            "OPENAI_API_KEY": "k", "OPENAI_BASE_URL": f"{url}/v1",
            "ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": url,
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_AUTOUPDATER": "1",
            # The shop's tool is in the first request already.
            "ENABLE_TOOL_SEARCH": "false",
        }  # fmt: skip


class Gate(http.server.ThreadingHTTPServer):
    """Stands before the provider, and kills a clerk as its call is sent, or as its answer is there."""

    daemon_threads = True

    def __init__(self, clerk: Clerk, provider: str) -> None:
        super().__init__(("127.0.0.1", 0), Passing)
        self.clerk = clerk
        self.provider = provider.removeprefix("http://")
        threading.Thread(target=self.serve_forever, daemon=True).start()

    def handle_error(self, request: object, client_address: object) -> None:
        # Clerks die with their connections open.
        if not isinstance(sys.exc_info()[1], OSError):
            super().handle_error(request, client_address)


class Passing(http.server.BaseHTTPRequestHandler):
    """One connection through the gate."""

    protocol_version = "HTTP/1.1"
    server: Gate

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("content-length") or 0))
        # Claude Code asks other things, too, without the shop's tool.
        clerk, is_call = self.server.clerk, self.path.partition("?")[0] in MODEL_PATHS and bool(charges(body))
        number = sum(f"receipt of {customer}".encode() in body for customer in shop.CUSTOMERS)
        # A supervisor's proxy outlives the clerk and holds the line; otherwise nobody is left who calls.
        if is_call and clerk.dies(f"sent {number}") and not clerk.supervised:
            self.close_connection = True
            return
        connection = http.client.HTTPConnection(self.server.provider)
        headers = {name: value for name, value in self.headers.items() if name.lower() not in ("host", "connection", "accept-encoding")}
        if is_call and self.path.startswith("/v1/messages"):
            body = looking(body)
            headers = {name: value for name, value in headers.items() if name.lower() != "content-length"}
        connection.request(self.command, self.path, body or None, headers)
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        if is_call:
            clerk.dies(f"answered {number}")
        try:
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in ("transfer-encoding", "content-length", "connection", "date"):
                    self.send_header(name, value)
            self.send_header("content-length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)
        except OSError:
            # Whom it was for is dead.
            self.close_connection = True

    do_GET = do_HEAD = do_POST

    def log_message(self, *args: object) -> None:
        pass


def charges(body: bytes) -> list[str]:
    """The names of the shop's tool among the tools that a request offers."""
    tools = [tool.get("name") or tool.get("function", {}).get("name", "") for tool in json.loads(body).get("tools") or []]
    return [name for name in tools if name.endswith("charge")]


def looking(body: bytes) -> bytes:
    """A request for the provider to be answered as by a model that looks which receipts it has.

    A resumed session of Claude Code has other turns than one that was not cut off: the mock's count of them would be wrong.
    """
    name = charges(body)[0]
    left = [customer for customer in shop.CUSTOMERS if f"receipt of {customer}".encode() not in body]
    line = f'tool {name} {json.dumps({"customer": left[0]})}' if left else "reply all are charged"
    request = json.loads(body)
    kept = {name: request[name] for name in ("model", "max_tokens", "stream", "tools") if name in request}
    return json.dumps({**kept, "messages": [{"role": "user", "content": f"mock: {line}"}]}).encode()


def is_alive(pid: int) -> bool:
    """Whether a process still runs; one that is dead and not yet waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


def kill_group(pid: int) -> None:
    try:
        os.killpg(pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def measured(framework: str, outlast: Path) -> str:
    """A row of the table."""
    cells = []
    for way in WAYS:
        calls = charges = 0
        for late in (False, True):
            with tempfile.TemporaryDirectory(prefix="clerk-") as place:
                paid, charged = Clerk(framework, way, outlast, Path(place), late).work()
            calls, charges = calls + paid - CALLS, charges + charged - len(shop.CUSTOMERS)
        most = MOST.get(way) if framework == RESUMED else None
        if most is not None:
            print(f"{FRAMEWORKS[framework]}, {way}: {calls} calls more", file=sys.stderr, flush=True)
        if most is not None and calls > most:
            raise SystemExit(f"{FRAMEWORKS[framework]}, {way}: wanted {most} calls more at most, had {calls}")
        cells += [calls if most is None else f"≤ {most}", charges]
    return f"| {FRAMEWORKS[framework]} | " + " | ".join(map(str, cells)) + " |"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--outlast", type=Path, default=ROOT / "target" / "debug" / "outlast", help="the program")
    parser.add_argument("--write", action="store_true", help="put the rows into the guide")
    parser.add_argument("frameworks", nargs="*", choices=[*FRAMEWORKS, []], metavar="FRAMEWORK")
    args = parser.parse_args()
    rows = {}
    for framework in args.frameworks or FRAMEWORKS:
        rows[framework] = measured(framework, args.outlast.resolve())
        print(rows[framework], flush=True)
    text = GUIDE.read_text()
    for framework, row in rows.items():
        text = re.sub(rf"^\| {FRAMEWORKS[framework]} (\| (≤ )?\d+ )+\|$", row, text, flags=re.M)
    if args.write:
        GUIDE.write_text(text)
    missing = [row for row in rows.values() if row not in GUIDE.read_text()]
    if missing:
        print(f"{GUIDE.relative_to(ROOT)} shows other figures than {missing}: run it with --write", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
