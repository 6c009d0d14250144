"""The shop that the clerks work for: charges are lines of the file `charged`, and a clerk can be made to die in one.

Each line of the file `deaths` is a moment in which the process and those that it started are killed, as by a machine's end,
in their order: `before ann`, `after ann`.
"""

import contextlib
import os
import pathlib
import signal

CUSTOMERS = ("ann", "bob")
#: Lines by which `outlast mock` plays the model. A real one takes no notice of them.
SCRIPT = "".join(f'mock: tool charge {{"customer": "{c}"}}\n' for c in CUSTOMERS) + "mock: reply all are charged"
TASK = f"Charge each customer.\n{SCRIPT}"


def charge(customer: str, key: str | None = None) -> str:
    """Charges a customer. A charge under a known `key` is not made again, as with most payment services."""
    dies("before", customer)
    log = pathlib.Path("charged")
    line = f"{customer} {key}"
    if key is None or not log.exists() or line not in log.read_text().splitlines():
        with log.open("a") as file:
            print(line, file=file)
    dies("after", customer)
    return f"receipt of {customer}"


def dies(when: str, customer: str) -> None:
    """Kills the process, and those that it started, where its next death is this one."""
    deaths = pathlib.Path("deaths")
    lines = deaths.read_text().splitlines() if deaths.exists() else []
    if lines[:1] == [f"{when} {customer}"]:
        deaths.write_text("".join(f"{line}\n" for line in lines[1:]))
        kill_tree(os.getpid())


def kill_tree(pid: int) -> list[int]:
    """Kills a process and all below it at once. Gives their pids."""
    pids = [pid]
    for found in pids:
        # Stopped first, so that none goes on while others are killed, or starts another.
        if found != os.getpid():
            send(found, signal.SIGSTOP)
        for task in pathlib.Path(f"/proc/{found}/task").glob("*/children"):
            pids += map(int, task.read_text().split())
    for found in reversed(pids):
        send(found, signal.SIGKILL)
    return pids


def send(pid: int, number: signal.Signals) -> None:
    """Sends a signal to a process that may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
