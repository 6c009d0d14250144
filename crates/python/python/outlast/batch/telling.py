"""Messages of a batch to people: at its start, and when it is left."""

from __future__ import annotations

import os
import shlex
import sys

from .. import budget
from . import fleeting
from .plan import Plan
from .progress import Stats


def start(job: str, stats: Stats, plan: Plan, spent_nano: int, place: str, resumes: bool) -> list[str]:
    """The lines printed when a batch starts: one that is always printed, and warnings before anything is paid for."""
    where = f"store {place}"
    if not resumes:
        lines = [f"new job {job}: {some(stats.total, 'item')}, {where}"]
    else:
        text = f"resuming: {stats.done:,} of {stats.total:,} done, {budget.about(spent_nano)} usd spent, {where}"
        others = [(stats.dead, "dead"), (stats.skipped, "skipped"), (plan.vanished, "not in the input any more")]
        lines = [text + "".join(f"; {count:,} {what}" for count, what in others if count)]
    if plan.old_code:
        keep = "1 item keeps" if plan.old_code == 1 else f"{plan.old_code:,} items keep"
        run = "1 runs" if plan.left == 1 else f"{plan.left:,} run"
        lines.append(f"the function changed: {keep} the result of its old code, and {run} with the new (version=… decides it)")
    kind = fleeting.kind(place)
    if kind is not None:
        lines.append(f"the store is on {kind}, which {fleeting.KINDS[kind]}: name another with store=…")
    return lines


def dropped(job: str, stats: Stats) -> str:
    """The message for a batch whose handle was dropped before the batch was over."""
    return (
        f"job {job} stops with {stats.pending:,} of {some(stats.total, 'item')} not done: nobody holds its results any more. "
        "Start it again to go on; out.wait() waits for all of them"
    )


def resume_hint() -> str:
    """The command that continues the job, for people at a terminal."""
    if not sys.argv or not os.path.isfile(sys.argv[0]) or "ipykernel" in sys.argv[0]:
        # No script to name: a notebook, an interactive interpreter, or python -c.
        return "start it again to go on"
    return "start it again to go on: " + shlex.join([os.path.basename(sys.executable or "python"), *sys.argv])


def some(count: int, one: str) -> str:
    return f"{count:,} {one}" if count == 1 else f"{count:,} {one}s"
