"""Where a piece of code runs: in which run, step and try. A context variable, so that tasks do not mix."""

from __future__ import annotations

import contextvars
import hashlib
import threading
from typing import TYPE_CHECKING

from .errors import NoRun, RunHalted

if TYPE_CHECKING:
    from ._native import Change
    from .buffer import Changes
    from .opening import Opening
    from .runs import Run


class Current:
    """Where the caller runs."""

    __slots__ = ("run", "step", "_opened", "try_", "changes")

    def __init__(
        self, run: "Run", step: str | None = None, opened: "Opening | int | None" = None, try_: int = 0, changes: "Changes | None" = None
    ) -> None:
        self.run = run
        #: The key of the step, None outside of one.
        self.step = step
        self._opened = opened
        #: Which try of the step or item it is, from 1, over deaths and until it was given up; 0 outside of one.
        self.try_ = try_
        #: What the open step changes in the state, to be committed with its result.
        self.changes = changes

    def __repr__(self) -> str:
        return f"Current(run={self.run!r}, step={self.step!r}, try_={self.try_})"

    @property
    def is_open(self) -> bool:
        """Whether a step or an item is open here."""
        return self._opened is not None

    @property
    def seq(self) -> int | None:
        """The journal's number of the open step or item, committed: what requests to the proxy name. None outside of one."""
        opened = self._opened
        return opened if opened is None or isinstance(opened, int) else opened.seq

    @property
    def idempotency_key(self) -> str:
        """32 hex digits for effects elsewhere: the same for every try and every life of this step, or item."""
        whose = getattr(self.run, "_identity", self.run.id)
        return hashlib.sha256(f"{whose}\0{self.step or ''}".encode()).hexdigest()[:32]


class InStep(Current):
    """The same in a usual step: what few steps ask for is made when they do."""

    __slots__ = ("number", "is_ahead", "_changes", "_is_over")

    # Of all steps: it is held for a moment.
    _lock = threading.Lock()

    def __init__(self, run: "Run", key: str, number: int, tried: int, is_ahead: bool = False) -> None:
        self.run = run
        self.step = key
        #: The entry's number; where it is ahead of its commit, what it will be if no other process writes to the run.
        self._opened = self.number = number
        self.try_ = tried
        self.is_ahead = is_ahead
        self._changes: "Changes | None" = None
        self._is_over = False

    @property
    def seq(self) -> int:
        if self.is_ahead:
            seat = self.run._seat_or_raise(f"step {self.step!r}")
            begun = seat.begin(self.step, False, False, self.run._scope, self.run._within)  # type: ignore[arg-type]
            try:
                self._opened = self.number = begun.wait()[0]
            except RunHalted as e:
                raise self.run._halted(e) from None
            self.is_ahead = False
        return self.number

    @property
    def changes(self) -> "Changes":  # type: ignore[override]
        from .buffer import Changes

        with InStep._lock:
            if self._changes is None:
                self._changes = Changes(self.run.id)
                if self._is_over:
                    self._changes.seal()
            return self._changes

    def seal(self) -> "list[Change]":
        """All changes of the step; none can be added any more."""
        with InStep._lock:
            self._is_over = True
            changes = self._changes
        return [] if changes is None else changes.seal()


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
