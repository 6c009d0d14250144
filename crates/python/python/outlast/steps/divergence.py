"""Divergence: a program does a step that earlier lives did not do, while recorded steps of its name are left over."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from .. import codec
from ..errors import StepDiverged

if TYPE_CHECKING:
    from .life import Call


def check(call: "Call") -> None:
    """Checks whether a step without a recorded result is a divergence.

    Only while one thread or task runs all steps: of several, one may be ahead of steps that another has yet to replay.
    Errors: `StepDiverged`; with `on_divergence="live"` a warning instead.
    """
    run, memory = call.run, call.memory
    recorded = memory.recorded
    assert recorded is not None
    unused = recorded.unused(call.name) if recorded.is_sequential else None
    if unused is None:
        return
    if memory.beside is not None and memory.beside.is_anybody():
        recorded.be_concurrent()
        return
    seq, _, count = unused
    had = json.loads(run._engine.value(run._no, seq)).get("args", [])
    message = (
        f"step {call.shown()} was not done by earlier lives of run {run.id}, which have {count} of its name "
        f"left unused: {_difference(codec.shown(call.args, call.kwargs), had)}"
    )
    if run._on_divergence == "live":
        memory.warn_once(message)
        return
    raise StepDiverged(
        message,
        hint='make the program do the same steps again, give the step a key=, or open the run with on_divergence="live"',
    )


def _difference(now: list[str], had: list[str]) -> str:
    for i, (a, b) in enumerate(zip(now, had)):
        if a != b:
            return f"argument {i + 1} is {a}, and was {b}"
    if len(now) != len(had):
        return f"it has {len(now)} arguments, and had {len(had)}"
    return "its arguments differ beyond what is shown" if now else "it is done more often"
