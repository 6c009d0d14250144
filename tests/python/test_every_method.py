"""Every method of the official clients, Python's and npm's: with Outlast in between nothing is other than without it."""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from conftest import ROOT, outlast_program

#: What a token costs in nano-dollars, asked and answered: the providers' list prices.
PRICES = {
    "gpt-4o-mini": (150, 600),
    "claude-haiku-4-5": (1000, 5000),
    "gemini-2.5-flash": (300, 2500),
    "text-embedding-3-small": (20, 0),
}
#: Asked without usage, which the proxy then asks for: the fake provider's words follow from the whole request.
ASKED_FOR_USAGE = ("chat.create, stream", "chat.stream", "ai.streamText, chat")
INSTALLED = os.environ.get("OUTLAST_TEST_CLIS")


@pytest.fixture(params=["python", pytest.param("npm", marks=pytest.mark.clients)])
def methods(request, home):
    """The command that calls every method."""
    if request.param == "python":
        return [sys.executable, str(ROOT / "tests/sdk/methods.py")]
    modules = Path(INSTALLED or "/nowhere").parent
    assert (modules / "openai").exists(), "npm's clients are not installed: run `make test-clients`"
    # A module's imports are looked for beside it.
    (home / "npm").mkdir()
    (home / "npm/node_modules").symlink_to(modules)
    return ["node", shutil.copy(ROOT / "tests/sdk/methods.mjs", home / "npm")]


@pytest.fixture
def calls(methods, home, request):
    """`calls(*around, **env)` runs the methods in the words of `around`, against a provider that knows nothing yet: gives what
    each method gave, and the provider's own record."""

    def run(*around, **env):
        log = home / f"paid-{len(list(home.glob('paid-*')))}"
        mock = [outlast_program(), "mock", "--listen", "127.0.0.1:0", "--log", log]
        provider = subprocess.Popen(mock, stdout=subprocess.PIPE, text=True)
        request.addfinalizer(lambda: (provider.kill(), provider.wait()))
        url = provider.stdout.readline().strip()
        surroundings = {
            **os.environ, "OUTLAST_STORE": str(home / "runs.db"), **env,
            "OPENAI_API_KEY": "k", "OPENAI_BASE_URL": f"{url}/v1",
            "ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": url,
            "GEMINI_API_KEY": "k", "GOOGLE_GEMINI_BASE_URL": url,
        }  # fmt: skip
        done = subprocess.run([*around, *methods], env=surroundings, capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        told = [json.loads(line) for line in done.stdout.splitlines()]
        return told, [json.loads(line) for line in log.read_text().splitlines()]

    return run


def run_of(name):
    return str(outlast_program()), "run", "--run", name, "--usd", "5", "--"


def asked_of(home, *words):
    done = subprocess.run(
        [outlast_program(), "--store", home / "runs.db", "--json", *words], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def nameless(told):
    """Without the names that follow from a request to which the proxy added what docs/design/proxy.md says it adds."""
    if told["method"] not in ASKED_FOR_USAGE:
        return told
    return json.loads(re.sub(r"(chatcmpl-|answer |\")[0-9a-f]{12,24}(?=[_ ])", r"\1", json.dumps(told)))


def test_results_stream_bytes_and_money_are_the_providers_own(calls, home):
    plain, _ = calls()
    told, paid = calls(*run_of("r"))
    assert len(plain) >= 40 and [nameless(t) for t in told] == [nameless(t) for t in plain]
    entries = [e for e in asked_of(home, "journal", "r")["entries"] if e["kind"] == "call"]
    used = sorted((e["call"]["model"], e["call"]["usage"]["input"], e["call"]["usage"]["output"]) for e in entries)
    assert used == sorted((p["model"], p["input_tokens"], p["output_tokens"]) for p in paid)
    nano = sum(PRICES[m][0] * asked + PRICES[m][1] * answered for m, asked, answered in used)
    assert asked_of(home, "show", "r")["budget"][0]["spent"] == nano


def test_an_agent_killed_between_methods_pays_none_twice(calls, home):
    plain, paid = calls()
    told, again = calls(*run_of("r"), DIE_EVERY="12")
    lives = asked_of(home, "show", "r")["attempts"]
    assert len(lives) >= 4 and [nameless(t) for t in told[-len(plain) :]] == [nameless(t) for t in plain]
    assert len(again) == len(paid)
