"""The oracle: what a run bought, did and was told, by the world outside, held against what Outlast says of it.

It knows nothing of how Outlast works but for three words of `outlast show`: what was spent, what is in doubt, and which
calls were lost. A fault may quote more of it. A list of faults comes back; a run without faults has lost nothing.
"""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass

from bed import Place, Strike
from outside import Broken
from scenarios import Outcome, Scenario

#: Whose death takes a call in flight with it.
PROXIES = {"supervisor", "guardian", "server", "database"}
#: What a tool that was cut off says instead of a receipt.
TOLD = "outcome unknown"


@dataclass
class Ledger:
    """What the world outside has of a run, in its order."""

    calls: dict[int, list[dict]]
    effects: dict[str, list[dict]]
    acks: dict[str, list[dict]]

    @staticmethod
    def of(lines: list[dict]) -> Ledger:
        ledger = Ledger(defaultdict(list), defaultdict(list), defaultdict(list))
        for line in lines:
            match line["kind"]:
                case "call":
                    ledger.calls[line["ask"]].append(line)
                case "effect":
                    ledger.effects[line["name"]].append(line)
                case "ack":
                    ledger.acks[line["what"]].append(line)
        return ledger

    @property
    def bought_nano_usd(self) -> int:
        return sum(call["cost_nano_usd"] for calls in self.calls.values() for call in calls)


def judged(scenario: Scenario, place: Place, outcome: Outcome, *, verify: bool = True) -> tuple[list[str], dict[str, int]]:
    """The faults of a run that has come to its end, and what it was told."""
    faults = list(outcome.faults)
    for n, life in enumerate(place.lives, 1):
        if life.hung:
            faults.append(f"life {n} did not end")
        if life.left:
            faults.append(f"life {n} left processes behind")
    sums = {"told": 0, "bought": 0, "again": 0}
    runs = [f"{place.run}-a", f"{place.run}-b"] if scenario.name == "serve" else [place.run]
    try:
        lines = place.bed.lines(place.run)
    except Broken as broken:
        return [*faults, str(broken)], sums
    for run in runs:
        ledger = Ledger.of([line for line in lines if line["run"] == run])
        faults += PARTS[scenario.name](scenario, ledger, outcome.strikes)
        if "end" not in ledger.acks:
            faults.append("it did not come to its end")
        if ledger.calls:
            code, shown = place.told("show", run)
            _, journal = place.told("journal", run)
            if code or "entries" not in journal:
                faults.append(f"it cannot be shown: {shown.get('error', {}).get('message', shown)}")
            else:
                faults += money(scenario, ledger, shown, journal["entries"])
            if scenario.name != "serve" and not place.fault:
                faults += lives(ledger, outcome, shown)
        for shown, last in outcome.halts:
            faults += limit(shown, Ledger.of([line for line in lines if line["n"] <= last]).bought_nano_usd)
        sums["told"] += sum(any(TOLD in str(ack["value"]) for ack in acks) for acks in ledger.acks.values())
        bought = [len(calls) for calls in ledger.calls.values() if calls]
        sums["bought"] += sum(bought)
        sums["again"] += sum(bought) - len(bought)
    if verify:
        code, said = place.told("verify")
        if code or said.get("damage"):
            faults.append(f"outlast verify: {said.get('error', {}).get('message', said)}")
    return faults, sums


def calls(scenario: Scenario, ledger: Ledger, strikes: list[Strike]) -> list[str]:
    """No acknowledged answer is lost; none is bought again but one that was in flight when its proxy died."""
    faults, deaths = [], [strike for strike in strikes if PROXIES & set(strike.killed)]
    for number in range(1, scenario.calls + 1):
        bought, given = ledger.calls[number], ledger.acks[f"call {number}"]
        for first, then in zip(bought, bought[1:]):
            if not between(deaths, first, then):
                faults.append(f"answer {number} was bought again although no proxy had died")
            if given and given[0]["n"] < then["n"]:
                faults.append(f"answer {number} was bought again after it had been acknowledged")
        faults += stable(f"answer {number}", given, {call["nonce"] for call in bought})
    return faults


def lives(ledger: Ledger, outcome: Outcome, shown: dict) -> list[str]:
    """An agent begins again only where something has died, or where its limit was raised. The fault says who was killed, and how
    its attempts ended: one that was not killed failed by itself, and was begun again by its supervisor."""
    count = len({ack["life"] for acks in ledger.acks.values() for ack in acks})
    if count <= len(outcome.strikes) + len(outcome.halts) + 1:
        return []
    killed = [f"{strike.death} killed {'+'.join(strike.killed) or 'nobody'}" for strike in outcome.strikes]
    ends = [" ".join([f"@{one['attempt']}", str(one["how"]), *one["last_lines"][-1:]]) for one in shown.get("attempts", [])]
    return [f"it lived {count} times, died {len(killed)} times {killed} and halted {len(outcome.halts)} times; its attempts: {ends}"]


def between(deaths: list[Strike], first: dict, then: dict) -> bool:
    return any(first["at_ns"] <= death.until_ns and death.at_ns <= then["at_ns"] for death in deaths)


def stable(what: str, given: list[dict], real: set[str]) -> list[str]:
    """What was acknowledged once is the same in each later life, and is something that the world outside gave."""
    if not given:
        return [f"{what} was never given"]
    values = [ack["value"] for ack in given]
    faults = [f"{what} was {values[0]!r}, and later {value!r}" for value in values if value != values[0]]
    if values[0] not in real:
        faults.append(f"{what} is {values[0]!r}, which nobody gave")
    return faults


def plain(scenario: Scenario, ledger: Ledger, strikes: list[Strike]) -> list[str]:
    return calls(scenario, ledger, strikes)


def steps(scenario: Scenario, ledger: Ledger, strikes: list[Strike]) -> list[str]:
    """Steps, tools and state: once, or told; and nothing that was acknowledged is done again."""
    faults = calls(scenario, ledger, strikes)
    for number in range(1, scenario.calls + 1):
        faults += repeatable(f"note {number}", ledger, ledger.acks[f"step {number}"])
        faults += repeatable(f"pay {number}", ledger, ledger.acks[f"idempotent {number}"])
        faults += once(f"charge {number}", ledger, ledger.acks[f"once {number}"])
    states = [ack["value"] for ack in ledger.acks["state"]]
    if states != sorted(states) or states[-1:] != [scenario.calls]:
        faults.append(f"the state went back, or was not finished: {states}")
    return faults


def mcp(scenario: Scenario, ledger: Ledger, strikes: list[Strike]) -> list[str]:
    faults = calls(scenario, ledger, strikes)
    for number in range(1, scenario.calls + 1):
        faults += once(f"charge {number}", ledger, ledger.acks[f"once {number}"])
    return faults


def once(name: str, ledger: Ledger, given: list[dict]) -> list[str]:
    """Faults of an effect that is done at most once; where there is no receipt, the agent was told that the outcome is unknown."""
    done = ledger.effects[name]
    faults = [f"{name} was done {len(done)} times"] if len(done) > 1 else []
    told = {ack["value"] for ack in given if TOLD in str(ack["value"])}
    return faults + stable(name, given, {str(line["n"]) for line in done} | told)


def repeatable(name: str, ledger: Ledger, given: list[dict]) -> list[str]:
    """Faults of an effect that may be done again: it was so only in another life, never once acknowledged, and with one key."""
    done, faults = ledger.effects[name], []
    if len({line["key"] for line in done}) > 1:
        faults.append(f"{name} had several idempotency keys")
    for first, then in zip(done, done[1:]):
        if first["life"] == then["life"]:
            faults.append(f"{name} was done again in one life")
        if given and given[0]["n"] < then["n"]:
            faults.append(f"{name} was done again after it had been acknowledged")
    return faults + stable(name, given, {str(line["n"]) for line in done})


def batch(scenario: Scenario, ledger: Ledger, _: list[Strike]) -> list[str]:
    faults = []
    for number in range(1, scenario.calls + 1):
        faults += repeatable(f"item {number}", ledger, ledger.acks[f"item {number}"])
    return faults


def loop(scenario: Scenario, ledger: Ledger, _: list[Strike]) -> list[str]:
    """A task that was acknowledged goes on at the stage that was, and no stage is begun twice."""
    faults, at = [], (0, 9)
    lines = sorted(ledger.acks["stage"] + ledger.acks["recovered"], key=lambda ack: ack["n"])
    for ack in lines:
        task, stage = map(int, re.findall(r"\d+", ack["value"]))
        if ack["what"] == "recovered" and not at <= (task, stage):
            faults.append(f"{at} was acknowledged, and {(task, stage)} recovered")
        if ack["what"] == "stage" and not at < (task, stage):
            faults.append(f"{(task, stage)} was begun again after {at}")
        at = max(at, (task, stage))
    if at[0] != scenario.calls:
        faults.append(f"its last task is {at[0]} of {scenario.calls}")
    return faults


def money(scenario: Scenario, ledger: Ledger, shown: dict, entries: list[dict]) -> list[str]:
    """Faults of the sum that Outlast charged: the provider sold the same, but for lost calls, of which nobody knows whether they arrived."""
    faults, bought = [], ledger.bought_nano_usd
    line = next(line for line in shown["budget"] if line["unit"] == "cost_nano_usd")
    charged, unbacked = line["spent"] + line["reserved"], shown["money"]["unbacked_nano_usd"]
    lost = [entry for entry in entries if entry["kind"] == "call" and entry["state"] in ("failed", "unknown")]
    doubt = sum(entry["spent_nano_usd"] + entry["held_nano_usd"] for entry in lost)
    if bought > charged + unbacked:
        faults.append(f"the provider sold {bought} nano-usd, and {charged} are charged")
    if charged - doubt > bought:
        faults.append(f"{charged} nano-usd are charged, {doubt} of them for lost calls, and {bought} were bought")
    if not lost and charged != bought:
        faults.append(f"{charged} nano-usd are charged, and {bought} were bought")
    faults += limit(shown, bought)
    if shown["status"] not in scenario.done:
        faults.append(f"it is {shown['status']}")
    return faults


def limit(shown: dict, bought: int) -> list[str]:
    line = next(line for line in shown["budget"] if line["unit"] == "cost_nano_usd")
    charged, unbacked = line["spent"] + line["reserved"], shown["money"]["unbacked_nano_usd"]
    if line["limit"] is None or max(charged, bought - unbacked) <= line["limit"]:
        return []
    return [f"the limit of {line['limit']} nano-usd was passed: {charged} charged, {bought} bought"]


PARTS = {"plain": plain, "budget": plain, "steps": steps, "mcp": mcp, "loop": loop, "serve": plain, "batch": batch, "move": plain}
