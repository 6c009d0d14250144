"""Calls in a batch: the ceiling poisons no item, each try is a scope of its own, and what is not metered is noticed."""

import asyncio
import contextlib
import http.server
import json
import os
import shlex
import subprocess
import sys
import textwrap
import threading

import pytest

import outlast
from batches import until
from conftest import SOURCES, outlast_program
from test_batches_kills import ask, paid, provider  # noqa: F401 (a fixture)


@pytest.fixture(autouse=True)
def unsynced(monkeypatch):
    monkeypatch.setenv("OUTLAST_DURABILITY", "process")


def batch(rt, items, fn, **options):
    return outlast.map(items, fn, **{"job": "j", "key": str, "store": rt, "concurrency": 4, **options})


def swallowing(i):
    try:
        return ask(i)
    except RuntimeError:
        return None


@pytest.mark.parametrize("fn", [ask, swallowing], ids=["raises", "swallows"])
def test_what_a_limit_refuses_goes_back_whatever_its_function_does(rt, provider, fn):  # noqa: F811
    out = batch(rt, range(40), fn, budget=outlast.Budget(calls=10))
    with pytest.raises(outlast.BudgetExceeded) as error:
        out.wait()
    assert error.value.code == "call_budget_exceeded" and "outlast budget j" in error.value.hint
    job = outlast.job("j", store=rt)
    counts = job.counts
    assert counts["failed"] == counts["dead"] == 0, "no item is blamed"
    assert 10 - 4 <= counts["done"] <= 10 and paid(provider) == 10 and job.status == "halted"
    assert all(item.value for item in job.items(status="done"))
    with pytest.raises(outlast.BudgetExceeded):
        batch(rt, range(40), fn)
    again = batch(rt, range(40), fn, budget=outlast.Budget(calls=100, amend=True))
    assert all(r.value for r in again) and again.stats.done == 40
    assert paid(provider) == 40, "what was paid before the halt is replayed"


def test_an_async_batch_drains_and_raises_at_the_limit(rt, provider):  # noqa: F811
    import openai

    client = openai.AsyncOpenAI(**outlast.openai(aio=True))

    async def fn(i):
        try:
            answer = await client.chat.completions.create(
                model="gpt-4o-mini", max_tokens=10, messages=[{"role": "user", "content": f"q{i}"}]
            )
            return answer.choices[0].message.content
        except openai.APIStatusError:
            return None

    async def main(budget):
        return await outlast.amap(list(range(20)), fn, job="j", key=str, budget=budget, concurrency=4)

    with pytest.raises(outlast.BudgetExceeded):
        asyncio.run(main(outlast.Budget(calls=8)))
    counts = outlast.job("j", store=rt).counts
    # Of this client every answer is seen: whoever got one is done.
    assert (counts["done"], counts["failed"], paid(provider)) == (8, 0, 8)


def test_a_malformed_answer_is_not_replayed_to_the_next_try(rt, provider):  # noqa: F811
    tries = []

    def fn(i):
        answer = ask(i)
        tries.append(answer)
        if len(tries) < 3:
            raise ValueError("malformed")
        return answer

    (r,) = batch(rt, [0], fn, retries=outlast.Retry(5, base=0))
    assert (r.ok, r.attempts, paid(provider)) == (True, 3, 3)
    assert r.cost_usd == pytest.approx(rt.get("j").budget.usd.spent) and r.cost_usd > 0


def test_answers_are_reused_for_repaired_code_if_asked(rt, provider):  # noqa: F811
    def parse(i):
        return [outlast.current().try_, ask(i)]

    batch(rt, range(2), parse).wait()
    job = outlast.job("j", store=rt)
    job.reset("0", reuse_answers=True)
    job.reset(1)  # As `key=` may give it.
    assert job.item(1) is not None and job.item("1") is not None
    with pytest.raises(TypeError, match="wants a text or a whole number"):
        job.reset(["1"])  # type: ignore[arg-type]
    assert [r.cached for r in batch(rt, range(2), parse)] == [False, False]
    assert paid(provider) == 3


def test_a_step_in_an_item_that_raised_is_asked_anew_and_a_finished_one_is_not(rt, provider):  # noqa: F811
    seen = []

    @outlast.step(retries=outlast.Retry(3, base=0))
    def fetch(i):
        seen.append(ask(i))
        if len(seen) == 1:
            raise ValueError("malformed")
        return seen[-1]

    def fn(i):
        got = fetch(i)
        if len(seen) == 2:
            seen.append(None)
            raise KeyError("of the item")
        return got

    (r,) = batch(rt, [0], fn, retries=outlast.Retry(1, base=0))
    assert r.ok and paid(provider) == 2 and len(seen) == 3


def test_a_batch_under_a_dollar_limit_that_meters_nothing_is_stopped(rt):
    out = batch(rt, range(1000), lambda i: i, budget=outlast.Budget(usd=1))
    with pytest.raises(outlast.NothingMetered, match="10 items"):
        out.wait()
    assert 10 <= out.stats.done <= 10 + 4
    # Bug: each start counted anew, so that a few of them passed any limit.
    done = out.stats.done
    again = batch(rt, range(1000), lambda i: i, budget=outlast.Budget(usd=1))
    with pytest.raises(outlast.NothingMetered, match=f"{done + 1} items"):
        again.wait()
    assert again.stats.done <= done + 1 + 4


# Bug: the limit of 5 usd that a job has by default held nothing of what a client of the SDK's own spent, without a word.
# Cause: only a limit that the caller had given was looked at.
def test_a_client_that_leads_past_outlast_is_told_at_once_and_stops_the_batch_under_the_default_limit_too(rt, capfd):
    import openai

    client = openai.OpenAI(base_url="http://127.0.0.1:9/v1", api_key="k", max_retries=0)

    def ask_past(i):
        # Nobody is there: what counts is that it was asked.
        with contextlib.suppress(openai.APIConnectionError):
            client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": "q"}])
        return i

    out = batch(rt, range(1000), ask_past)
    with pytest.raises(outlast.NothingMetered, match="10 items of job j .* its limit of 5.00 usd holds nothing") as error:
        out.wait()
    assert f"outlast budget j --no-limit usd --store {rt.place}" in error.value.hint
    told = capfd.readouterr().err.splitlines()
    past = next(n for n, line in enumerate(told) if "OpenAI asks http://127.0.0.1:9/v1/chat/completions directly, which does not go through Outlast" in line)
    assert past < next(n for n, line in enumerate(told) if "is done and nothing was metered" in line)
    ours = openai.OpenAI(**outlast.openai())
    batch(rt, range(3), lambda i: ours and i, job="ours").wait()
    assert "does not go through" not in capfd.readouterr().err


# Bug: "nothing was metered" was said of functions that call no model at all.
def test_of_a_function_that_calls_no_model_nothing_is_said_unless_a_limit_is_given(rt, capfd):
    assert batch(rt, range(100), lambda i: i, job="free").wait().stats.done == 100
    batch(rt, range(100), lambda i: i, job="none", budget=outlast.Budget()).wait()
    assert "metered" not in capfd.readouterr().err
    with pytest.raises(outlast.NothingMetered):
        batch(rt, range(100), lambda i: i, job="given", budget=outlast.Budget(usd=1)).wait()
    assert capfd.readouterr().err.count("is done and nothing was metered: the limit of 1.00 usd holds only what clients of outlast.openai()") == 1


def direct(kind, base):
    """A question by a client that leads past Outlast, made where it is asked."""
    question = [{"role": "user", "content": "q"}]
    if kind == "openai":
        import openai

        openai.OpenAI(base_url=f"{base}/v1", api_key="k").chat.completions.create(model="gpt-4o-mini", messages=question, max_tokens=9)
    elif kind == "anthropic":
        import anthropic

        anthropic.Anthropic(base_url=base, api_key="k").messages.create(model="claude-sonnet-4-5", max_tokens=9, messages=question)
    else:
        from google import genai

        client = genai.Client(api_key="k", http_options=genai.types.HttpOptions(base_url=base))
        assert client.models.generate_content(model="gemini-2.5-flash", contents="q").text


# Bug: one metered call hid another that no limit saw: only a job without any metered call was told.
# Bug: neither `show`, `inspect`, `jobs` nor `outlast.job` told it afterwards.
@pytest.mark.parametrize("kind", ["openai", "anthropic", "gemini"])
def test_a_request_that_passes_outlast_by_is_told_once_beside_metered_ones_and_afterwards(rt, provider, capfd, kind):  # noqa: F811
    base = os.environ["OPENAI_BASE_URL"]

    def fn(i):
        direct(kind, base)
        return ask(i)

    assert batch(rt, range(12), fn, concurrency=2).wait().stats.done == 12
    told = capfd.readouterr().err
    assert told.count("directly, which does not go through Outlast: it is in no budget and no sum, and the limit of 5.00 usd does not hold it") == 1
    name = {"openai": "OpenAI", "anthropic": "Anthropic", "gemini": "google-genai-sdk"}[kind]
    line = f"unmetered {name} asked {base}"
    job = outlast.job("j", store=rt)
    assert [text.startswith(line) for text in job.unheld] == [True] and line in repr(job)
    for command in (["show", "j"], ["show", "j", "-v"], ["inspect", "j"], ["jobs"]):
        printed = outlast_prints(rt, *command)
        assert line in printed, printed
    batch(rt, range(3), ask, job="ours").wait()
    assert "directly" not in capfd.readouterr().err and outlast.job("ours", store=rt).unheld == []


def outlast_prints(rt, *words):
    return subprocess.run([outlast_program(), "--store", rt.place, *words], check=True, capture_output=True, text=True).stdout


def test_what_a_plain_run_or_a_task_asks_past_outlast_is_told_too(rt, provider, capfd):  # noqa: F811
    import openai

    client = openai.AsyncOpenAI(base_url=os.environ["OPENAI_BASE_URL"] + "/v1", api_key="k")

    async def main():
        async with rt.run("r") as run:
            for key in "ab":
                question = [{"role": "user", "content": key}]
                await client.chat.completions.create(model="gpt-4o-mini", messages=question, max_tokens=9)
        return run

    asyncio.run(main())
    assert capfd.readouterr().err.count("run r: AsyncOpenAI asks ") == 1
    assert "unmetered AsyncOpenAI asked" in outlast_prints(rt, "show", "r")
    # Whoever wants no limit is told afterwards only, since no sum has it; a request outside of a run is nobody's.
    with rt.run("free", budget=outlast.Budget()):
        direct("openai", os.environ["OPENAI_BASE_URL"])
    assert "unmetered OpenAI asked" in outlast_prints(rt, "show", "free")
    direct("openai", os.environ["OPENAI_BASE_URL"])
    assert "directly" not in capfd.readouterr().err


def test_that_nothing_was_metered_and_calls_without_a_price_are_told_afterwards(rt, provider):  # noqa: F811
    with pytest.raises(outlast.NothingMetered):
        batch(rt, range(100), lambda i: i, budget=outlast.Budget(usd=1)).wait()
    for command in (["show", "j"], ["inspect", "j"], ["jobs"]):
        assert "items were finished and nothing was metered (attempt 1)" in outlast_prints(rt, *command)

    import openai

    client = openai.OpenAI(**outlast.openai())

    def fn(i):
        return client.chat.completions.create(model="acme-9", messages=[{"role": "user", "content": str(i)}]).choices[0].message.content

    batch(rt, range(3), fn, job="acme", budget=outlast.Budget()).wait()
    line = "unpriced  3 calls: what has no known price is in no sum"
    assert outlast.job("acme", store=rt).unheld == [line]
    for command in (["show", "acme"], ["inspect", "acme"], ["jobs"]):
        assert line in outlast_prints(rt, *command)


def test_a_model_without_a_price_halts_the_job_and_the_way_out_works_as_typed(rt, provider):  # noqa: F811
    import openai

    client = openai.OpenAI(**outlast.openai())

    def fn(i):
        return client.chat.completions.create(model="acme-9", messages=[{"role": "user", "content": "q"}]).choices[0].message.content

    with pytest.raises(outlast.RunHalted, match='is halted: "acme-9" has no known price') as error:
        batch(rt, range(3), fn).wait()
    assert (error.value.code, rt.get("j").status) == ("price_unknown", "halted")
    # A program that is started again may have been given a price.
    with pytest.raises(outlast.RunHalted, match="acme-9"):
        batch(rt, range(3), fn).wait()
    way = next(part for part in error.value.hint.split("`") if part.startswith("outlast "))
    subprocess.run([outlast_program(), *shlex.split(way)[1:]], check=True, capture_output=True)
    assert all(r.ok for r in batch(rt, range(3), fn)) and paid(provider) == 3


def test_a_batch_that_is_metered_goes_on(rt, provider):  # noqa: F811
    out = batch(rt, range(30), ask, budget=outlast.Budget(usd=1)).wait()
    assert out.stats.done == 30 and 0 < out.stats.cost_usd < 1
    assert out.stats.cost_usd == pytest.approx(rt.get("j").budget.usd.spent)


def test_the_cost_so_far_is_told_at_the_resume(rt, provider, capfd):  # noqa: F811
    batch(rt, range(3), ask).wait()
    spent = rt.get("j").budget.usd.spent
    capfd.readouterr()
    out = batch(rt, range(4), ask).wait()
    assert f"resuming: 3 of 4 done, {spent:g} usd spent" in capfd.readouterr().err
    assert out.stats.cost_usd == pytest.approx(rt.get("j").budget.usd.spent) and paid(provider) == 4
    # Bug: the money of a life was told twice over. Cause: items repeat the charges of the calls made in them.
    line = [outlast_program(), "--store", rt.place, "show", "j", "--json"]
    told = json.loads(subprocess.run(line, check=True, capture_output=True).stdout)
    assert sum(life["cost_nano_usd"] for life in told["attempts"]) == told["spent_nano_usd"] > 0


def test_a_limit_is_changed_only_if_asked(rt):
    batch(rt, [1], lambda i: i, budget=outlast.Budget(usd=1)).wait()
    with pytest.raises(outlast.BudgetChanged):
        batch(rt, [1], lambda i: i, budget=outlast.Budget(usd=2))


def test_a_call_of_a_late_thread_is_not_paid_under_an_item_that_is_over(rt, provider):  # noqa: F811
    gate, late = threading.Event(), []

    def fn(i):
        gate.wait(20)
        try:
            late.append(ask(i))
        except Exception as e:
            late.append(str(e))
        finally:
            ended.set()

    ended = threading.Event()
    (r,) = batch(rt, [0], fn, timeout=0.1)
    gate.set()
    assert ended.wait(20)
    assert r.status == "failed" and paid(provider) == 0 and "is not open" in late[0]


def test_what_called_nothing_does_not_count_as_not_metered(rt, provider):  # noqa: F811
    def fn(i):
        if i < 15:
            raise outlast.Skip("empty") if i % 2 else ValueError(f"{'ab'[i % 4 // 2]} is broken")
        return ask(i)

    out = batch(rt, range(20), fn, budget=outlast.Budget(usd=1)).wait()
    assert (out.stats.done, out.stats.skipped, out.stats.failed) == (5, 7, 8)


def test_a_batch_in_a_run_spends_of_its_budget_and_the_ceiling_there_poisons_no_item(rt, provider, home):  # noqa: F811
    config = home / ".config" / "outlast" / "outlast.toml"
    config.parent.mkdir(parents=True)
    config.write_text('admit_wait = "300ms"\n')
    with pytest.raises(outlast.BudgetExceeded, match="a run above it") as error, rt.run("above", budget=outlast.Budget(calls=10)):
        batch(rt, range(40), swallowing).wait()
    assert error.value.code == "call_budget_exceeded"
    counts = outlast.job("j", store=rt).counts
    assert (counts["failed"], counts["dead"], paid(provider)) == (0, 0, 10) and 6 <= counts["done"] <= 10
    assert rt.get("j").raw["parent"] == "above"
    with rt.run("above", budget=outlast.Budget(calls=100, amend=True)):
        again = batch(rt, range(40), swallowing)
        assert all(r.value and r.attempts == 1 for r in again) and paid(provider) == 40


def test_a_small_limit_is_told_as_it_is(rt):
    batch(rt, [1], lambda i: i, budget=outlast.Budget(usd="0.002")).wait()
    with pytest.raises(outlast.BudgetChanged, match="has 0.002 usd as its limit, and 12.345 usd was asked for"):
        batch(rt, [1], lambda i: i, budget=outlast.Budget(usd="12.345"))


SUPERVISED = """
    import openai, outlast
    client = openai.OpenAI(**outlast.openai())
    rt = outlast.connect()

    def ask(i):
        answer = client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": f"q{i}"}])
        return answer.choices[0].message.content

    with rt.run("middle"):
        assert all(r.ok for r in outlast.map(range(6), ask, job="below", key=str))
"""


def test_a_batch_below_a_run_below_a_supervisor_is_charged_once_to_each(home, provider, supervised):  # noqa: F811
    supervised(SUPERVISED)
    with outlast.connect(home / "mine.db") as rt:
        assert {id: rt.get(id).budget.calls.spent for id in ("below", "middle", "sup")} == {"below": 6, "middle": 6, "sup": 6}
    assert paid(provider) == 6


class Silent(http.server.BaseHTTPRequestHandler):
    """A provider that answers every request but the first one."""

    ANSWER = {
        "id": "a", "object": "chat.completion", "created": 1, "model": "gpt-4o-mini",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "x"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }  # fmt: skip

    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.server.asked += 1
        if self.server.asked == 1:
            return
        answer = json.dumps(self.ANSWER).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


def test_what_is_held_for_a_call_without_an_answer_is_told_by_every_face_also_after_a_clean_start(rt, monkeypatch):
    """Bug: no Python face said that money was in doubt."""
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Silent) as server:
        server.asked = 0
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{server.server_port}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        for status in ("failed", "done"):
            out = batch(rt, [0], ask).wait()
            assert [r.status for r in out] == [status]
            view, job = rt.get("j"), outlast.job("j", store=rt)
            held = f"{view.raw['in_doubt_usd']} usd held for calls without an answer, which may be paid"
            assert view.in_doubt == held and view.budget.usd.in_doubt > 0
            for told in (repr(out), repr(job), view._repr_html_(), out._repr_html_(), job._repr_html_(), outlast_prints(rt, "inspect", "j")):
                assert held in told
        server.shutdown()


class BreaksOff(Silent):
    """A provider that is away until the items of q0 and q1 have ended, whose answers break off meanwhile."""

    def do_POST(self):
        text = json.loads(self.rfile.read(int(self.headers["content-length"])))["messages"][0]["content"]
        asked, refused = self.server.texts, self.server.refused
        asked.append(text)
        if text in ("q0", "q1"):
            self.send_response(200)
            self.send_header("content-type", "application/json")
            self.send_header("content-length", "1000")
            self.end_headers()
            self.wfile.write(b'{"id": ')
            until(lambda: len(refused) >= 4)
            self.close_connection = True
            return
        answer, status = json.dumps(self.ANSWER).encode(), 200
        if len(refused) < 4 or len(self.server.ended()) < 2:
            until(lambda: {"q0", "q1"} <= set(asked))
            answer, status = b"{}", 503
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)
        if status == 503:
            refused.append(text)


# Bug: two items whose answers broke off in an outage were asked and paid twice in one start, and nobody was told. Cause: an item
# that failed while its provider was away was given back, whatever had become of its calls.
def test_a_call_whose_answer_breaks_off_in_an_outage_is_not_paid_twice(rt, monkeypatch):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), BreaksOff) as server:
        server.texts, server.refused = [], []
        server.ended = lambda: list(outlast.job("j", store=rt).items("failed"))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{server.server_port}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        out = batch(rt, range(8), ask, concurrency=4)
        cut, *_ = pair = [r for r in out if r.index < 2]
        assert "usd (2 calls estimated)" in repr(out)
        assert "estimated 2 calls without usage, charged at the reservation" in outlast_prints(rt, "inspect", "j")
        assert [r.status for r in pair] == ["failed", "failed"] and "upstream_broke_off" in cut.why()
        assert [server.texts.count(text) for text in ("q0", "q1")] == [1, 1]
        starts = {item.key: item.failed_starts for item in outlast.job("j", store=rt).items("failed")}
        assert (starts["0"], starts["1"]) == (0, 0), "an outage is no fault of an item's"
        server.shutdown()


class Fails(Silent):
    """A provider that answers `text` with 500 always, and from `text` on everybody until `failures` calls have failed."""

    def do_POST(self):
        text = json.loads(self.rfile.read(int(self.headers["content-length"])))["messages"][0]["content"]
        server = self.server
        server.texts.append(text)
        answer, status = json.dumps(self.ANSWER).encode(), 200
        if text == server.text and server.is_always or server.text in server.texts and server.failures > 0:
            server.failures -= 1
            answer, status = b"{}", 500
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)


def asking():
    """A function that asks by an SDK, whose errors carry the status."""
    import openai

    client = openai.OpenAI(**outlast.openai())
    return lambda i: client.chat.completions.create(model="gpt-4o-mini", messages=[{"role": "user", "content": f"q{i}"}]).id


@contextlib.contextmanager
def failing(monkeypatch, text, failures=0):
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Fails) as server:
        server.texts, server.text, server.failures, server.is_always = [], text, failures, failures == 0
        threading.Thread(target=server.serve_forever, daemon=True).start()
        monkeypatch.setenv("OPENAI_BASE_URL", f"http://127.0.0.1:{server.server_port}/v1")
        monkeypatch.setenv("OPENAI_API_KEY", "k")
        yield server.texts
        server.shutdown()


# Bug: the first items of an outage stood as failed. Cause: a status is an outage at the third call in a row, and what failed
# before was recorded at once.
@pytest.mark.parametrize("concurrency", [1, 4])
def test_items_that_fail_as_an_outage_begins_are_asked_again_by_themselves(rt, monkeypatch, concurrency):
    with failing(monkeypatch, "q2", failures=4):
        out = batch(rt, range(8), asking(), concurrency=concurrency).wait()
        assert [r.status for r in out] == ["done"] * 8
        assert {item.failed_starts for item in outlast.job("j", store=rt).items()} == {0}


def test_an_item_that_fails_while_others_are_answered_is_asked_once_more_and_fails(rt, monkeypatch):
    with failing(monkeypatch, "q2") as texts:
        out = batch(rt, range(8), asking(), concurrency=1).wait()
        assert [r.key for r in out.failed] == ["2"] and "500" in out.failed[0].why()
        assert texts.count("q2") == 2 and len(texts) == 9
        assert outlast.job("j", store=rt).item(2).failed_starts == 1, "that is its own failure"


class Away:
    """An engine whose provider answers no call, while a call may be paid in vain."""

    def __init__(self, engine):
        self._engine = engine

    def __getattr__(self, name):
        return getattr(self._engine, name)

    def barred(self, run):
        return "waiting", "provider_failing", "openai fails with 503", ""

    def has_paid_in_vain(self, run, seq):
        return True


class Held(Exception):
    status_code, headers = 503, {"x-outlast-code": "provider_outage"}


def test_an_item_that_is_not_begun_again_for_a_call_that_may_be_paid_says_so(rt, monkeypatch):
    """Bug: such an item stood as failed for the outage, which ended, and nobody knew why it was not asked again."""

    def fn(i):
        raise Held("the provider answers no call at present")

    monkeypatch.setattr(rt, "_engine", Away(rt._engine))
    (r,) = batch(rt, [0], fn)
    assert r.status == "failed" and "it may be paid, so that the item is not begun again by itself" in r.why()
    assert "retries=" in r.error.hint and isinstance(r.error.__cause__, Held)
    assert outlast.job("j", store=rt).item(0).failed_starts == 0


MIXED = """
    import json, os, signal, sys, openai, outlast
    client = openai.OpenAI(**outlast.openai())

    def work(i):
        if i == int(sys.argv[1]):
            os.kill(os.getpid(), signal.SIGKILL)
        said = client.chat.completions.create(model="gpt-4o-mini", max_tokens=9, messages=[{"role": "user", "content": f"q{i}"}])
        if i % 10 == 8:
            raise outlast.Skip("eight")
        return said.id

    out = outlast.map(range(30), work, job="j", key=str, concurrency=2, store="runs.db", out="out.jsonl", progress=True).wait()
    print(json.dumps({"stats": vars(out.stats), "repr": repr(out), "rows": [[r.key, r.status, r.cost_nano_usd] for r in out]}))
"""


class Mixed(Silent):
    """A provider that refuses q3, q13, …, breaks off q5, … and does not answer q7, …"""

    def do_POST(self):
        text = json.loads(self.rfile.read(int(self.headers["content-length"])))["messages"][0]["content"]
        answer, status, length = json.dumps(self.ANSWER).encode(), 200, 0
        match int(text[1:]) % 10:
            case 3:
                answer, status = b"{}", 400
            case 5:
                answer, length = b'{"id": ', 1000
            case 7:
                return
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(length or len(answer)))
        self.end_headers()
        self.wfile.write(answer)


# Bug: the progress line and a job's repr told estimates as spent, `show` left out what was skipped, and one job had three sums.
def test_one_job_has_the_same_numbers_on_every_face_after_a_kill(home):
    program = home / "mixed.py"
    program.write_text(textwrap.dedent(MIXED))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Mixed) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        env = {**os.environ, "PYTHONPATH": str(SOURCES), "OPENAI_API_KEY": "k", "OUTLAST_OPENAI_BASE_URL": url}
        lives = [subprocess.run([sys.executable, str(program), at], cwd=home, env=env, capture_output=True, text=True, timeout=120) for at in ("16", "-1")]
        server.shutdown()
    assert [life.returncode for life in lives] == [-9, 0], lives[1].stderr
    told = json.loads(lives[1].stdout)
    stats = told["stats"]
    counts = {standing: stats[standing] for standing in ("done", "failed", "dead", "skipped")}
    assert counts == {"done": 18, "failed": 9, "dead": 0, "skipped": 3} and stats["estimated"] >= 3
    with outlast.connect(home / "runs.db") as rt:
        job, view = outlast.job("j", store=rt), rt.get("j")
        assert job.counts == {**counts, "open": 0} and len(job.to_pandas()) == 30
        frame = {row["key"]: [row["key"], row["ok"]] for row in job.to_pandas()[["key", "ok"]].to_dict("records")}
        spent = view.raw["spent_usd"]
        faces = {command: json.loads(outlast_prints(rt, *command.split(), "--json")) for command in ("inspect j", "show j", "jobs")}
        texts = {command: outlast_prints(rt, *command.split()) for command in ("inspect j", "show j", "jobs", "export j")}
        words = [told["repr"], repr(job), lives[1].stderr]
    rows = {key: [key, status == "done"] for key, status, _ in told["rows"]}
    written, exported = (list(map(json.loads, text.splitlines())) for text in ((home / "out.jsonl").read_text(), texts["export j"]))
    assert written == exported and frame == rows == {row["key"]: [row["key"], row["ok"]] for row in written}
    for face in (faces["inspect j"], faces["show j"], faces["jobs"]["jobs"][0]):
        assert {standing: face["job"][standing] for standing in counts} == counts and face["spent_usd"] == spent
    nano = sum(cost for _, _, cost in told["rows"])
    assert nano == view.raw["spent_nano_usd"] == round(stats["cost_usd"] * 1e9), "the items' costs are the job's"
    for text in words:
        assert "18 of 30 items done, 9 failed, 3 skipped, " in text and f"{spent} usd ({stats['estimated']} calls estimated)" in text
        assert "held for calls without an answer" in text
    assert "18 of 30 items done, 9 failed, 0 dead, 3 skipped" in texts["show j"]
    assert "done 18  failed 9  dead 0  skipped 3  open 0" in texts["inspect j"]
    assert all(f"{spent} usd" in texts[command] and f"estimated {stats['estimated']} calls" in texts[command] for command in ("inspect j", "show j"))
    assert spent in texts["jobs"]
