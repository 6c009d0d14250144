"""Where a piece of code runs: in which run, step and try. A context variable, so that tasks do not mix."""

from __future__ import annotations

import contextvars
import dataclasses
import hashlib
from typing import TYPE_CHECKING

from .errors import NoRun

if TYPE_CHECKING:
    from .buffer import Changes
    from .runs import Run


@dataclasses.dataclass(frozen=True)
class Current:
    """Where the caller runs."""

    run: "Run"
    #: The key of the step, None outside of one.
    step: str | None = None
    #: The journal's number of the open step: what requests to the proxy name.
    seq: int | None = None
    #: Which try of the step or item it is, from 1, over deaths and until it was given up; 0 outside of one.
    try_: int = 0
    #: What the open step changes in the state, to be committed with its result.
    changes: "Changes | None" = dataclasses.field(default=None, repr=False, compare=False)

    @property
    def idempotency_key(self) -> str:
        """32 hex digits for effects elsewhere: the same for every try and every life of this step, or item."""
        whose = getattr(self.run, "_identity", self.run.id)
        return hashlib.sha256(f"{whose}\0{self.step or ''}".encode()).hexdigest()[:32]


variable: contextvars.ContextVar[Current | None] = contextvars.ContextVar("outlast", default=None)


def current() -> Current:
    """The run, step and try that the caller runs in. Errors: `NoRun` outside of any."""
    found = variable.get()
    if found is None:
        raise NoRun(
            "outlast.current() was called outside of a run",
            hint="call it inside `with rt.run(…):`; a new thread needs contextvars.copy_context().run(…)",
        )
    return found
