"""The same work without Outlast: questions and a tool, from the start in each life."""

import os

import wire

url = f"http://127.0.0.1:{wire.OUTSIDE}/v1"
for number in range(1, int(os.environ["CRASH_CALLS"]) + 1):
    wire.ack(f"call {number}", wire.ask(number, url, []))
    wire.ack(f"once {number}", wire.effect(f"charge {number}"))
wire.ack("end", "")
