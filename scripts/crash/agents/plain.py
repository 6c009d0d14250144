"""A program that knows nothing of Outlast: its questions one after another, every other one as a stream."""

import os

import wire

url, headers = os.environ["OPENAI_BASE_URL"], [("authorization", f"Bearer {os.environ['OPENAI_API_KEY']}")]
for number in range(1, int(os.environ["CRASH_CALLS"]) + 1):
    if wire.FAULT == "a call past the proxy" and number == 2:
        answer = wire.ask(number, f"http://127.0.0.1:{wire.OUTSIDE}/v1", headers)
    else:
        answer = wire.ask(number, url, headers, stream=number % 2 == 0)
    wire.ack(f"call {number}", answer)
    if number == 3 and wire.dies_here("an answer that is another one in the next life"):
        wire.ack(f"call {number}", "answer-3-0")
wire.ack("end", "")
