"""Clients of providers through the proxy: bound to run and step, budgeted, replayed; and adoption of a supervisor's run."""

import asyncio
import json
import os
import subprocess
import sys
import textwrap

import pytest

import outlast
from conftest import SOURCES, outlast_program


@pytest.fixture
def provider(home, monkeypatch):
    """A fake provider; gives the file with a line for each request that was paid for."""
    log = home / "paid.log"
    program = [outlast_program(), "mock", "--listen", "127.0.0.1:0", "--usage", "1000,500", "--log", log]
    child = subprocess.Popen(program, stdout=subprocess.PIPE, text=True)
    url = child.stdout.readline().strip()
    for name in ("OPENAI", "ANTHROPIC", "GEMINI"):
        monkeypatch.setenv(f"{name}_API_KEY", "sk-a-key-of-the-tests")
    for name in ("OPENAI", "ANTHROPIC", "GOOGLE_GEMINI"):
        monkeypatch.setenv(f"{name}_BASE_URL", url)
    yield log
    child.kill()
    child.wait()


def paid(log):
    return len(log.read_text().splitlines()) if log.exists() else 0


def ask(client, text="hello"):
    answer = client.chat.completions.create(
        model="gpt-4o-mini", messages=[{"role": "user", "content": text}], max_tokens=100
    )
    return answer.choices[0].message.content


def test_calls_are_paid_from_the_runs_budget_and_not_again_in_the_next_life(rt, provider):
    import openai

    client = openai.OpenAI(**outlast.openai())
    for life in range(2):
        with pytest.raises(ZeroDivisionError):
            with rt.run("r") as run:
                outside = ask(client)
                inside = run.step("ask", lambda: ask(client, "in a step"))
                raise ZeroDivisionError
        assert paid(provider) == 2
    assert outside and inside
    budget = rt.get("r").budget
    assert budget.calls.spent == 2 and budget.usd.spent > 0 and budget.usd.reserved == 0


def test_gemini_calls_are_bound_to_run_and_step_and_not_paid_again(rt, provider):
    from google import genai

    def ask_gemini(client, text):
        return client.models.generate_content(model="gemini-2.5-flash", contents=text).text

    async def ask_later(client, text):
        return (await client.aio.models.generate_content(model="gemini-2.5-flash", contents=text)).text

    client = genai.Client(**outlast.gemini())
    for life in range(2):
        with pytest.raises(ZeroDivisionError):
            with rt.run("r") as run:
                outside = ask_gemini(client, "hello")
                inside = run.step("ask", ask_gemini, client, "in a step")
                raise ZeroDivisionError
        assert paid(provider) == 2 and outside and inside

    async def main():
        async with rt.run("later") as run:
            return await run.step("ask", ask_later, genai.Client(**outlast.gemini()), "async")

    assert asyncio.run(main()) and paid(provider) == 3
    assert rt.get("r").budget.calls.spent == 2 and rt.get("later").budget.calls.spent == 1


@pytest.mark.parametrize("name", ["HTTP_PROXY", "all_proxy"])
def test_no_call_to_the_proxy_of_outlast_goes_to_one_of_the_environment(rt, provider, monkeypatch, name):
    # Bug: a run token and a prompt went to the company's proxy. Cause: httpx obeys the environment for loopback, too.
    import anthropic
    import openai
    from google import genai

    monkeypatch.setenv(name, "http://127.0.0.1:1")
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)
    with rt.run("r"):
        assert ask(openai.OpenAI(**outlast.openai()))
        claude = anthropic.Anthropic(**outlast.anthropic())
        question = [{"role": "user", "content": "hello"}]
        assert claude.messages.create(model="claude-sonnet-4-5", max_tokens=100, messages=question).content
        gemini = genai.Client(**outlast.gemini())
        assert gemini.models.generate_content(model="gemini-2.5-flash", contents="hello").text
    assert paid(provider) == 3


def test_a_limit_refuses_the_call_and_the_step_is_told(rt, provider):
    import openai

    client = openai.OpenAI(**outlast.openai())
    with pytest.raises(openai.APIStatusError) as error:
        with rt.run("r", budget=outlast.Budget(calls=1)) as run:
            run.step("one", ask, client, retries=3)
            run.step("two", ask, client, "other", retries=3)
    assert error.value.status_code == 402
    assert rt.get("r").halt_code == "call_budget_exceeded" and paid(provider) == 1
    with pytest.raises(outlast.BudgetExceeded):
        rt.run("r").__enter__()


def test_async_clients_of_both_providers_are_bound_to_their_tasks_run(rt, provider):
    import anthropic
    import openai

    async def main():
        one = openai.AsyncOpenAI(**outlast.openai(aio=True))
        two = anthropic.AsyncAnthropic(**outlast.anthropic(aio=True))

        async def claude():
            answer = await two.messages.create(
                model="claude-sonnet-4-5", max_tokens=100, messages=[{"role": "user", "content": "hello"}]
            )
            return answer.content[0].text

        async def gpt():
            answer = await one.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": "x"}])
            return answer.choices[0].message.content

        async def life(id, fn):
            async with rt.run(id) as run:
                return await run.step("ask", fn)

        await asyncio.gather(life("a", claude), life("b", gpt))

    asyncio.run(main())
    assert (rt.get("a").budget.calls.spent, rt.get("b").budget.calls.spent) == (1, 1)


def test_a_request_outside_of_a_run_is_refused_before_it_leaves(rt, provider):
    import openai

    client = openai.OpenAI(**outlast.openai())
    with pytest.raises((outlast.NoRun, openai.APIConnectionError)):
        ask(client)
    with pytest.raises(outlast.NoRun):
        outlast.endpoint()
    assert paid(provider) == 0


def test_an_endpoint_names_url_token_and_open_step(rt, provider):
    with rt.run("r") as run:
        outside = outlast.endpoint()
        inside = run.step("s", lambda: [outlast.endpoint().token, outlast.endpoint().headers, outlast.current().seq])
        assert outside.headers == {} and outside.token.startswith("ol_") and outside.url.startswith("http://127.0.0.1:")
        assert inside == [outside.token, {"X-Outlast-Scope": str(inside[2])}, inside[2]]


def test_the_sdk_leaves_retries_inside_a_step_to_the_step():
    from outlast import clients, scope

    class Response:
        def __init__(self):
            self.status_code, self.headers = 503, {}

    class Run:
        def _heard(self, response):
            pass

    said = {"x-should-retry": "false"}
    for step, had, wanted in ((None, {}, {}), ("s", {}, {**said, "x-outlast-retries": "1"}), ("s", said, said)):
        token = scope.variable.set(scope.Current(Run(), step))
        try:
            response = Response()
            response.headers = dict(had)
            clients._answered(response)
        finally:
            scope.variable.reset(token)
        assert response.headers == wanted


@pytest.mark.parametrize("aio", [False, True], ids=["sync", "async"])
@pytest.mark.parametrize("sdk", ["openai", "anthropic"])
def test_a_broken_connection_is_tried_again_by_the_sdk_outside_of_steps_only(rt, provider, monkeypatch, sdk, aio):
    import importlib

    module = importlib.import_module(sdk)
    sent = []

    def broken(request):
        sent.append(request)
        raise ConnectionError("it broke")

    async def broken_async(request):
        broken(request)

    def asked(client):
        create = client.chat.completions.create if sdk == "openai" else client.messages.create
        return create(model="gpt-4o-mini", messages=[{"role": "user", "content": "hello"}], max_tokens=10)

    def tries(within):
        sent.clear()
        with pytest.raises(module.APIConnectionError):
            within()
        return len(sent)

    def thread_life(client):
        with rt.run("r") as run:
            # Copies, as users make them, know it, too.
            elsewhere = tries(lambda: asked(client)), tries(lambda: asked(client.with_options(timeout=5)))
            inside = tries(lambda: run.step("ask", asked, client)), tries(lambda: run.step("b", asked, client.with_options(timeout=5)))
        return elsewhere, inside

    async def task_life(client):
        async def tried(awaitable):
            sent.clear()
            with pytest.raises(module.APIConnectionError):
                await awaitable
            return len(sent)

        async def ask(_):
            return await asked(client)

        async with rt.run("r") as run:
            return (await tried(ask(0)),) * 2, (await tried(run.step("a", ask, 0)),) * 2

    arguments = getattr(outlast, sdk)(aio=aio, max_retries=1)
    client = getattr(module, ("Async" if aio else "") + ("OpenAI" if sdk == "openai" else "Anthropic"))(**arguments)
    client._client.event_hooks["request"].append(broken_async if aio else broken)
    elsewhere, inside = asyncio.run(task_life(client)) if aio else thread_life(client)
    assert (elsewhere, inside) == ((2, 2), (1, 1))


# Bug: a step's `retries` never tried a provider's 503 or 429 again. Cause: what tells the SDK to leave it to the step
# was read as the provider's own word.
def test_a_steps_tries_are_the_steps_and_not_the_sdks(rt, provider):
    import openai

    client = openai.OpenAI(**outlast.openai())
    sent = []
    client._client.event_hooks["request"].append(lambda request: sent.append(request.headers["x-stainless-retry-count"]))
    with rt.run("r") as run:
        for who in (client, client.with_options(max_retries=5)):
            sent.clear()
            text = f"{id(who)}\nmock: status 503 2"
            assert run.step("ask", ask, who, text, key=text, retries=outlast.Retry(5, base=0))
            assert sent == ["0", "0", "0"], "each is a first request of a try"


def test_an_items_tries_are_the_batchs_and_not_the_sdks(rt, provider):
    import openai

    client = openai.OpenAI(**outlast.openai())
    sent = []
    client._client.event_hooks["request"].append(lambda request: sent.append(request.headers["x-stainless-retry-count"]))
    out = outlast.map(
        [0], lambda i: ask(client, "mock: status 503 2"), job="j", key=str, store=rt, retries=outlast.Retry(5, base=0)
    ).wait()  # fmt: skip
    assert out.stats.done == 1
    assert sent == ["0", "0", "0"], "each is a first request of a try"


AGENT = """
    import os, signal, sys, openai, outlast
    client = openai.OpenAI(**outlast.openai())
    rt = outlast.connect()

    def ask(text):
        answer = client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": text}])
        return answer.choices[0].message.content

    with rt.run(os.environ["OUTLAST_RUN_ID"]) as run:
        for i in range(4):
            run.loop(i)
            run.step("ask", ask, f"question {i}")
            if i == 2 and os.environ["OUTLAST_ATTEMPT"] == "1":
                os.kill(os.getpid(), signal.SIGKILL)
        with rt.run("child") as child:
            child.step("more", ask, "of the child")
        with open("seen", "w") as seen:
            print(run.attempt, run.view().loops, rt.get("child").raw["limit_nano_usd"], file=seen)
"""


def test_a_supervised_agent_joins_its_supervisors_attempt(home, provider, supervised):
    supervised(AGENT)
    assert (home / "seen").read_text() == "2 4 None\n"
    # Four questions and the child's, each paid once.
    assert paid(provider) == 5
    rt = outlast.connect(home / "mine.db")
    assert (rt.get("sup").status, rt.get("sup").attempts, rt.get("child").status) == ("completed", 2, "completed")
    # The child's call is charged to its parent, too.
    assert rt.get("sup").budget.calls.spent == 5
    rt.close()


def test_a_second_process_of_a_supervised_agent_is_refused_while_the_first_lives(home, provider):
    program = """
        import os, subprocess, sys, outlast
        with outlast.connect().run() as run:
            run.step("a", lambda: 1)
            if "again" not in sys.argv:
                done = subprocess.run([sys.executable, __file__, "again"], capture_output=True, text=True)
                assert "RunHeld" in done.stderr and "another id" in done.stderr, done.stderr
    """
    (home / "agent.py").write_text(textwrap.dedent(program))
    done = subprocess.run(
        [outlast_program(), "run", "--run", "sup", "--", sys.executable, "agent.py"],
        cwd=home, env={**os.environ, "PYTHONPATH": str(SOURCES)}, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    shown = subprocess.run([outlast_program(), "show", "sup", "--json"], capture_output=True, text=True, timeout=60)
    assert json.loads(shown.stdout)["status"] == "completed"


def test_embeddings_are_metered_and_replayed(rt, provider):
    import openai

    client = openai.OpenAI(**outlast.openai())
    seen = []
    for life in range(2):
        with pytest.raises(ZeroDivisionError):
            with rt.run("r"):
                answer = client.embeddings.create(model="text-embedding-3-small", input=["one", "two"], dimensions=8)
                seen.append([vector.embedding for vector in answer.data])
                raise ZeroDivisionError
    assert paid(provider) == 1 and seen[0] == seen[1]
    assert [len(vector) for vector in seen[0]] == [8, 8]
    # 1,000 input tokens at 0.02 usd per million, and no output.
    assert rt.get("r").budget.usd.spent == pytest.approx(0.00002) and answer.usage.prompt_tokens == 1000


HOUSE_AGENT = """
    import os, signal, openai
    client = openai.OpenAI(base_url=os.environ["OUTLAST_URL"] + "/u/house/v1", api_key=os.environ["HOUSE_KEY"])
    said = []
    for i in range(3):
        chunks = client.chat.completions.create(
            model="fast", messages=[{"role": "user", "content": f"question {i}"}], max_tokens=50, stream=True
        )
        said.append("".join(chunk.choices[0].delta.content or "" for chunk in chunks))
        if i == 1 and os.environ["OUTLAST_ATTEMPT"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
    assert len(set(said)) == 3 and os.environ["HOUSE_KEY"].startswith("ol_")
"""


def test_an_upstream_by_name_is_metered_and_replayed_and_its_key_stays_ours(home, provider, monkeypatch):
    url = os.environ["OPENAI_BASE_URL"]
    settings = home / ".config" / "outlast"
    settings.mkdir(parents=True)
    (settings / "outlast.toml").write_text(
        f'[upstreams.house]\nbase_url = "{url}/openai/v1"\napi_key_env = "HOUSE_KEY"\nauth_header = "api-key"\n'
        'models = {fast = "gpt-4o-mini"}\n'
    )
    monkeypatch.setenv("HOUSE_KEY", "the-key-of-the-house")
    (home / "agent.py").write_text(textwrap.dedent(HOUSE_AGENT))
    done = subprocess.run(
        [outlast_program(), "--store", "mine.db", "run", "--run", "sup", "--", sys.executable, "agent.py"],
        cwd=home, env=dict(os.environ), capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert paid(provider) == 3
    rt = outlast.connect(home / "mine.db")
    # 1,000 in and 50 out (the cap), three times, as gpt-4o-mini.
    assert rt.get("sup").budget.usd.spent == pytest.approx(3 * 0.00018)
    rt.close()
    assert b"the-key-of-the-house" not in (home / "mine.db").read_bytes()


GEMINI_AGENT = """
    import os, signal
    from google import genai
    client = genai.Client()
    said = []
    for i in range(4):
        config = {"max_output_tokens": 50}
        if i % 2:
            answer = client.models.generate_content(model="gemini-2.5-flash", contents=f"question {i}", config=config)
            said.append(answer.text)
            used = answer.usage_metadata
        else:
            chunks = client.models.generate_content_stream(
                model="gemini-2.5-flash", contents=f"question {i}", config=config
            )
            texts = []
            for chunk in chunks:
                texts.append(chunk.text or "")
                used = chunk.usage_metadata
            said.append("".join(texts))
        assert (used.prompt_token_count, used.candidates_token_count) == (1000, 50), used
        if i == 2 and os.environ["OUTLAST_ATTEMPT"] == "1":
            os.kill(os.getpid(), signal.SIGKILL)
    assert len(set(said)) == 4 and all(said), said
    assert client.models.count_tokens(model="gemini-2.5-flash", contents="x").total_tokens > 0
"""


def test_googles_sdk_is_metered_and_replayed_and_told_of_a_refusal_in_its_words(home, provider, monkeypatch):
    monkeypatch.delenv("GEMINI_API_KEY", raising=False)
    monkeypatch.setenv("GOOGLE_API_KEY", "AIza-of-the-tests")
    monkeypatch.setenv("GOOGLE_GEMINI_BASE_URL", os.environ["OPENAI_BASE_URL"])
    (home / "agent.py").write_text(textwrap.dedent(GEMINI_AGENT))

    def run(id, *flags):
        return subprocess.run(
            [outlast_program(), "--store", "mine.db", "run", "--run", id, *flags, "--", sys.executable, "agent.py"],
            cwd=home, env=dict(os.environ), capture_output=True, text=True, timeout=60,
        )  # fmt: skip

    done = run("sup")
    assert done.returncode == 0, done.stderr
    assert paid(provider) == 4
    rt = outlast.connect(home / "mine.db")
    # 1,000 in at 0.30 and 50 out at 2.50 usd per million, four times.
    assert rt.get("sup").budget.usd.spent == pytest.approx(4 * 0.000425)
    refused = run("poor", "--calls", "1")
    assert "402 RESOURCE_EXHAUSTED" in refused.stderr and "call_budget_exceeded" in refused.stderr, refused.stderr
    assert rt.get("poor").halt_code == "call_budget_exceeded" and paid(provider) == 5
    rt.close()


# Bug: the proxy in an agent's own process asked a provider as often and as much at once as the agent did, whatever
# OUTLAST_UPSTREAM_CONCURRENCY and OUTLAST_UPSTREAM_RATE said, and took a damaged [digest] of outlast.toml for none.
# Consequence: settings meant something to `outlast serve` and nothing to a Python program.
# Cause: it made its configuration of its own copy of the lines that `outlast serve` has, which had not been added to.
def test_the_proxy_in_the_process_has_the_settings_of_outlast_serve(rt, home, monkeypatch):
    import http.server
    import threading

    import openai

    monkeypatch.chdir(home)
    settings = home / ".config/outlast/outlast.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text('[digest.masks]\nday = "(a"\n')
    with pytest.raises(outlast.Error, match="digest.masks.day"):
        outlast.openai()
    settings.unlink()

    inside, both = threading.Semaphore(1), threading.Event()
    message = {"role": "assistant", "content": "hi"}
    answer = json.dumps({
        "id": "c", "object": "chat.completion", "created": 1, "model": "gpt-4o-mini",
        "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }).encode()  # fmt: skip

    class Provider(http.server.BaseHTTPRequestHandler):
        """Answers a call once another one is there, too, or none has come for a while."""

        def do_POST(self):
            alone = inside.acquire(blocking=False)
            if not alone:
                both.set()
            self.rfile.read(int(self.headers["Content-Length"]))
            both.wait(0.5)
            if alone:
                inside.release()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(answer)))
            self.end_headers()
            self.wfile.write(answer)

        def log_message(self, *_):
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Provider)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        monkeypatch.setenv("OPENAI_API_KEY", "sk-a-key-of-the-tests")
        monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{server.server_port}")
        monkeypatch.setenv("OUTLAST_UPSTREAM_CONCURRENCY", "1")
        with rt.run("r") as run:
            client = openai.OpenAI(**outlast.openai())
            asking = [threading.Thread(target=run.step, args=("ask", ask, client, str(n))) for n in range(3)]
            [thread.start() for thread in asking]
            [thread.join() for thread in asking]
    finally:
        server.shutdown()
        server.server_close()
    assert rt.get("r").budget.calls.spent == 3
    assert not both.is_set(), "one call after the other"
