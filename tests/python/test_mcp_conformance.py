"""The official conformance suite of MCP against two servers, direct and at `/mcp/NAME`: the same results."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import outlast_program
from test_mcp_sdk import listening

OURS = [sys.executable, str(Path(__file__).with_name("mcp_conformance_server.py"))]
#: The suite's own server with everything takes any Host; Outlast does not.
STRICTER = "dns-rebinding-protection"


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
@pytest.mark.parametrize("server", ["everything", "ours"])
@pytest.mark.parametrize("way", ["command", "url"])
def test_the_suite_finds_the_same_direct_and_through(home, suite, server, way):
    command = OURS if server == "ours" else program(suite, "server-everything")
    ask = [*program(suite, "conformance"), "server", "--url"]
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
    assert through.pop(STRICTER) == (2, 0)
    direct.pop(STRICTER)
    assert through == direct
    passed = sum(passed for passed, _ in through.values())
    assert passed >= (30 if server == "ours" else 12), through


def at_port(command, server, port):
    if server == "ours":
        return subprocess.Popen([*command, str(port)], stderr=subprocess.DEVNULL)
    env = {**os.environ, "PORT": str(port)}
    return subprocess.Popen([*command, "streamableHttp"], env=env, stderr=subprocess.DEVNULL)
