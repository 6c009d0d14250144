"""The client of all state, with the interface of the Statehouse client: `from outlast import Statehouse` replaces its import.

    client = Statehouse()
    with client.begin_transaction() as tx:
        tx.write(agent_id="researcher", key="step:0", value={"status": "pending"})
"""

from __future__ import annotations

import datetime
import os
import random
import time
from typing import TYPE_CHECKING, Any, Callable, Iterator, Literal

from .. import versions
from ..errors import Conflict, TransactionError
from ..versions import ReplayEvent, ResumePoint, StateResult

if TYPE_CHECKING:
    from .embedded import Embedded
    from .remote import Remote
    from ..runtime import Runtime

# Seconds between two looks of a follower for new changes.
_LOOK = 0.05
# The longest wait before an update is tried again, in seconds.
_AGAIN = 0.05
_sleep = time.sleep


class Statehouse:
    """The versioned, transactional state of agents: (namespace, agent, key) to JSON.

    Without arguments, the client works on the default store, opened in this process. `path` is a file; `store` is a file, a
    `postgres://` URL or a `Runtime`; `url` is the address of `outlast serve`, or `OUTLAST_URL` under `outlast run`.

    Inside `rt.run()` of the same store, writes carry the run, its attempt and its fence: a process that lost the run
    writes nothing. Inside a step, writes commit with the step's result. Threads may share a client.

    `conflicts="first-committer"`: a commit also fails when a key that it writes was written since the transaction began; with
    `url`, since the transaction first read or wrote the key.
    """

    def __init__(
        self,
        url: str | None = None,
        namespace: str = "default",
        *,
        path: str | os.PathLike[str] | None = None,
        store: "str | os.PathLike[str] | Runtime | None" = None,
        conflicts: Literal["expected", "first-committer"] = "expected",
    ) -> None:
        if sum(place is not None for place in (url, path, store)) > 1:
            raise ValueError("at most one of url, path and store is wanted")
        if conflicts not in ("expected", "first-committer"):
            raise ValueError(f"conflicts wants 'expected' or 'first-committer', had {conflicts!r}")
        self._namespace = namespace
        self._backend: "Embedded | Remote" = _backend(url, path if path is not None else store, conflicts == "first-committer")

    def __repr__(self) -> str:
        namespace = "" if self._namespace == "default" else f" {self._namespace!r}"
        return f"<outlast.Statehouse {self._backend!r}{namespace}>"

    def __enter__(self) -> "Statehouse":
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()

    def close(self) -> None:
        """Ends the connection to a `url`. A store stays open for the rest of the process, which uses it, too."""
        self._backend.close()

    def health(self) -> str:
        """Checks that the state can be read. Returns `"ok"`. Errors: `StoreError`, `NoServer`."""
        return self._backend.health()

    def version(self) -> tuple[str, str]:
        """The name and version of the program that answers, and an empty text."""
        return self._backend.version(), ""

    # --- writing

    def begin_transaction(self, timeout_ms: int | None = None, namespace: str | None = None) -> "Transaction":
        """Begins a transaction over any keys and agents. As a context manager, it commits on a clean exit, else aborts.

        The transaction reads what stood when it began. It expires after `timeout_ms` milliseconds (30,000): nothing of it is
        written then.
        """
        return Transaction(self, self._backend.begin(timeout_ms), namespace)

    def delete_state(self, agent_id: str, key: str, namespace: str | None = None, *, expect_version: int | None = None) -> int:
        """Deletes a key: a version without a value, the history stays. Returns the commit's number. On disk before it returns.

        `expect_version` as in `Transaction.write`. Errors: `Conflict`, `LeaseLost`.
        """
        with self.begin_transaction(namespace=namespace) as tx:
            tx.delete(agent_id=agent_id, key=key, expect_version=expect_version)
            return tx.commit()

    def update(self, agent_id: str, key: str, fn: Callable[[Any], Any], namespace: str | None = None) -> StateResult:
        """Sets a key to `fn(value)`, where `value` is None for a key that is not there, and loses no update.

        `fn` is called again when another writer was first: it should have no other effect. An exception of `fn` ends the
        update. Inside a step, the step fails with `Conflict`, and `retries=` tries it again.
        """
        tried = 0
        while True:
            tx = self.begin_transaction(namespace=namespace)
            try:
                with tx:
                    found = tx.get(agent_id=agent_id, key=key)
                    value = fn(found.value)
                    tx.write(agent_id=agent_id, key=key, value=value, expect_version=found.version)
                    commit = tx.commit()
                return StateResult(value, found.version + 1, commit, True, key)
            except Conflict:
                # Another writer was first, so there is always progress. The random wait keeps both from meeting again.
                tried += 1
                _sleep(random.uniform(0, min(_AGAIN, 0.001 * 2 ** min(tried, 10))))

    def transaction_outcome(self, id: str) -> int | None:
        """The commit number of a transaction whose commit's answer was lost; None when it was not committed.

        The outcome is known for 7 days; later, code `transaction_forgotten` is raised. None also for a transaction inside a
        step: the step's commit is its commit.
        """
        return self._backend.outcome(id)

    # --- reading

    def get_state(self, agent_id: str, key: str, namespace: str | None = None) -> StateResult:
        """The newest version of a key. A key that is not there has `exists=False`; it is no error."""
        return self._backend.get(self._in(namespace), agent_id, key)

    def get_state_at_version(
        self,
        agent_id: str,
        key: str,
        version: int | None = None,
        namespace: str | None = None,
        *,
        commit: int | None = None,
        time: datetime.datetime | float | None = None,
    ) -> StateResult:
        """A key as it was: at a `version`, after a `commit` of its namespace, or at a `time` (a datetime, or seconds since the Unix
        epoch). One of the three. Errors: `Compacted` where that was removed.
        """
        by, moment = versions.which(version, commit, time)
        return self._backend.at(self._in(namespace), agent_id, key, by, moment)

    def history(self, agent_id: str, key: str, namespace: str | None = None) -> list[StateResult]:
        """All kept versions of a key, oldest first, deletes among them."""
        return list(self._backend.history(self._in(namespace), agent_id, key))

    def list_namespaces(self) -> list[str]:
        """All namespaces of the store, in the order of their UTF-8 bytes."""
        return self._backend.namespaces()

    def list_agents(self, namespace: str | None = None) -> list[str]:
        """A namespace's agents, in the order of their UTF-8 bytes."""
        return self._backend.agents(self._in(namespace))

    def list_keys(self, agent_id: str, namespace: str | None = None, *, prefix: str = "") -> list[str]:
        """An agent's keys, in the order of their UTF-8 bytes. Reads no values."""
        return self._backend.keys(self._in(namespace), agent_id, prefix)

    def scan_prefix(self, agent_id: str, prefix: str, namespace: str | None = None) -> list[StateResult]:
        """The keys that start with `prefix`, with their values, all at one moment."""
        return list(self.iter_prefix(agent_id, prefix, namespace))

    def iter_prefix(self, agent_id: str, prefix: str, namespace: str | None = None) -> Iterator[StateResult]:
        """Works as `scan_prefix`, but reads the keys page by page during the iteration."""
        return iter(self._backend.scan(self._in(namespace), agent_id, prefix))

    def resume_point(self, agent_id: str, prefix: str = "step:", namespace: str | None = None) -> ResumePoint:
        """The point at which a loop over `step:0`, `step:1`, … resumes, by their `"status"`: `"done"` or `"pending"`.

        The cost does not depend on the number of steps.
        """
        return self._backend.resume_point(self._in(namespace), agent_id, prefix)

    def replay(
        self,
        agent_id: str,
        start_ts: int | None = None,
        end_ts: int | None = None,
        namespace: str | None = None,
        *,
        start_time: datetime.datetime | float | None = None,
        end_time: datetime.datetime | float | None = None,
        follow: bool = False,
    ) -> Iterator[ReplayEvent]:
        """The changes of an agent's keys, one event a commit, in order. Both ends belong to the range.

        `follow=True` waits for more, up to `end_ts` if that is given. To resume a replay, begin at the last `commit_ts` + 1.
        Warns (`CompactedWarning`) where compaction has removed some changes.
        """
        if follow and end_time is not None:
            raise ValueError("follow wants end_ts or no end, had end_time")
        start, end = _end("start", start_ts, start_time), _end("end", end_ts, end_time)
        events = self._backend.events(self._in(namespace), agent_id, start, end)
        return _followed(events, end_ts) if follow else events.until_now()

    def replay_events(
        self, agent_id: str, start_ts: int | None = None, end_ts: int | None = None, namespace: str | None = None
    ) -> Iterator[ReplayEvent]:
        """The same as `replay`, by the name that the Statehouse client has for it beside `replay_pretty`."""
        return self.replay(agent_id, start_ts, end_ts, namespace)

    def replay_pretty(
        self,
        agent_id: str,
        start_ts: int | None = None,
        end_ts: int | None = None,
        namespace: str | None = None,
        verbose: bool = False,
    ) -> Iterator[str]:
        """The changes of an agent's keys for people, a line each: time (UTC), agent, WRITE or DEL, key, version, value.

        `verbose` shows values whole, and names each change's transaction and commit.
        """
        for event in self.replay(agent_id, start_ts, end_ts, namespace):
            for operation in event.operations:
                yield versions.line(event, operation, verbose)

    def _in(self, namespace: str | None) -> str:
        return self._namespace if namespace is None else namespace


class Transaction:
    """Changes of many keys and agents, committed all or not at all. Made by `Statehouse.begin_transaction`.

    `Transaction(client, id)` is one that was begun before, by its id.
    """

    def __init__(self, client: Statehouse, id: str, namespace: str | None = None) -> None:
        self._backend = client._backend
        self._namespace = client._in(namespace)
        self._over = ""
        #: Asks for its outcome, should the answer of its commit be lost.
        self.id = id

    def write(self, agent_id: str, key: str, value: Any, expect_version: int | None = None, namespace: str | None = None) -> None:
        """Sets a key to a JSON value.

        `expect_version`: the commit fails with `Conflict` unless the key had this version before the transaction (0: never
        written). Errors: `NotSerializable`, `TransactionError`.
        """
        self._go_on()
        self._backend.write(self.id, self._in(namespace), agent_id, key, value, expect_version)

    def delete(self, agent_id: str, key: str, expect_version: int | None = None, namespace: str | None = None) -> None:
        """Deletes a key: a version without a value, also when there is nothing to delete."""
        self._go_on()
        self._backend.delete(self.id, self._in(namespace), agent_id, key, expect_version)

    def get(self, agent_id: str, key: str, namespace: str | None = None) -> StateResult:
        """A key as the transaction sees it: its own changes, else what stood when it began."""
        self._go_on()
        return self._backend.see(self.id, self._in(namespace), agent_id, key)

    def commit(self) -> int:
        """Commits all changes, on disk before `commit` returns. Returns the commit's number; 0 when there is nothing to commit.

        Inside a step, the changes commit with the step's result, and `commit` returns 0. Whatever is raised, the transaction
        is over.
        Errors: `Conflict` with both versions, `TransactionError`, `LeaseLost`, `ReadOnlyNamespace`.
        """
        self._go_on()
        self._over = "committed"
        return self._backend.commit(self.id)

    def abort(self) -> None:
        """Ends the transaction without a commit. Idempotent. Errors: `TransactionError` after a commit."""
        if self._over == "committed":
            self._go_on()
        self._over = "aborted"
        self._backend.abort(self.id)

    def __enter__(self) -> "Transaction":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        if self._over:
            return
        if kind is None:
            self.commit()
        else:
            self.abort()

    def _go_on(self) -> None:
        if self._over:
            raise TransactionError(f"transaction {self.id} is over: it was {self._over}", code="transaction_not_found")

    def _in(self, namespace: str | None) -> str:
        return self._namespace if namespace is None else namespace


def _backend(url: str | None, store: Any, first_committer: bool) -> "Embedded | Remote":
    if url is not None:
        from .remote import Remote

        return Remote(url, first_committer)
    from .embedded import Embedded
    from ..runtime import Runtime

    return Embedded(store if isinstance(store, Runtime) else Runtime(store), first_committer)


def _end(name: str, commit: int | None, time: datetime.datetime | float | None) -> tuple[str, int] | None:
    if commit is None and time is None:
        return None
    if commit is not None and time is not None:
        raise ValueError(f"{name}_ts and {name}_time exclude each other")
    return versions.which(None, commit, time)


def _followed(events: Any, end_ts: int | None) -> Iterator[ReplayEvent]:
    while True:
        yield from events.until_now()
        if end_ts is not None and events.head >= end_ts:
            return
        _sleep(_LOOK)
