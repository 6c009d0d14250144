"""The run, step and try that a piece of code runs in, with the changes of the state that commit with it. A context variable:
tasks do not mix."""

from __future__ import annotations

import contextvars
import hashlib
import threading
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from .errors import AlreadySettled, Conflict, ReadOnlyNamespace, RunHalted
from .opening import RunHandle

if TYPE_CHECKING:
    from ._native import Change

#: The run: for programs `outlast.Run`.
R = TypeVar("R", bound=RunHandle)

Place = tuple[str, str, str]


class Changes:
    """The changes of one try of one step of the run `run_id`, in order. Any thread may add to them."""

    def __init__(self, run_id: str) -> None:
        self._own = f"run:{run_id}"
        self._lock = threading.Lock()
        self._changes: list[Change] = []
        self._last: dict[Place, tuple[int, bytes | None]] = {}
        self._sealed = False

    def add(self, changes: list[Change]) -> None:
        """Adds changes, all or none. An expected version counts the step's earlier changes.

        Errors: `Conflict`; `ReadOnlyNamespace`; `AlreadySettled` when the step is over, as after its timeout.
        """
        with self._lock:
            if self._sealed:
                raise AlreadySettled("the step that changes the state here is over: nothing more commits with it")
            made = [self._rebased(change) for change in changes]
            for namespace, agent, key, value, _ in made:
                place = (namespace, agent, key)
                self._last[place] = (self.last(*place)[0] + 1, value)
            self._changes += made

    def _rebased(self, change: "Change") -> "Change":
        """Lowers the expected version by the step's own earlier changes: for the engine, they are one transaction."""
        namespace, agent, key, value, expected = change
        if namespace.startswith("run:") and namespace != self._own:
            raise ReadOnlyNamespace(
                f'namespace "{namespace}" is written by its own run only',
                hint="write it from within the run, or use another namespace",
            )
        mine = self.last(namespace, agent, key)[0]
        if expected is None or not mine:
            return change
        if expected < mine:
            raise Conflict(
                f'key "{key}" of agent "{agent}" in namespace "{namespace}" was expected at version {expected}, '
                f"and is at {mine} or above: this step alone has changed it {mine} times",
                hint="read the key again and decide anew",
            )
        return (namespace, agent, key, value, expected - mine)

    def last(self, namespace: str, agent: str, key: str) -> tuple[int, bytes | None]:
        """The number of changes of a key, and the value of the last one (None: deleted, or no change)."""
        return self._last.get((namespace, agent, key), (0, None))

    def seal(self) -> list[Change]:
        """Returns all changes and refuses further ones."""
        with self._lock:
            self._sealed = True
            return self._changes


class Current(Generic[R]):
    """The run, the step and the try that a piece of code runs in: what `outlast.current()` gives."""

    __slots__ = ("run", "step", "try_", "_seq", "_changes")

    def __init__(
        self, run: R, step: str | None = None, seq: int | None = None, try_: int = 0, changes: Changes | None = None
    ) -> None:
        #: The run; in an item of a batch, the item's view of the job's run.
        self.run = run
        #: The key of the step, None outside of a step.
        self.step = step
        self._seq = seq
        #: The number of the try, from 1. Tries are counted over deaths until the step or item is given up; 0 outside of both.
        self.try_ = try_
        self._changes = changes

    def __repr__(self) -> str:
        return f"Current(run={self.run!r}, step={self.step!r}, try_={self.try_})"

    @property
    def is_open(self) -> bool:
        """Whether the code runs in a step or an item."""
        return self._seq is not None

    @property
    def seq(self) -> int | None:
        """The journal's number of the open step or item, which requests to the proxy name; None outside of both."""
        return self._seq

    @property
    def changes(self) -> Changes | None:
        """Changes of the state that commit with the result of the open step or item; None outside of both."""
        return self._changes

    @property
    def idempotency_key(self) -> str:
        """32 hex digits to use as a key for effects in other systems: the same in every try and every life of this step or
        item."""
        return hashlib.sha256(f"{self.run._identity}\0{self.step or ''}".encode()).hexdigest()[:32]


class OpenStep(Current[R]):
    """`Current` inside a step. Values that few steps use are made on first use."""

    __slots__ = ("is_ahead", "_is_over")

    # One lock for all steps: it is held for a moment.
    _lock = threading.Lock()

    def __init__(self, run: R, key: str, number: int, tried: int, is_ahead: bool) -> None:
        self.run = run
        self.step = key
        self._seq = number
        self.try_ = tried
        self._changes = None
        #: Whether the opening was answered ahead of its commit. The number then changes if another process writes first.
        self.is_ahead = is_ahead
        self._is_over = False

    @property
    def number(self) -> int:
        """The entry's number, as the answer to the opening gave it."""
        return self._seq  # type: ignore[return-value]

    @property
    def seq(self) -> int:
        """The entry's number, once the opening is committed. Errors: `RunHalted`, `LeaseLost`."""
        if self.is_ahead:
            open_run = self.run._open_run_or_raise(f"step {self.step!r}")
            begun = open_run.begin(self.step, False, False, self.run._scope, self.run._within)  # type: ignore[arg-type]
            try:
                self._seq = begun.wait()[0]
            except RunHalted as e:
                raise self.run._halted(e) from None
            self.is_ahead = False
        return self._seq  # type: ignore[return-value]

    @property
    def changes(self) -> Changes:
        with OpenStep._lock:
            if self._changes is None:
                self._changes = Changes(self.run.id)
                if self._is_over:
                    self._changes.seal()
            return self._changes

    def seal(self) -> list[Change]:
        """Returns all changes of the step and refuses further ones."""
        # In this order: changes that another thread makes at this moment are seen here, or sealed there.
        self._is_over = True
        changes = self._changes
        return [] if changes is None else changes.seal()


variable: contextvars.ContextVar[Current[Any] | None] = contextvars.ContextVar("outlast", default=None)
