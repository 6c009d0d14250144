"""The official TypeScript SDKs (v1, and v2 in both eras) direct and through the recorder: what they see, and what the
suite of MCP finds of them."""

import json
import os
import re
import subprocess
from pathlib import Path

import pytest
from conftest import outlast_program
from test_mcp_conformance import program, suite
from test_mcp_sdk import listening

__all__ = ["suite"]

CLIENT = Path(__file__).resolve().parents[1] / "sdk" / "mcp_client.mjs"
SDKS = ["v1", "v2", "v2-auto"]
#: What the suite requires of a client, by revision. The others, `auth/…`, are of a client that gets a token for the URL that
#: it speaks to. They do not apply: the recorder's URL is another one than the server's, and no token is passed on (see the
#: guide).
SCENARIOS = {
    "2025-11-25": ["initialize", "tools_call", "elicitation-sep1034-client-defaults", "sse-retry"],
    "2026-07-28": [
        "tools_call",
        "request-metadata",
        "sep-2322-client-request-state",
        "http-standard-headers",
        "http-custom-headers",
        "http-invalid-tool-headers",
        "json-schema-ref-no-deref",
    ],
}


def client(suite, sdk, what):
    return [str(suite / "node_modules/.bin/node"), str(CLIENT), str(suite), sdk, what]


def recorder(home, *more):
    return [str(word) for word in (outlast_program(), "--store", home / "runs.db", "mcp", "--run", "r", "--name", "it", *more)]


def told(line):
    done = subprocess.run(line, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)


@pytest.mark.clients
@pytest.mark.parametrize("sdk", SDKS)
def test_the_sdk_sees_the_same_of_a_command(home, suite, sdk):
    ask, server = client(suite, sdk, "everything"), [*program(suite, "server-everything"), "stdio"]
    sees_the_same(told([*ask, *server]), lambda: told([*ask, *recorder(home, "--", *server)]))


@pytest.mark.clients
@pytest.mark.parametrize("sdk", SDKS)
def test_the_sdk_sees_the_same_of_a_url(home, suite, sdk):
    ask = client(suite, sdk, "everything")

    def at_port(port):
        env = {**os.environ, "PORT": str(port)}
        return subprocess.Popen([*program(suite, "server-everything"), "streamableHttp"], env=env, stderr=subprocess.DEVNULL)

    with listening(at_port) as port:
        url = f"http://127.0.0.1:{port}/mcp"
        sees_the_same(told([*ask, url]), lambda: told([*ask, *recorder(home, "--url", url)]))


def sees_the_same(direct, through):
    assert len(direct) == 25 and direct["sum"]["content"][0]["text"].endswith("5.") and direct["progress"] == [[1, 2]]
    assert through() == direct
    # The next life is answered from the journal, and an answer from there has no progress.
    assert through() == {**direct, "progress": []}


@pytest.mark.clients
@pytest.mark.parametrize("revision", SCENARIOS)
def test_each_scenario_of_the_suite_is_tried_but_for_those_of_tokens(suite, revision):
    ask = [*program(suite, "conformance"), "list", "--client", "--requirements", revision]
    listed = subprocess.run(ask, capture_output=True, text=True, timeout=60).stdout
    named = re.findall(r"^ +- (\S+)", listed.partition("Client scenarios")[2].partition("\n\n")[0], re.MULTILINE)
    tried = SCENARIOS[revision]
    assert len(named) > len(tried) and [name for name in named if not name.startswith("auth/")] == tried


@pytest.mark.clients
@pytest.mark.parametrize(
    ("sdk", "revision", "scenario"),
    [
        (sdk, revision, scenario)
        for sdk, revision in (("v1", "2025-11-25"), ("v2", "2025-11-25"), ("v2-auto", "2026-07-28"))
        for scenario in SCENARIOS[revision]
    ],
)
def test_the_suite_finds_the_same_of_a_client_direct_and_through(home, suite, sdk, revision, scenario):
    def found(*through):
        command = " ".join([*client(suite, sdk, "scenario"), *through])
        ask = [*program(suite, "conformance"), "client", "--command", command, "--scenario", scenario]
        ask += ["--spec-version", revision, "--timeout", "120000"]
        done = subprocess.run(ask, capture_output=True, text=True, timeout=300, cwd=home)
        text = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)
        assert "reconnected too early" not in text
        checks = re.findall(r"\[(\S+) *\] (SUCCESS|FAILURE|WARNING)", text)
        # A busy machine makes the client come late.
        return sorted(check for check in checks if check[0] != "client-sse-retry-timing")

    direct = found()
    assert direct and {how for _, how in direct} == {"SUCCESS"}
    assert found(*recorder(home, "--url")) == direct
