"""Changes of the state by an open step: committed with the step's result, or never."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from ..errors import AlreadySettled, Conflict, ReadOnlyNamespace

if TYPE_CHECKING:
    from .._native import Change

Place = tuple[str, str, str]


class Changes:
    """The changes of one try of one step of the run `run_id`, in order. Any thread may add to them."""

    def __init__(self, run_id: str) -> None:
        self._own = f"run:{run_id}"
        self._lock = threading.Lock()
        self._changes: "list[Change]" = []
        self._last: dict[Place, tuple[int, bytes | None]] = {}
        self._sealed = False

    def add(self, changes: "list[Change]") -> None:
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

    def seal(self) -> "list[Change]":
        """Returns all changes and refuses further ones."""
        with self._lock:
            self._sealed = True
            return self._changes
