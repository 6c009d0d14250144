"""Rows that a plug-in keeps in a namespace of the state: the newest version of each only, so that what is deleted is gone."""

from __future__ import annotations

from typing import Iterator

from .. import _native, scope, versions
from ..opening import Store
from .reads import Local

#: A key and its new value; None deletes it. The last is the version that the key must have.
Change = tuple[str, bytes | None, int | None]

# Changes of one commit, where many rows go.
_AT_ONCE = 5_000


class Table:
    """The rows of one namespace, below its agents. Values are JSON texts."""

    def __init__(self, store: Store, namespace: str) -> None:
        self.store = store
        self._namespace = namespace
        self._states = _native.States.of(store._engine)
        self._reads = Local(self._states)
        store._engine.keep_newest(namespace)

    def row(self, agent: str, key: str) -> tuple[int, bytes | None, int]:
        """A row's version, value and time (milliseconds since the Unix epoch). A row that was deleted has a version, and no value."""
        found = self._states.get(self._namespace, agent, key)
        return (0, None, 0) if found is None else (found[1], found[2], found[3] // 1000)

    def scan(self, agent: str, prefix: str) -> Iterator[tuple[str, int, bytes]]:
        """Keys, versions and values of all rows below a prefix, in the order of their keys, at one moment."""
        for key, version, value, _ in versions.scan(self._states, self._namespace, agent, prefix):
            if value is not None:
                yield key, version, value

    def keys(self, agent: str, prefix: str) -> list[str]:
        return self._reads.keys(self._namespace, agent, prefix)

    def agents(self) -> list[str]:
        """All agents, also those whose rows are all deleted."""
        return self._reads.agents(self._namespace)

    def submit(self, agent: str, changes: list[Change]) -> "_native.Ticket[int]":
        """Begins a commit. Inside a run of the same store it carries the run's fence: a process that lost the run writes nothing."""
        made = [(self._namespace, agent, key, value, expected) for key, value, expected in changes]
        current = scope.variable.get()
        run = current.run if current is not None else None
        open_run = run._open_run if run is not None and run._store is self.store else None
        return self.store._engine.put(made) if open_run is None else open_run.put(made)

    def commit(self, agent: str, changes: list[Change]) -> None:
        """Commits the changes of an agent's rows: on disk before `commit` returns. Errors: `Conflict`, `LeaseLost`."""
        if changes:
            self.submit(agent, changes).wait()

    def remove(self, agent: str, keys: list[str], first: list[Change]) -> None:
        """Removes rows in as few commits as may be, the first of which has the changes `first`."""
        changes = [*first, *((key, None, None) for key in keys)]
        for start in range(0, len(changes), _AT_ONCE):
            self.commit(agent, changes[start : start + _AT_ONCE])
