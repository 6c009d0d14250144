"""Two clients of `outlast serve`, at once, each with a run of its own. They ask again until they are answered."""

import os
import sys
import threading
import time

import wire

PORT = int(os.environ["CRASH_SERVER"])


def client(name):
    run = f"{wire.RUN}-{name}"
    headers = [("authorization", "Bearer k"), ("x-outlast-run", run), ("x-outlast-attempt", "1")]
    for number in range(1, int(os.environ["CRASH_CALLS"]) + 1):
        while True:
            try:
                said = wire.ask(number, f"http://127.0.0.1:{PORT}/v1", headers, run, stream=number % 2 == 0)
                break
            except wire.Refused as refused:
                if refused.status < 500:
                    raise
            except (OSError, ValueError):
                pass
            # A server that is being started.
            time.sleep(0.01)
        wire.ack(f"call {number}", said, run)
    wire.ack("end", "", run)


threads = [threading.Thread(target=client, args=(name,)) for name in "ab"]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
sys.exit(0)
