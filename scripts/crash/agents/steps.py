"""An agent with steps, model calls in them, three kinds of tools, and a state. CRASH_FAULT plants a fault in it."""

import os

import outlast
import wire


def answer(number):
    at = outlast.endpoint()
    return wire.ask(number, f"{at.url}/v1", [("authorization", f"Bearer {at.token}"), *at.headers.items()])


def note(number):
    return wire.effect(f"note {number}")


@outlast.tool(in_doubt="tell")
def charge(number):
    "Charges once, or somebody is told."
    return wire.effect(f"charge {number}")


@outlast.tool(effect="idempotent")
def pay(number):
    "Pays with a key that the other side knows again."
    key = outlast.current().idempotency_key
    if wire.FAULT == "a key that changes":
        key += wire.LIFE
    number = wire.effect(f"pay {number}", key)
    wire.dies_here("a key that changes")
    return number


def charge_without_a_key(number):
    receipt = wire.effect(f"charge {number}")
    wire.dies_here("a tool without a key")
    return receipt


if wire.FAULT == "a tool without a key":
    charge = charge_without_a_key


with outlast.connect().run() as run:
    was = run.state.get("at")
    wire.ack("state", 0 if was is None else was)
    for number in range(1, int(os.environ["CRASH_CALLS"]) + 1):
        wire.ack(f"call {number}", run.step("answer", answer, number))
        wire.ack(f"step {number}", run.step("note", note, number))
        wire.ack(f"once {number}", charge(number))
        wire.ack(f"idempotent {number}", pay(number))
        if (run.state.get("at") or 0) < number:
            run.state.put("at", number)
        wire.ack("state", run.state.get("at"))
        if number == 2 and wire.dies_here("a state that goes back"):
            run.state.put("at", 1)
            wire.ack("state", run.state.get("at"))
wire.ack("end", "")
