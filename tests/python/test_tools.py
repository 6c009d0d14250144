"""`@outlast.tool`: an outcome on disk before it is given, replayed, and never a silent repeat of what was in doubt."""

import asyncio
import dataclasses
import json
import shlex
import subprocess
import threading
import time

import pytest

import outlast
from conftest import outlast_program
from outlast.tools import ToolSpec


@dataclasses.dataclass
class Receipt:
    number: int


class Declined(Exception):
    def __init__(self, code):
        super().__init__(f"declined: {code}")


def charge(done, **options):
    @outlast.tool(**options)
    def charge(amount):
        done.append((amount, outlast.current().idempotency_key))
        return Receipt(amount)

    return charge


@pytest.mark.parametrize("effect", ["read", "idempotent", "once"])
def test_a_call_is_done_once_and_its_outcome_replayed(lives, effect):
    done = []
    tool = charge(done, effect=effect)
    asked = lambda run: [tool(1), tool(2), tool(1)]  # noqa: E731
    assert lives(asked, asked) == [Receipt(1), Receipt(2), Receipt(1)]
    assert [amount for amount, _ in done] == [1, 2, 1] and len({key for _, key in done}) == 3


def test_a_task_awaits_its_tool(rt):
    done = []

    @outlast.tool
    async def look(name):
        await asyncio.sleep(0)
        done.append(name)
        return {"name": name}

    async def life():
        async with rt.run("r"):
            assert await asyncio.gather(look("a"), look("b")) == [{"name": "a"}, {"name": "b"}]
            if len(done) == 2 and not again:
                raise ZeroDivisionError

    again = []
    with pytest.raises(ZeroDivisionError):
        asyncio.run(life())
    again.append(True)
    asyncio.run(life())
    assert sorted(done) == ["a", "b"]


def test_an_exception_is_an_outcome_of_the_same_class_and_words(lives):
    calls = []

    @outlast.tool
    def pay(kind):
        calls.append(kind)
        raise {"value": ValueError("no such account", 7), "own": Declined("51")}[kind]

    def asked(run):
        with pytest.raises(ValueError) as value:
            pay("value")
        with pytest.raises((Declined, outlast.ToolFailed)) as own:
            pay("own")
        return repr(value.value), str(own.value)

    seen = []
    again = lives(lambda run: seen.append(asked(run)), asked)
    assert seen == [again] == [("ValueError('no such account', 7)", "declined: 51")]
    assert calls == ["value", "own"]


KILLED = """
    import os, sys
    import outlast

    @outlast.tool(effect=sys.argv[1], in_doubt=sys.argv[2])
    def charge(amount):
        with open("effects", "a") as f:
            f.write(f"{amount} {outlast.current().idempotency_key}\\n")
        if sys.argv[3] == "die":
            os.kill(os.getpid(), 9)
        return "paid"

    with outlast.connect("runs.db").run("r"):
        print(charge(5))
"""


@pytest.mark.parametrize("effect", ["read", "idempotent"])
def test_what_may_be_repeated_is_repeated_under_the_same_key(life, home, effect):
    life(KILLED, effect, "raise", "die", ok=False)
    assert life(KILLED, effect, "raise", "live", ok=True).stdout == "paid\n"
    first, second = (home / "effects").read_text().splitlines()
    assert first == second


def test_a_call_in_doubt_is_never_repeated_silently(life, home):
    life(KILLED, "once", "raise", "die", ok=False)
    refused = life(KILLED, "once", "raise", "live", ok=False)
    assert "StepInDoubt" in refused.stderr and "outlast resolve r" in refused.stderr
    told = life(KILLED, "once", "tell", "live", ok=True)
    assert told.stdout.startswith("outcome unknown: charge was begun before")
    assert len((home / "effects").read_text().splitlines()) == 1


def test_a_person_says_what_came_of_a_call_in_doubt(life, home):
    life(KILLED, "once", "raise", "die", ok=False)
    refused = life(KILLED, "once", "raise", "live", ok=False)
    key = shlex.split(refused.stderr.partition("outlast resolve r ")[2])[0]
    types(home / "runs.db", "resolve", "r", key, "--result", '"paid by hand"')
    assert life(KILLED, "once", "raise", "live", ok=True).stdout == "paid by hand\n"
    assert len((home / "effects").read_text().splitlines()) == 1


def test_another_call_than_earlier_lives_made_is_live_for_a_reader_and_refused_for_once(lives, rt):
    reader, payer = charge([], effect="read"), charge([], effect="once")
    assert lives(lambda run: reader(1), lambda run: reader(2)) == Receipt(2)
    with pytest.raises(ZeroDivisionError):
        with rt.run("q"):
            payer(1)
            raise ZeroDivisionError
    with pytest.raises(outlast.StepDiverged, match="argument 1 is 2, and was 1"):
        with rt.run("q"):
            payer(2)


def test_a_call_by_its_id_is_answered_again_within_a_life_and_after_it(lives):
    done = []
    spec = ToolSpec("charge")
    ask = lambda run: [spec.call(lambda n: done.append(n) or n, (5,), {}, id=i) for i in ("a", "a", "b")]  # noqa: E731
    assert lives(ask, ask) == [5, 5, 5] and done == [5, 5]


class Pause(Exception):
    pass


def test_a_tool_that_a_framework_pauses_runs_again_from_its_top(rt):
    done, paused = [], []
    spec = ToolSpec("charge", pauses=(Pause,))

    def pay():
        if not paused:
            paused.append(True)
            raise Pause
        done.append(1)
        return "paid"

    for _ in range(2):
        try:
            with rt.run("r"):
                assert spec.call(pay, (), {}, id="a") == "paid"
        except Pause:
            pass
    assert done == [1]


def test_a_denied_call_is_not_made(rt):
    done = []
    tool = charge(done, approve=True)
    with rt.run("r") as run:
        run.approve("charge", {"amount": 6}, side_effect="", timeout=1)  # nobody is asked for what only reads
        said = threading.Thread(target=deny, args=(rt,))
        said.start()
        with pytest.raises(outlast.ApprovalDenied):
            tool(5)
        said.join()
    assert done == []


def deny(rt):
    until = time.monotonic() + 60
    while not (found := json.loads(types(rt.place, "approvals", "--json"))["approvals"]):
        assert time.monotonic() < until
        time.sleep(0.02)
    assert found[0]["arguments"] == {"amount": 5}
    types(rt.place, "approve", found[0]["id"], "--deny")


def types(store, *words):
    """Runs a command as a person types it."""
    return subprocess.check_output([outlast_program(), "--store", store, *words], text=True)


def test_outside_of_a_run_a_call_is_a_plain_call():
    calls = []

    @outlast.tool
    def look(name):
        "Looks."
        calls.append(name)
        return object()

    assert look("a") is not look("a") and calls == ["a", "a"]
    assert (look.__name__, look.__doc__) == ("look", "Looks.")


def test_bad_options_name_the_tool():
    with pytest.raises(ValueError, match="'pay': effect wants 'read', 'idempotent' or 'once', had 'twice'"):
        outlast.tool(name="pay", effect="twice")(lambda: 1)
    with pytest.raises(TypeError):
        outlast.tool("pay")
