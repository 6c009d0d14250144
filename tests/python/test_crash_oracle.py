"""The oracle of `make crash`, on ledgers made by hand: what is sound has no fault, and each fault is found."""

import copy
import json
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts" / "crash"))

import judge  # noqa: E402
from bed import Strike  # noqa: E402
from outside import Broken, Chain, Log  # noqa: E402
from scenarios import BATCH, LOOP, PLAIN, STEPS  # noqa: E402

#: A supervisor's death between lines 10 and 11.
DEATH = Strike("self", "supervisor.9", 105, 106, ["supervisor"])
TOLD = "outcome unknown: charge(2) was begun before and may have been done"


def numbered(lines):
    """Lines with their places, each ten units of time behind the one before."""
    return [{"n": n, "at_ns": 10 * n, "life": "1", "key": "", **line} for n, line in enumerate(lines, 1)]


def bought(number, nonce):
    return {"kind": "call", "ask": number, "nonce": nonce, "cost_nano_usd": 100}


def did(name, key=""):
    return {"kind": "effect", "name": name, "key": key}


def said(what, value):
    return {"kind": "ack", "what": what, "value": value}


def plain_story():
    """Five questions; the fourth is sold again, because its proxy died before anybody had the answer."""
    lines = [line for n in (1, 2, 3) for line in (bought(n, f"a{n}"), said(f"call {n}", f"a{n}"))]
    lines += [said("other", "")] * 3 + [bought(4, "a4")]
    return lines + [bought(4, "b4"), said("call 4", "b4"), bought(5, "a5"), said("call 5", "a5")]


def steps_story():
    lines = []
    for n in range(1, STEPS.calls + 1):
        lines += [bought(n, f"a{n}"), said(f"call {n}", f"a{n}"), did(f"note {n}"), said(f"step {n}", str(len(lines) + 3))]
        lines += [did(f"charge {n}"), said(f"once {n}", str(len(lines) + 1)), did(f"pay {n}", f"k{n}")]
        lines += [said(f"idempotent {n}", str(len(lines))), said("state", n)]
    return lines


def faults(scenario, lines, strikes=(DEATH,)):
    return judge.PARTS[scenario.name](scenario, judge.Ledger.of(numbered(lines)), list(strikes))


def test_a_story_in_which_nothing_is_lost_has_no_fault():
    assert faults(PLAIN, plain_story()) == []
    assert faults(STEPS, steps_story()) == []


@pytest.mark.parametrize(
    "change, wanted",
    [
        (lambda lines: lines.append(bought(1, "b1")), "answer 1 was bought again after it had been acknowledged"),
        (lambda lines: lines.append(said("call 1", "b1")), "answer 1 was 'a1', and later 'b1'"),
        (lambda lines: lines.remove(said("call 5", "a5")), "answer 5 was never given"),
        (lambda lines: lines.remove(bought(5, "a5")), "answer 5 is 'a5', which nobody gave"),
    ],
)
def test_an_answer_that_is_lost_sold_twice_or_another_one_is_found(change, wanted):
    lines = plain_story()
    change(lines)
    assert wanted in faults(PLAIN, lines)


def test_an_answer_that_was_sold_twice_while_its_proxy_lived_is_found():
    agent = Strike("self", "agent.9", 105, 106, ["agent"])
    assert faults(PLAIN, plain_story(), [agent]) == ["answer 4 was bought again although no proxy had died"]


@pytest.mark.parametrize(
    "change, wanted",
    [
        (lambda lines: lines.append(did("charge 2")), "charge 2 was done 2 times"),
        (lambda lines: lines.append(did("pay 2", "k2")), "pay 2 was done again after it had been acknowledged"),
        (lambda lines: lines.append(did("pay 2", "k9")), "pay 2 had several idempotency keys"),
        (lambda lines: lines.append(did("note 1")), "note 1 was done again in one life"),
        (lambda lines: lines.append(said("state", 1)), "the state went back, or was not finished: [1, 2, 3, 1]"),
    ],
)
def test_an_effect_that_happens_again_and_a_state_that_goes_back_are_found(change, wanted):
    lines = steps_story()
    change(lines)
    assert wanted in faults(STEPS, lines)


def test_a_tool_that_was_cut_off_is_told_or_found():
    lines = steps_story()
    at = lines.index(did("charge 2"))
    receipt = lines[at + 1]
    assert faults(STEPS, [*lines[:at], said("other", ""), said("once 2", TOLD), *lines[at + 2 :]]) == []
    found = faults(STEPS, [*lines[:at], said("other", ""), receipt, *lines[at + 2 :]])
    assert found == [f"charge 2 is '{receipt['value']}', which nobody gave"]


def test_an_item_that_is_lost_is_found():
    lines = [line for n in range(1, BATCH.calls) for line in (did(f"item {n}", f"k{n}"), said(f"item {n}", str(2 * n - 1)))]
    assert faults(BATCH, lines) == ["item 10 was never given"]


def test_a_task_that_goes_back_is_found():
    lines = [said("stage", stage) for stage in ("1 0", "1 1", "1 2", "1 9", "2 0", "2 1")]
    rest = [said("stage", stage) for stage in ("2 2", "2 9")]
    assert faults(LOOP, [*lines, said("recovered", "2 1"), *rest]) == []
    assert faults(LOOP, [*lines, said("recovered", "2 0"), *rest]) == ["(2, 1) was acknowledged, and (2, 0) recovered"]
    assert faults(LOOP, [*lines, said("stage", "2 1"), *rest]) == ["(2, 1) was begun again after (2, 1)"]


def shown(spent, limit=1000):
    line = {"unit": "cost_nano_usd", "spent": spent, "reserved": 0, "limit": limit}
    return {"status": "completed", "budget": [line], "money": {"unbacked_nano_usd": 0}}


@pytest.mark.parametrize(
    "spent, entries, wanted",
    [
        (600, [], None),
        (500, [], "the provider sold 600 nano-usd, and 500 are charged"),
        (700, [], "700 nano-usd are charged, and 600 were bought"),
        (700, [{"kind": "call", "state": "failed", "spent_nano_usd": 100, "held_nano_usd": 0}], None),
    ],
)
def test_money_that_the_providers_log_does_not_have_is_found(spent, entries, wanted):
    found = judge.money(PLAIN, judge.Ledger.of(numbered(plain_story())), shown(spent), entries)
    assert wanted in found if wanted else found == []


def test_a_limit_that_was_passed_is_found():
    assert judge.limit(shown(600, 600), 600) == []
    assert judge.limit(shown(600, 599), 600) == ["the limit of 599 nano-usd was passed: 600 charged, 600 bought"]


def test_a_log_that_was_changed_is_found(tmp_path):
    log = Log(tmp_path / "log")
    for n in range(4):
        log.add(kind="call", run="r", cost_nano_usd=n)
    rows = (tmp_path / "log").read_text().splitlines()
    assert [line["n"] for line in Chain().lines("\n".join(rows))] == [1, 2, 3, 4]
    dearer = copy.deepcopy([json.loads(row) for row in rows])
    dearer[2]["line"]["cost_nano_usd"] = 9
    for changed in (rows[1:], rows[:1] + rows[2:], [*rows, rows[-1]], [json.dumps(row) for row in dearer]):
        with pytest.raises(Broken):
            Chain().lines("\n".join(changed))
