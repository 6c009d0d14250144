"""A batch of items, four at a time, each with an effect that has its item's key."""

import os

import outlast
import wire


def work(number):
    return wire.effect(f"item {number}", outlast.current().idempotency_key)


# Another job is another batch: nothing of it is done.
job = f"{wire.RUN}-{wire.LIFE}" if wire.FAULT == "a batch under another name" else wire.RUN
out = outlast.map(range(1, int(os.environ["CRASH_CALLS"]) + 1), work, job=job, key=str, concurrency=4, progress=False)
for result in out:
    wire.ack(f"item {result.key}", result.value)
    if result.key == "5":
        wire.dies_here("a batch under another name")
wire.ack("end", "")
