"""The state of a store that is opened here: the engine in this process, no server.

Inside a run of the same store, what is written carries the run, its attempt and its fence. Inside a step it commits
with the step's result.
"""

from __future__ import annotations

import json
from typing import Any

from .. import _native, scope, versions
from ..opening import RunHandle, Store
from ..scope import Changes
from ..versions import StateResult
from .reads import Local


class Embedded(Local):
    """The backend of a `Statehouse` on a store that is opened in this process."""

    def __init__(self, store: Store, first_committer: bool) -> None:
        super().__init__(_native.States.of(store._engine))
        self._store = store
        self._first_committer = first_committer

    def __repr__(self) -> str:
        return self._store.place

    def close(self) -> None:
        """Does nothing. The store stays open until the process ends."""

    def health(self) -> str:
        self._states.position()
        return "ok"

    def version(self) -> str:
        return f"outlast {_native.__version__}"

    # --- transactions

    def begin(self, timeout_ms: int | None) -> str:
        return self._states.begin(timeout_ms)

    def write(self, id: str, namespace: str, agent: str, key: str, value: Any, expected: int | None) -> None:
        self._states.change(id, namespace, agent, key, versions.encode(value), expected)

    def delete(self, id: str, namespace: str, agent: str, key: str, expected: int | None) -> None:
        self._states.change(id, namespace, agent, key, None, expected)

    def see(self, id: str, namespace: str, agent: str, key: str) -> StateResult:
        own, value, snapshot = self._states.see(id, namespace, agent, key)
        before = self.at(namespace, agent, key, "position", snapshot)
        step, its = self._buffered(namespace, agent, key)
        return self._over(before, step + own, value if own else its)

    def commit(self, id: str) -> int:
        run = self._run()
        if run is None:
            return self._states.commit(id, None, self._first_committer)
        open_run = run._open_run_or_replay()
        if open_run is None:
            # A completed run only replays: the state is what it was.
            self._states.abort(id)
            return 0
        changes = self._changes()
        if changes is None:
            return self._states.commit(id, open_run, self._first_committer)
        snapshot, taken = self._states.take(id)
        if self._first_committer:
            taken = [self._unchanged(change, snapshot, changes) for change in taken]
        changes.add(taken)
        return 0

    def abort(self, id: str) -> None:
        self._states.abort(id)

    def outcome(self, id: str) -> int | None:
        return self._states.outcome(id)

    def _unchanged(self, change: _native.Change, snapshot: int, changes: Changes) -> _native.Change:
        """The change, with the key's version at the begin of the transaction as the one it expects."""
        namespace, agent, key, value, expected = change
        if expected is not None:
            return change
        stood = self.at(namespace, agent, key, "position", snapshot).version
        return (namespace, agent, key, value, stood + changes.last(namespace, agent, key)[0])

    # --- the run and the step around

    def _run(self) -> RunHandle | None:
        current = scope.variable.get()
        return current.run if current is not None and current.run._store is self._store else None

    def _changes(self) -> Changes | None:
        current = scope.variable.get()
        return current.changes if current is not None and self._run() is not None else None

    def _buffered(self, namespace: str, agent: str, key: str) -> tuple[int, bytes | None]:
        changes = self._changes()
        return (0, None) if changes is None else changes.last(namespace, agent, key)

    def _over(self, before: StateResult, own: int, value: bytes | None) -> StateResult:
        """The key as a transaction sees it: as it was before, with `own` changes over it, of which the last set `value`."""
        if not own:
            return before
        decoded = None if value is None else json.loads(value)
        return StateResult(decoded, before.version + own, 0, value is not None, before.key)

    def get(self, namespace: str, agent: str, key: str) -> StateResult:
        return self._over(self.at(namespace, agent, key, "", 0), *self._buffered(namespace, agent, key))
