"""The examples of frameworks, killed in each of their tools: no model call is paid twice, and no other tool is done again."""

import json
import os
import subprocess
import sys

import pytest

from bed import ROOT, SOURCES, outlast_program

EXAMPLES = ["with_langgraph", "with_openai_agents", "with_pydantic_ai"]


@pytest.fixture
def provider(home):
    log = home / "paid"
    mock = subprocess.Popen([outlast_program(), "mock", "--listen", "127.0.0.1:0", "--log", log], stdout=subprocess.PIPE, text=True)
    yield mock.stdout.readline().strip(), lambda: [json.loads(line) for line in log.read_text().splitlines()]
    mock.kill()
    mock.wait()


@pytest.mark.parametrize("example", EXAMPLES)
def test_an_example_killed_in_every_tool_pays_and_charges_once(home, provider, example):
    url, paid = provider
    env = {
        **os.environ, "PYTHONPATH": str(SOURCES), "OUTLAST_STORE": str(home / "runs.db"), "OPENAI_API_KEY": "k",
        "OPENAI_BASE_URL": f"{url}/v1", "ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": url,
    }  # fmt: skip

    def life(*words):
        line = [sys.executable, ROOT / f"examples/frameworks/{example}.py", *words]
        return subprocess.run(line, cwd=home, env=env, capture_output=True, text=True, timeout=120)

    for customer in ("ann", "bob", "cid"):
        died = life("--die-in", customer)
        assert died.returncode == -9, died.stderr
    lived = life()
    assert lived.returncode == 0 and "all are charged" in lived.stdout, lived.stderr
    charged = [line.split() for line in (home / "charged").read_text().splitlines()]
    # Each was charged again once, under the same key.
    assert [c for c, _ in charged] == ["ann", "ann", "bob", "bob", "cid", "cid"] and len({key for _, key in charged}) == 3
    assert len(paid()) == 4
