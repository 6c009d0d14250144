"""Four servers of one PostgreSQL store under one named budget, killed again and again: nobody passes it."""

import http.client
import json
import os
import subprocess
import threading

import pytest

from conftest import outlast_program
from fleet_bed import LONGEST_S, Server

POSTGRES = os.environ.get("OUTLAST_TEST_POSTGRES")
SERVERS, CLIENTS, CALLS_EACH, ROOM = 4, 40, 10, 20


def body(text):
    """A request like no other: none is answered by another's record."""
    return json.dumps({"model": "gpt-4o-mini", "max_tokens": 5, "messages": [{"role": "user", "content": text}]})


class Metered(Server):
    """A server before a fake provider."""

    def __init__(self, home, store, provider):
        self.provider = provider
        super().__init__(home, store)

    def flags(self):
        return ["--openai-base-url", f"{self.provider}/v1", "--admit-wait", "100ms", "--default-loops", "none"]

    def environment(self):
        return {**super().environment(), "OPENAI_API_KEY": "sk-a-key-of-the-tests"}

    def call(self, run, text):
        """The status of one call of the run; `None` where the server died meanwhile."""
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=LONGEST_S)
        try:
            headers = {"X-Outlast-Run": run, "Content-Type": "application/json"}
            line.request("POST", "/v1/chat/completions", body(text), headers)
            answer = line.getresponse()
            answer.read()
            return answer.status
        except (OSError, http.client.HTTPException):
            return None
        finally:
            line.close()


@pytest.fixture
def provider(tmp_path):
    paid = tmp_path / "paid.log"
    line = [outlast_program(), "mock", "--listen", "127.0.0.1:0", "--log", str(paid)]
    process = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    yield process.stdout.readline().strip(), paid
    process.kill()
    process.wait()


@pytest.mark.xdist_group("postgres")
@pytest.mark.parametrize("kills", [False, True])
def test_four_servers_never_pass_a_budget_of_calls(tmp_path, provider, kills):
    assert POSTGRES, "wanted OUTLAST_TEST_POSTGRES, as `make test` sets it"
    url, paid_log = provider
    schema = f"fleet_{os.getpid()}_{int(kills)}"
    store = f"{POSTGRES}&schema={schema}"

    def outlast(*words):
        env = {"HOME": str(tmp_path), "PATH": os.environ["PATH"], "OUTLAST_STORE": store}
        line = [str(outlast_program()), *words]
        return subprocess.run(line, env=env, cwd=tmp_path, capture_output=True, text=True, check=True).stdout

    outlast("budgets", "set", "all", "--calls", str(ROOM))
    servers = [Metered(tmp_path, store, url) for _ in range(SERVERS)]
    answered, told = threading.Condition(), []

    def client(i):
        for k in range(CALLS_EACH):
            status = servers[(i + k) % SERVERS].call(f"run-{i}", f"{i}/{k}")
            with answered:
                told.append(status)
                answered.notify()

    def killer():
        for nth, server in enumerate(servers * 2, 1):
            # After so many answers and deaths, whenever that is.
            with answered:
                answered.wait_for(lambda: len(told) >= nth * 40, LONGEST_S)
            server.restart()

    threads = [threading.Thread(target=client, args=(i,)) for i in range(CLIENTS)]
    threads += [threading.Thread(target=killer)] if kills else []
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for server in servers:
        server.kill()
    paid = len(paid_log.read_text().splitlines())
    [units] = [b["units"] for b in json.loads(outlast("budgets", "--json"))["budgets"]]
    [calls] = [u for u in units if u["unit"] == "calls"]
    in_ledger = calls["spent"] + calls["reserved"]
    served = told.count(200)
    subprocess.run(["psql", "-q", POSTGRES, "-c", f"DROP SCHEMA {schema} CASCADE"], capture_output=True, check=True)
    assert served <= paid <= in_ledger <= ROOM, (served, paid, in_ledger)
    assert served > 0 and len(told) == CLIENTS * CALLS_EACH
    # Where nobody died, all the room was given out.
    assert kills or in_ledger == ROOM
