"""The article's complete example, "Resume After Crash", as a file that runs.

    outlast serve --grpc 127.0.0.1:50051
    python examples/statehouse/agent.py --task "look it up"

Its one wrong index is mended (in `find_resume_point`: `[1]`, not `[0]`), and the functions it leaves open are filled
in: a model that logs each time it is asked, and an API that does a thing once per idempotency key. `--crash POINT:STEP`
kills this process there, as kill -9 does: before (the step is stored), after (it, before the result), done (after it).
"""

import argparse
import os
import signal
import uuid
from pathlib import Path

from statehouse import Statehouse

MAX_STEPS = 4

parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
parser.add_argument("--url", default=os.environ.get("OUTLAST_GRPC_URL", "localhost:50051"), help="where the state is")
parser.add_argument("--task", help="what to do; asked for when it is left out")
parser.add_argument("--crash", default="", metavar="POINT:STEP", help="before, after or done")
parser.add_argument("--once", action="store_true", help="crash in the first attempt of a run only")
parser.add_argument("--logs", type=Path, default=Path("."), help="the directory of asked.log and done.log")
args = parser.parse_args()


# What the article leaves open.


def crash_here(point, step):
    first = os.environ.get("OUTLAST_ATTEMPT", "1") == "1"
    if args.crash == f"{point}:{step}" and (first or not args.once):
        os.kill(os.getpid(), signal.SIGKILL)


def append(name, line):
    with open(args.logs / name, "a") as log:
        log.write(line + "\n")


def decide_next_action(step):
    """The model. Each time it is asked costs money: a line in asked.log."""
    append("asked.log", f"{step}")
    return {"type": "api_call", "endpoint": f"/search/{step}", "id": str(uuid.uuid4())}


def call_api(endpoint, idempotency_key):
    """An API with idempotency keys: each does its thing once, a line in done.log, however often it is called."""
    append("called.log", f"{idempotency_key} {endpoint}")
    log = args.logs / "done.log"
    done = log.read_text() if log.exists() else ""
    if idempotency_key not in done:
        append("done.log", f"{idempotency_key} {endpoint}")
    return {"found": endpoint}


def is_complete(step):
    return step + 1 == MAX_STEPS


# The article.


def execute_action(action):
    if action["type"] == "api_call":
        # Use idempotency key
        return call_api(
            endpoint=action["endpoint"],
            idempotency_key=action["id"],
        )


def agent_loop_from_step(client, agent_id, start_step):
    step = start_step
    while step < MAX_STEPS:
        # A step that is stored as pending was decided already: its action is executed again, with the same id.
        pending = client.get_state(agent_id=agent_id, key=f"step:{step}")
        if pending.exists and pending.value["status"] == "pending":
            action = dict(pending.value["action"])
        else:
            # Think and act
            action = decide_next_action(step)
            crash_here("before", step)
            # Store before executing (intention)
            with client.begin_transaction() as tx:
                tx.write(
                    agent_id=agent_id,
                    key=f"step:{step}",
                    value={"action": action, "status": "pending"},
                )
        # Execute. The worst place: the effect is there, and its result is not stored.
        result = execute_action(action)
        crash_here("after", step)
        # Store result (completion)
        with client.begin_transaction() as tx:
            tx.write(
                agent_id=agent_id,
                key=f"step:{step}",
                value={"action": action, "status": "done", "result": result},
            )
        crash_here("done", step)
        if is_complete(step):
            with client.begin_transaction() as tx:
                tx.write(agent_id=agent_id, key="answer", value={"answer": result})
            return result
        step += 1


def find_resume_point(client, agent_id) -> int:
    """Find the last completed step."""
    keys = client.list_keys(agent_id=agent_id)
    last_complete = -1
    for key in keys:
        if key.startswith("step:"):
            step_num = int(key.split(":")[1])
            state = client.get_state(agent_id=agent_id, key=key)
            if state.value.get("status") == "done":
                last_complete = max(last_complete, step_num)
    return last_complete


def run_agent(client, agent_id, task):
    # Store the task
    with client.begin_transaction() as tx:
        tx.write(agent_id=agent_id, key="task", value={"task": task})
    return agent_loop_from_step(client, agent_id, start_step=0)


def main():
    client = Statehouse(url=args.url)
    agent_id = "research-agent-001"
    # Check for resumable work
    task_state = client.get_state(agent_id=agent_id, key="task")
    if task_state.exists:
        last_step = find_resume_point(client, agent_id)
        answer = client.get_state(agent_id=agent_id, key="answer")
        if answer.exists:
            print(f"Task already complete: {dict(answer.value['answer'])}")
            return
        print(f"Resuming from step {last_step + 1}")
        result = agent_loop_from_step(client, agent_id, start_step=last_step + 1)
    else:
        # New task
        task = args.task or input("Enter task: ")
        result = run_agent(client, agent_id, task)
    print(f"Answer: {result}")


if __name__ == "__main__":
    main()
