"""The official conformance suite of MCP against two servers, direct and at `/mcp/NAME`: the same results, in both eras."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import outlast_program
from test_mcp_sdk import listening

OURS = [sys.executable, str(Path(__file__).with_name("mcp_conformance_server.py"))]
#: What Outlast passes whatever the server does: the server with everything takes any Host, and a session that was ended.
STRICTER = {"dns-rebinding-protection", "server-session-lifecycle"}
#: The events of Outlast's streams have no ids.
NOT_OFFERED = {"server-sse-polling"}
#: Scenarios that our server passes without a failed check, of what each revision requires.
PASSED = {"2025-11-25": 26, "2026-07-28": 38}


@pytest.fixture(scope="module")
def suite():
    installed = Path(os.environ.get("OUTLAST_TEST_CONFORMANCE", "/nowhere"))
    assert (installed / "ready").exists(), "the conformance suite is not installed: run `make test-clients`"
    return installed


def program(suite, package):
    modules = suite / "node_modules"
    return [str(modules / ".bin/node"), str(modules / "@modelcontextprotocol" / package / "dist/index.js")]


def results(told):
    """Checks that passed and failed, by scenario."""
    found = re.findall(r"^[✓✗] (\S+): (\d+) passed, (\d+) failed", told, re.MULTILINE)
    assert len(found) >= 25, told[-2000:]
    return {name: (int(passed), int(failed)) for name, passed, failed in found}


@pytest.mark.clients
@pytest.mark.parametrize(
    # A command at `/mcp/NAME` is reached by a session only, and the server with everything knows sessions only.
    ("server", "way", "revision"),
    [
        ("everything", "command", "2025-11-25"),
        ("everything", "url", "2025-11-25"),
        ("ours", "command", "2025-11-25"),
        ("ours", "url", "2025-11-25"),
        ("ours", "url", "2026-07-28"),
    ],
)
def test_the_suite_finds_the_same_direct_and_through(home, suite, server, way, revision):
    command = OURS if server == "ours" else program(suite, "server-everything")
    ask = [*program(suite, "conformance"), "server", "--requirements", revision, "--url"]
    with listening(lambda port: at_port(command, server, port)) as port:
        url = f"http://127.0.0.1:{port}/mcp"
        done = subprocess.run([*ask, url], capture_output=True, text=True, timeout=300)
        direct = results(done.stdout)
        settings = home / ".config/outlast/outlast.toml"
        settings.parent.mkdir(parents=True)
        stdio = command if server == "ours" else [*command, "stdio"]
        says = f"url = {url!r}" if way == "url" else f"command = {stdio!r}"
        settings.write_text(f"[mcp.it]\n{says}\n")
        script = f'exec {" ".join(ask)} "$OUTLAST_URL/run/$OUTLAST_TOKEN/mcp/it"'
        run = [outlast_program(), "--store", home / "runs.db", "run", "--run", "r", "--restarts", "0", "--", "sh", "-c", script]
        done = subprocess.run([str(word) for word in run], capture_output=True, text=True, timeout=500)
        through = results(done.stdout)
    whole = {name for name, (_, failed) in through.items() if not failed}
    assert STRICTER & through.keys() <= whole, through
    compared = through.keys() - STRICTER - NOT_OFFERED
    assert {name: through[name] for name in compared} == {name: direct.get(name) for name in compared}
    assert through.keys() == direct.keys()
    if server == "ours":
        assert len(whole) >= PASSED[revision], through


def at_port(command, server, port):
    if server == "ours":
        return subprocess.Popen([*command, str(port)], stderr=subprocess.DEVNULL)
    env = {**os.environ, "PORT": str(port)}
    return subprocess.Popen([*command, "streamableHttp"], env=env, stderr=subprocess.DEVNULL)
