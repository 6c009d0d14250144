"""The published Statehouse client against ADDRESS for SECONDS: prints transactions/s and replayed events/s."""

import sys
import time

from statehouse import Statehouse

address, seconds = sys.argv[1], float(sys.argv[2])
client = Statehouse(url=address)
value = {"status": "done", "action": "look it up", "result": "there it was"}

done, began = 0, time.monotonic()
while time.monotonic() - began < seconds:
    with client.begin_transaction() as tx:
        tx.write(agent_id="python", key=f"step:{done}", value=value)
    done += 1
transactions = done / (time.monotonic() - began)

began = time.monotonic()
events = sum(1 for _ in client.replay(agent_id="python"))
print(transactions, events / (time.monotonic() - began))
