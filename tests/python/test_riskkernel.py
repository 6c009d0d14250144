"""The published RiskKernel SDK, unmodified, against `outlast serve`: what the original gets wrong is right here."""

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import openai
import pytest
import riskkernel as rk

from conftest import outlast_program
from ports import free_port

LONGEST_S = 60
# What a call of `ask` costs: 1000 tokens in, 500 out, of gpt-4o-mini.
COST = 0.00045
TOKEN = "the-token-of-the-tests"
POSTGRES = os.environ.get("OUTLAST_TEST_POSTGRES")


class Server:
    """A server on a store of its own, with a fake provider behind it. It can die and begin again."""

    def __init__(self, home, *flags, store=None):
        self.home, self.flags, self.port = home, flags, free_port()
        self.store = store or str(home / "runs.db")
        self.url = f"http://127.0.0.1:{self.port}"
        self.paid_log = home / "paid.log"
        line = [outlast_program(), "mock", "--listen", "127.0.0.1:0", "--usage", "1000,500"]
        self.provider = subprocess.Popen([*line, "--log", self.paid_log], stdout=subprocess.PIPE, text=True)
        self.provider_url = self.provider.stdout.readline().strip()
        self.process = None
        self.start()

    def environment(self):
        return {"HOME": str(self.home), "PATH": os.environ["PATH"], "OUTLAST_STORE": self.store}

    def start(self):
        log = self.home / "serve.log"
        line = [outlast_program(), "serve", "--listen", f"127.0.0.1:{self.port}", "--openai-base-url"]
        env = {**self.environment(), "OPENAI_API_KEY": "sk-a-key-of-the-tests"}
        with open(log, "w") as out:
            self.process = subprocess.Popen(
                [*line, f"{self.provider_url}/v1", *self.flags], env=env, stdout=out, stderr=out
            )
        began = time.monotonic()
        while "serving on" not in log.read_text():
            assert self.process.poll() is None, log.read_text()
            assert time.monotonic() - began < LONGEST_S, log.read_text()
            time.sleep(0.01)

    def kill(self):
        self.process.send_signal(signal.SIGKILL)
        self.process.wait()

    def restart(self):
        self.kill()
        self.start()

    def close(self):
        self.kill()
        self.provider.kill()
        self.provider.wait()

    def paid(self):
        return len(self.paid_log.read_text().splitlines()) if self.paid_log.exists() else 0

    def says(self, *args):
        line = [outlast_program(), *args]
        return subprocess.run(line, env=self.environment(), check=True, capture_output=True, text=True).stdout

    def runtime(self, **more):
        return rk.Runtime(base_url=self.url, **more)


@pytest.fixture
def server(tmp_path):
    server = Server(tmp_path)
    yield server
    server.close()


# Tests of one database run one after another: they look at the whole of it.
ON_POSTGRES = pytest.param("postgres", marks=pytest.mark.xdist_group("postgres"))


@pytest.fixture(params=["file", ON_POSTGRES] if POSTGRES else ["file"])
def any_server(tmp_path, request):
    """On each kind of store that there is."""
    # Without a token no run is larger than the server's defaults.
    flags = ("--default-loops", "1000")
    server = Server(tmp_path, *flags, store=POSTGRES if request.param == "postgres" else None)
    yield server
    server.close()


def ask(run, text, key="any-key", **more):
    """One proxied call of this run, as RiskKernel's manual has it."""
    config = run.proxy_config()
    client = openai.OpenAI(
        base_url=config["base_url"], default_headers=config["headers"], api_key=key, max_retries=0, **more
    )
    # As many bytes as the provider counts tokens: its bound is its cost, and a little.
    text = f"{text}\n{'x' * 1000}"
    return client.chat.completions.with_raw_response.create(
        model="gpt-4o-mini", max_tokens=500, messages=[{"role": "user", "content": text}]
    )


def halt_reason(error):
    return error.value.reason


def test_a_governed_run_is_counted_and_shown(server):
    rt = server.runtime()
    budget = rt.budget(dollars=1.0, loops=20, seconds=300, tokens=100_000)
    with rt.governed_run(name="research", budget=budget, metadata={"team": "search"}) as run:
        assert rk.current_run() is run
        for turn in range(3):
            assert run.step() == turn + 1
            answer = ask(run, f"turn {turn}")
            assert answer.headers["X-RiskKernel-Run-Id"] == run.id
            assert answer.headers["X-RiskKernel-Step"] == str(turn + 1)
            assert answer.headers["X-RiskKernel-Cost-Usd"] == f"{COST:.6f}"
            assert answer.headers["X-RiskKernel-Tokens"] == "1500"
        status = run.status()
    assert (status["name"], status["status"], status["haltReason"]) == ("research", "running", "")
    assert status["metadata"] == {"team": "search"}
    assert status["budget"] == {"tokens": 100_000, "dollars": 1.0, "loops": 20, "seconds": 300}
    usage = {name: status["usage"][name] for name in ("tokens", "promptTokens", "completionTokens", "dollars", "loops")}
    # Three calls, three steps: nothing is counted twice, and money is no float.
    assert usage == {"tokens": 4500, "promptTokens": 3000, "completionTokens": 1500, "dollars": 0.00135, "loops": 3}
    assert server.paid() == 3
    assert run.id in server.says("ls", "--json")


def test_the_loop_limit_is_an_exception_and_the_run_stays_halted(server):
    rt = server.runtime()
    with pytest.raises(rk.BudgetExceeded) as error:
        with rt.governed_run(name="runaway", budget=rt.budget(loops=3)) as run:
            while True:
                run.step()
    assert halt_reason(error) == "loop_budget_exceeded"
    # The cancel that the SDK sent on its way out has changed nothing.
    assert (run.status()["status"], run.status()["haltReason"]) == ("halted", "loop_budget_exceeded")
    server.restart()
    with rt.resume_run(run.id) as again:
        with pytest.raises(rk.BudgetExceeded) as error:
            again.step()
        assert halt_reason(error) == "loop_budget_exceeded"
        with pytest.raises(openai.APIStatusError) as refused:
            ask(again, "more")
        assert refused.value.status_code == 402 and refused.value.code == "loop_budget_exceeded"
    assert server.paid() == 0
    # A person gives it more: it goes on with what it had used.
    server.says("budget", run.id, "--add-loops", "2")
    assert again.step() == 4


def test_the_dollar_limit_holds_at_the_proxy_and_at_the_steps(server):
    rt = server.runtime()
    with rt.governed_run(name="dear", budget=rt.budget(dollars=5 * COST + COST / 10)) as run:
        with pytest.raises(openai.APIStatusError) as refused:
            for turn in range(10):
                ask(run, f"turn {turn}")
        assert refused.value.status_code == 402
        assert refused.value.response.headers["X-RiskKernel-Halt-Reason"] == "dollar_budget_exceeded"
        with pytest.raises(rk.BudgetExceeded) as error:
            run.step()
        assert halt_reason(error) == "dollar_budget_exceeded"
    assert server.paid() == 5
    assert run.status()["usage"]["dollars"] == 0.00225


def test_an_exception_cancels_the_run(server):
    rt = server.runtime()
    with pytest.raises(ZeroDivisionError):
        with rt.governed_run(name="broken") as run:
            run.step()
            raise ZeroDivisionError
    assert (run.status()["status"], run.status()["haltReason"]) == ("cancelled", "cancelled")
    with pytest.raises(rk.BudgetExceeded) as error:
        run.step()
    assert halt_reason(error) == "cancelled"
    assert run.cancel("once more")["status"] == "cancelled"


def test_an_agent_goes_on_where_its_checkpoint_was_after_kill_9_of_the_server(any_server):
    rt, total, kills = any_server.runtime(), 10, {3, 7}
    with rt.governed_run(name="work", budget=rt.budget(loops=50, seconds=3600)) as run:
        assert run.latest_checkpoint() is None
    done, asked = [], []

    def work(resumed):
        checkpoint = resumed.latest_checkpoint()
        for turn in range(checkpoint["payload"]["cursor"] if checkpoint else 0, total):
            resumed.step()
            if turn in kills:
                kills.remove(turn)
                any_server.restart()
            answer = ask(resumed, f"turn {turn}")
            asked.append(answer.headers.get("x-outlast-replayed"))
            done.append(turn)
            resumed.checkpoint("progress", {"cursor": turn + 1, "note": "é"})

    with rt.resume_run(run.id) as resumed:
        work(resumed)
        status = resumed.status()
    assert done == list(range(total))
    # Ten turns of work are ten loops, whatever died meanwhile, and nothing was paid twice.
    assert (status["usage"]["loops"], any_server.paid()) == (total, total)
    assert status["usage"]["dollars"] == round(total * COST, 9)
    checkpoint = resumed.latest_checkpoint()
    assert (checkpoint["runId"], checkpoint["stepIndex"]) == (run.id, total)
    assert checkpoint["payload"] == {"cursor": total, "note": "é"}
    assert checkpoint["usage"]["dollars"] == round(total * COST, 9)


def test_what_was_answered_is_there_after_kill_9_at_any_moment(any_server):
    """Many agents at once: no step that was confirmed is lost, and none is counted that nobody took."""
    rt, agents = any_server.runtime(), 8
    runs = [rt.client.create_run(name=f"agent {n}", budget={"loops": 1000})["id"] for n in range(agents)]
    confirmed, stop = dict.fromkeys(runs, 0), threading.Event()

    def steps(run):
        while not stop.is_set():
            try:
                confirmed[run] = rt.client.begin_step(run)
            except rk.APIError as error:
                # The server is gone: that one may be counted, or not.
                assert error.status == 0, error
                return
            except OSError:
                return

    for _ in range(3):
        threads = [threading.Thread(target=steps, args=(run,)) for run in runs]
        before = sum(confirmed.values())
        for thread in threads:
            thread.start()
        began = time.monotonic()
        while sum(confirmed.values()) < before + 50:
            assert time.monotonic() - began < LONGEST_S
            time.sleep(0.005)
        any_server.kill()
        for thread in threads:
            thread.join()
        any_server.start()
        for run in runs:
            loops = rt.client.get_run(run)["usage"]["loops"]
            assert loops in (confirmed[run], confirmed[run] + 1), run
            confirmed[run] = loops
    stop.set()


def test_what_the_provider_was_paid_is_charged_whatever_the_server_did(any_server):
    """Calls of many runs at once, and kill -9: RiskKernel's ledgers had less than was paid."""
    rt, agents = any_server.runtime(), 8
    runs = [rt.client.create_run(name=f"agent {n}", budget={"dollars": 1})["id"] for n in range(agents)]

    def calls(id):
        with rt.resume_run(id) as run:
            try:
                for number in range(1000):
                    ask(run, f"{any_server.paid()} {number}")
            except openai.APIConnectionError:
                return

    for _ in range(2):
        paid = any_server.paid()
        threads = [threading.Thread(target=calls, args=(run,)) for run in runs]
        for thread in threads:
            thread.start()
        until(lambda: any_server.paid() >= paid + 40, "calls")
        any_server.kill()
        for thread in threads:
            thread.join()
        any_server.start()
        # What was in flight is charged once its server is known to be dead: on PostgreSQL two renewals later.
        charged = lambda: sum(rt.client.get_run(run)["usage"]["dollars"] for run in runs)
        until(lambda: charged() >= any_server.paid() * COST - 1e-9, "all that was paid to be charged")
    # Every sum of the store is that of its entries.
    any_server.says("verify")


def test_two_servers_on_one_store_share_one_budget(any_server):
    rt = any_server.runtime()
    other = Server.__new__(Server)
    other.__dict__.update(any_server.__dict__)
    other.port = free_port()
    other.url = f"http://127.0.0.1:{other.port}"
    other.start()
    try:
        run = rt.client.create_run(budget={"loops": 20})["id"]
        counted, lock = [], threading.Lock()

        def steps(client):
            while True:
                try:
                    step = client.begin_step(run)
                except rk.BudgetExceeded:
                    return
                with lock:
                    counted.append(step)

        clients = [rt.client, other.runtime().client]
        threads = [threading.Thread(target=steps, args=(client,)) for client in clients * 4]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(counted) == list(range(1, 21))
    finally:
        other.kill()


def test_the_newest_checkpoint_counts_whatever_its_name(server):
    rt = server.runtime()
    with rt.governed_run() as run:
        run.checkpoint()
        assert run.latest_checkpoint()["payload"] == {}
        run.checkpoint("a", {"n": 1})
        run.step()
        run.checkpoint("b", {"n": 2})
        run.step()
        found = run.latest_checkpoint()
        assert (found["payload"], found["name"], found["stepIndex"]) == ({"n": 2}, "b", 1)
        server.restart()
        assert run.latest_checkpoint() == found


def test_what_is_not_there_is_said_so(server):
    rt = server.runtime()
    with pytest.raises(rk.APIError) as error:
        with rt.resume_run("run_abc123"):
            pass
    assert (error.value.status, error.value.code) == (404, "unknown_run")
    assert rt.client.latest_checkpoint("run_abc123") is None
    with pytest.raises(rk.APIError) as error:
        rt.client.create_run(budget={"dollars": -1})
    assert (error.value.status, error.value.code) == (400, "bad_request")


def test_a_run_that_a_header_created_is_resumed_by_the_sdk(server):
    rt = server.runtime()
    client = openai.OpenAI(
        base_url=f"{server.url}/v1", api_key="any-key", default_headers={"X-RiskKernel-Run-Id": "by-header"}
    )
    client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": "hello"}])
    with rt.resume_run("by-header") as run:
        assert run.status()["usage"]["tokens"] == 1500
        assert run.status()["budget"] == {"tokens": 0, "dollars": 5.0, "loops": 100, "seconds": 3600}
        # Its call was counted as a loop, for nobody had registered a step.
        assert run.step() == 2


def test_a_server_with_a_token_lets_in_who_has_it(tmp_path):
    token = tmp_path / "token"
    token.write_text("the-token-of-the-tests\n")
    token.chmod(0o600)
    server = Server(tmp_path, "--api-token-file", str(token))
    try:
        for wrong in (None, "another"):
            with pytest.raises(rk.APIError) as error:
                server.runtime(token=wrong).client.create_run()
            assert error.value.status == 401 and error.value.message
        rt = server.runtime(token="the-token-of-the-tests")
        with rt.governed_run(budget={"loops": 5}) as run:
            run.step()
            ask(run, "hello", key="the-token-of-the-tests")
        assert (run.status()["usage"]["loops"], server.paid()) == (1, 1)
    finally:
        server.close()


@pytest.fixture
def guarded(tmp_path):
    """A server that wants a token, and has a policy that asks before anything is written."""
    token = tmp_path / "token"
    token.write_text(TOKEN)
    token.chmod(0o600)
    server = Server(tmp_path, "--api-token-file", str(token))
    rk.RiskKernel(server.url, TOKEN)._request("POST", "/v1/policies", {
        "name": "careful", "toolAllowlist": ["search", "write_file"],
        "approvalPolicy": {"requireFor": [{"sideEffect": "write"}]},
    })  # fmt: skip
    yield server
    server.close()


def careful_run(rt):
    data = rt.client._request("POST", "/v1/runs", {"name": "careful", "policyRef": "careful", "budget": {"loops": 9}})
    return data["id"]


def until(condition, what):
    began = time.monotonic()
    while not (found := condition()):
        assert time.monotonic() - began < LONGEST_S, f"waited in vain for {what}"
        time.sleep(0.02)
    return found


# An agent that asks for a person's word, as a process that can die.
ASKER = """
import sys
import riskkernel as rk
from riskkernel import governed_tool

rt = rk.Runtime(base_url=sys.argv[1], token=sys.argv[2], approval_poll_interval=0.05)

@governed_tool(side_effect="write")
def write_file(path):
    print("written", path, flush=True)

with rt.resume_run(sys.argv[3]) as run:
    print(run.approve("search", side_effect="read"), flush=True)
    try:
        write_file("plan.md")
    except rk.ApprovalDenied as denied:
        print("denied", denied, flush=True)
"""


def asker(server, run):
    line = [sys.executable, "-c", ASKER, server.url, TOKEN, run]
    return subprocess.Popen(line, stdout=subprocess.PIPE, text=True)


@pytest.mark.parametrize("by", ["command", "rest"])
def test_a_person_decides_after_kill_9_of_the_server_and_of_the_agent(guarded, by):
    rt = guarded.runtime(token=TOKEN)
    run = careful_run(rt)
    agent = asker(guarded, run)
    pending = until(lambda: rt.client.get_run(run).get("pendingApproval"), "an approval")
    assert (pending["tool"], pending["sideEffect"]) == ("write_file", "write")
    assert pending["arguments"] == {"args": ["plan.md"], "kwargs": {}}
    assert rt.client.get_run(run)["status"] == "waiting_approval"
    agent.kill()
    agent.wait()
    guarded.restart()
    agent = asker(guarded, run)
    # The same question: it was there all the while.
    assert agent.stdout.readline().startswith("Decision(approved=True, required=False")
    assert [a["id"] for a in rt.client._request("GET", "/v1/approvals?status=pending")] == [pending["id"]]
    if by == "command":
        guarded.says("approve", pending["id"])
    else:
        rt.client.resolve_approval(run, pending["id"], True, reason="read it", decided_by="ada")
    assert agent.stdout.readline() == "written plan.md\n"
    assert agent.wait(LONGEST_S) == 0
    assert rt.client.get_run(run)["status"] == "running"
    calls = rt.client._request("GET", f"/v1/runs/{run}/tool-calls")
    assert [(call["tool"], call["status"]) for call in calls] == [("write_file", "approved")]


def test_a_denial_and_a_tool_that_there_is_not_end_the_wait(guarded):
    rt = guarded.runtime(token=TOKEN, approval_poll_interval=0.05)
    run = careful_run(rt)
    with rt.resume_run(run) as resumed:
        gate = rk.ApprovalGate(resumed)
        assert not gate.allow("shell", arguments={"cmd": "ls"})
        agent = asker(guarded, run)
        until(lambda: resumed.status().get("pendingApproval"), "an approval")
        rt.client._request("POST", f"/v1/runs/{run}/approve", {"decision": "deny", "reason": "not today"})
        assert agent.communicate(timeout=LONGEST_S)[0].splitlines()[-1].endswith("write_file: not today")
        with pytest.raises(rk.ApprovalTimeout):
            gate.decide("write_file", "write", {"path": "other"}, timeout=0.2)


def test_without_a_token_only_the_command_decides(server):
    rt = server.runtime(approval_poll_interval=0.05)
    with rt.governed_run() as run:
        asked = rt.client.request_approval(run.id, "pay", "spend", {"usd": 5})
        with pytest.raises(rk.APIError) as error:
            rt.client.resolve_approval(run.id, asked["id"], True)
        assert (error.value.status, error.value.code) == (403, "only_the_command_decides")
        server.says("approve", asked["id"])
        decision = run.approve("pay", "spend", {"usd": 5})
    assert decision.approved and decision.required


def test_facts_are_shared_by_runs_and_kept(server):
    rt = server.runtime()
    with rt.governed_run() as run:
        fact = rt.client.put_fact("team é/1", "river", "measured twice", run_id=run.id)
        assert (fact["value"], fact["runId"]) == ("measured twice", run.id)
        rt.client.put_fact("team é/1", "bridge", "old")
    server.restart()
    facts = rt.client.list_facts("team é/1")
    assert [(fact["key"], fact["value"], fact.get("runId")) for fact in facts] == [
        ("bridge", "old", None),
        ("river", "measured twice", run.id),
    ]
    assert rt.client.list_facts() == []
    assert rt.client.list_memory("team", "river") == []
    with pytest.raises(rk.APIError) as error:
        rt.client.read_memory("notes.md")
    assert error.value.status == 404
    # They are state like any other.
    assert "measured twice" in server.says("state", "get", "-n", "team é/1", "facts", "river")


def test_the_decorator_finds_the_server_by_its_variables(server, monkeypatch):
    monkeypatch.setenv("RISKKERNEL_BASE_URL", server.url)
    monkeypatch.setattr(rk.runtime, "_default_runtime", None)

    @rk.governed_run(budget={"loops": 2})
    def agent(run):
        return run.step(), rk.current_run().id

    step, id = agent()
    assert step == 1
    assert rk.default_runtime().client.get_run(id)["name"] == "agent"
