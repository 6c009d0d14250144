"""The state of a store that is opened here: the engine in this process, no server.

Inside a run of the same store, what is written carries the run, its attempt and its fence. Inside a step it commits
with the step's result.
"""

from __future__ import annotations

import json
import warnings
from typing import Any, Iterator

from .. import _native, scope, versions
from ..errors import CompactedWarning
from ..opening import RunHandle, Store
from ..scope import Changes
from ..versions import Operation, ReplayEvent, ResumePoint, StateResult

_EVENTS = 1_000


class Embedded:
    """The backend of a `Statehouse` on a store that is opened in this process."""

    def __init__(self, store: Store, first_committer: bool) -> None:
        self._store = store
        self._states = _native.States.of(store._engine)
        self._first_committer = first_committer
        self._run_ids: dict[int, str | None] = {}

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
        own, value, before = self._states.see(id, namespace, agent, key)
        step, its = self._buffered(namespace, agent, key)
        return self._over(key, before, step + own, value if own else its)

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
        stood = self._states.at(namespace, agent, key, "position", snapshot)
        return (namespace, agent, key, value, (stood[1] if stood else 0) + changes.last(namespace, agent, key)[0])

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

    def _over(self, key: str, before: _native.Item | None, own: int, value: bytes | None) -> StateResult:
        """The key as a transaction sees it: as it was before, with `own` changes over it, of which the last set `value`."""
        if not own:
            return versions.result(key, before, self._run_id)
        decoded = None if value is None else json.loads(value)
        return StateResult(decoded, (before[1] if before else 0) + own, 0, value is not None, key)

    def _run_id(self, run: int) -> str | None:
        if run not in self._run_ids:
            self._run_ids[run] = self._states.run_id(run)
        return self._run_ids[run]

    # --- reads

    def get(self, namespace: str, agent: str, key: str) -> StateResult:
        return self._over(key, self._states.get(namespace, agent, key), *self._buffered(namespace, agent, key))

    def at(self, namespace: str, agent: str, key: str, by: str, moment: int) -> StateResult:
        return versions.result(key, self._states.at(namespace, agent, key, by, moment), self._run_id)

    def history(self, namespace: str, agent: str, key: str) -> list[StateResult]:
        return [versions.result(key, raw, self._run_id) for raw in versions.history(self._states, namespace, agent, key)]

    def namespaces(self) -> list[str]:
        return self._states.namespaces()

    def agents(self, namespace: str) -> list[str]:
        return self._states.agents(namespace)

    def keys(self, namespace: str, agent: str, prefix: str) -> list[str]:
        return versions.keys(self._states, namespace, agent, prefix)

    def scan(self, namespace: str, agent: str, prefix: str) -> Iterator[StateResult]:
        return (versions.result(raw[0], raw, self._run_id) for raw in versions.scan(self._states, namespace, agent, prefix))

    def resume_point(self, namespace: str, agent: str, prefix: str) -> ResumePoint:
        return ResumePoint(*self._states.resume_point(namespace, agent, prefix))

    def events(
        self, namespace: str, agent: str, start: tuple[str, int] | None, end: tuple[str, int] | None
    ) -> "Events":
        return Events(self._states, namespace, agent, start, end)


class Events:
    """An agent's commits in order. Iterated again after the end, it gives the commits made since."""

    def __init__(
        self,
        states: _native.States,
        namespace: str,
        agent: str,
        start: tuple[str, int] | None,
        end: tuple[str, int] | None,
    ) -> None:
        self._states = states
        self._range = (namespace, agent, start, end)
        self._after = 0
        #: The namespace's newest commit when it was asked last: all up to it was given.
        self.head = 0
        self._warned = False

    def until_now(self) -> Iterator[ReplayEvent]:
        """The commits up to the newest that were not given yet."""
        event: ReplayEvent | None = None
        head = self._states.head(self._range[0])
        while True:
            compacted, page = self._states.events(*self._range, self._after, _EVENTS)
            if compacted and not self._warned:
                self._warned = True
                warnings.warn("the replay is not whole: compaction has removed some of its versions", CompactedWarning, stacklevel=3)
            for position, transaction, (key, version, value, commit, at_us, _, _) in page:
                if event is not None and event.commit_ts != commit:
                    yield event
                    event = None
                if event is None:
                    event = ReplayEvent(transaction or "", commit, [], versions.moment(at_us), self._range[1])
                decoded = None if value is None else json.loads(value)
                event.operations.append(Operation(key, decoded, version, value is None))
                self._after = position
            # A page is read at one moment, which shows commits whole: only a full one ends within one.
            if len(page) < _EVENTS:
                break
        if event is not None:
            yield event
        self.head = head
