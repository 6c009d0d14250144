"""PydanticAI: model requests and tools are done once over all lives, under names that stay."""

import functools
import json
import os
import random
import re
import signal
import sqlite3
import sys
import threading
import traceback

import pytest
from pydantic_ai import Agent, ModelResponse, ModelRetry, TextPart, ToolCallPart
from pydantic_ai.models.function import FunctionModel

import outlast
from outlast.pydantic_ai import OutlastDurability


class Bed:
    """An agent that calls two tools, and what was asked of its model and its tools."""

    def __init__(self, die_at=None, **options):
        self.asked, self.done, self.die_at = 0, [], die_at
        self.agent = Agent(FunctionModel(self._answer), name="clerk", capabilities=[OutlastDurability(**options)])

        @self.agent.tool_plain(metadata={"outlast": "read"})
        def look(name: str) -> str:
            return self._tool("look", name)

        @self.agent.tool_plain
        def charge(cents: int) -> str:
            return self._tool("charge", cents)

    def _answer(self, messages, info):
        self.asked += 1
        said = sum(m.kind == "response" for m in messages)
        calls = [ToolCallPart("look", {"name": "ann"}), ToolCallPart("charge", {"cents": 5})]
        return ModelResponse([calls[said]] if said < 2 else [TextPart("done")])

    def _tool(self, name, argument):
        self.done.append((name, argument))
        if self.die_at == name:
            raise KeyboardInterrupt
        return f"{name} {argument}"


def lives(rt, *beds):
    for bed in beds:
        try:
            with rt.run("r"):
                assert bed.agent.run_sync("go").output == "done"
                raise ZeroDivisionError
        except (ZeroDivisionError, KeyboardInterrupt):
            pass


def test_a_later_life_asks_no_model_and_calls_no_tool(rt):
    first, then = Bed(), Bed()
    lives(rt, first, then)
    assert (first.asked, first.done) == (3, [("look", "ann"), ("charge", 5)]) and (then.asked, then.done) == (0, [])


def test_a_fork_asks_no_model_and_calls_no_tool_that_its_origin_did(rt):
    first, then = Bed(), Bed()
    with rt.run("r") as run:
        assert first.agent.run_sync("go").output == "done"
        run.snapshot("after")
    with rt.run("r", from_snapshot="after"):
        assert then.agent.run_sync("go").output == "done"
    assert (first.asked, len(first.done)) == (3, 2) and (then.asked, then.done) == (0, [])


def test_the_names_that_are_persisted_stay_what_they_are(rt):
    """They are what a run of yesterday is found by: a change strands it."""
    lives(rt, Bed())
    with sqlite3.connect(f"file:{rt.place}?mode=ro", uri=True) as db:
        keys = [key for (key,) in db.execute("SELECT key FROM entries WHERE key IS NOT NULL ORDER BY seq")]
    names = [key.partition("(")[0].rpartition("/")[0] if key.startswith("tool/") else key.partition("(")[0] for key in keys]
    assert names == NAMES


NAMES = [
    "clerk__model.request",
    "tool/clerk__function_toolset__<agent>.call_tool:look",
    "clerk__model.request",
    "tool/clerk__function_toolset__<agent>.call_tool:charge",
    "clerk__model.request",
]


def test_a_tool_that_a_death_cut_off_is_repeated_only_if_it_reads(rt):
    first, then = Bed(die_at="look"), Bed(die_at="charge")
    lives(rt, first, then)
    assert first.done == [("look", "ann")] and then.done == [("look", "ann"), ("charge", 5)] and then.asked == 1
    with pytest.raises(outlast.StepInDoubt, match=r"step \S*charge\(\w+=5\) of run r was begun before"):
        with rt.run("r"):
            Bed().agent.run_sync("go")


@pytest.mark.parametrize("said", ["receipt", {"kind": "tool-return", "cents": 5}, {"kind": "receipt"}, [1], None])
def test_what_a_person_says_of_a_tool_in_doubt_is_its_result(rt, said):
    """Bug: a result that was given by `outlast resolve` was taken for a payload of PydanticAI's, and the agent raised in each life."""
    lives(rt, Bed(die_at="charge"))
    with pytest.raises(outlast.StepInDoubt) as doubt:
        with rt.run("r") as run:
            Bed().agent.run_sync("go")
    key = re.search(r"tool/\S+call_tool:charge/[\w-]+", doubt.value.hint)[0]
    with rt.run("r") as run:
        run.resolve("charge", key=key, result=said)
        result = Bed().agent.run_sync("go")
    given = [part.content for message in result.all_messages() for part in message.parts if part.part_kind == "tool-return"]
    assert result.output == "done" and given == ["look ann", said]


def test_a_retry_that_a_tool_asks_for_is_replayed_too(rt):
    calls = []

    def agent():
        def answer(messages, info):
            calls.append("model")
            said = sum(m.kind == "response" for m in messages)
            return ModelResponse([ToolCallPart("charge", {"cents": said})] if said < 2 else [TextPart("done")])

        made = Agent(FunctionModel(answer), name="clerk", capabilities=[OutlastDurability()])

        @made.tool_plain
        def charge(cents: int) -> str:
            calls.append(cents)
            if cents == 0:
                raise ModelRetry("more than that")
            return "receipt"

        return made

    for _ in range(2):
        with pytest.raises(ZeroDivisionError):
            with rt.run("r"):
                assert agent().run_sync("go").output == "done"
                raise ZeroDivisionError
    assert calls == ["model", 0, "model", 1, "model"]


def test_outside_of_a_run_nothing_is_recorded(rt):
    bed = Bed()
    assert bed.agent.run_sync("go").output == bed.agent.run_sync("go").output == "done" and bed.asked == 6


def test_an_effect_that_is_none_is_refused():
    with pytest.raises(ValueError, match="'twice'"):
        OutlastDurability(effect="twice")


KILLS = int(os.environ.get("OUTLAST_TEST_KILLS", "12"))
PAYMENTS = 3


def a_life(store, name, log, dies_at):
    """A life of an agent that pays and sends, killed at its so manieth call of a Python function; 0: never. Gives how many it made."""
    calls = 0

    def killing(frame, event, argument):
        nonlocal calls
        calls += event == "call"
        if calls == dies_at:
            os.kill(os.getpid(), signal.SIGKILL)

    def answer(messages, info):
        said = sum(m.kind == "response" for m in messages)
        if said == 2 * PAYMENTS:
            return ModelResponse([TextPart("done")])
        return ModelResponse([ToolCallPart(("pay", "send")[said % 2], {"number": said // 2}, tool_call_id=f"call_{said}")])

    agent = Agent(FunctionModel(answer), name="clerk", capabilities=[OutlastDurability()])

    def did(what):
        with open(log, "a") as file:
            print(what, file=file)
        # Work behind the effect: kills hit there, too.
        return "".join(map(lambda letter: letter, what + " " * 4000)).strip()

    @agent.tool_plain(metadata={"outlast": "idempotent"})
    def pay(number: int) -> str:
        return did(f"pay {number} {outlast.current().idempotency_key}")

    @agent.tool_plain
    def send(number: int) -> str:
        return did(f"send {number}")

    rt = outlast.connect(store)
    # Tools run in threads.
    threading.setprofile(killing)
    sys.setprofile(killing)
    try:
        while not is_done(rt, name, agent, log):
            pass
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    rt.close()
    return calls


def is_done(rt, name, agent, log):
    """Runs the agent. Where it stopped at something in doubt, a person looks whether it was sent, and says so."""
    try:
        with rt.run(name) as run:
            try:
                assert agent.run_sync("go").output == "done"
                return True
            except outlast.StepInDoubt as doubt:
                key = re.search(r"tool/\S+/call_\d+", f"{doubt} {doubt.hint}")[0]
                what = f"send {int(key.rpartition('_')[2]) // 2}"
                sent = log.exists() and what in log.read_text().splitlines()
                run.resolve(key.split("/")[1], key=key, **({"result": what} if sent else {"rerun": True}))
                raise
    except outlast.StepInDoubt:
        return False


def forked(body):
    """Runs `body` in a child: whether it came to its end and was not killed. What it gives is written to the pipe."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.write(writer, str(body()).encode())
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    os.close(writer)
    with open(reader) as told:
        said = told.read()
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert status in (0, -signal.SIGKILL), f"exit {status}"
    return int(said) if status == 0 else None


def test_an_agent_killed_at_random_pays_once_under_each_key_and_sends_nothing_twice_unasked(home):
    """Twelve kills; as many as OUTLAST_TEST_KILLS says."""
    log = home / "log"
    calls = forked(lambda: a_life(home / "runs.db", "clean", log, 0))
    rng, kills, runs = random.Random(18), 0, 0
    while kills < KILLS:
        log.unlink(missing_ok=True)
        runs += 1
        while True:
            # Drawn here: a child's draws are not ours. A life of replays may make more calls than the clean one.
            dies_at = rng.randint(1, 2 * calls)
            if forked(functools.partial(a_life, home / "runs.db", f"r{runs}", log, dies_at)) is not None:
                break
            kills += 1
        did = log.read_text().splitlines()
        assert sorted(line for line in did if line.startswith("send")) == [f"send {n}" for n in range(PAYMENTS)]
        assert len({line for line in did if line.startswith("pay")}) == PAYMENTS
