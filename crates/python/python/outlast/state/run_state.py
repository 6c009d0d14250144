"""A run's state and context: versioned values that outlive its processes."""

from __future__ import annotations

import datetime
import functools
from typing import Any

from .. import _native, codec, scope, versions
from ..opening import RunHandle
from ..scope import Changes
from ..versions import StateResult
from .reads import Local


class State:
    """`run.state`: the run's own values by key, in the namespace `run:<id>`. A write is on disk before it returns.

    Inside a step of the run, or an item of the job, a write commits with the result: neither is there without the other,
    and a try that raises leaves nothing. The step or item itself reads its own writes. A completed run writes nothing.
    """

    _AGENT = ""

    def __init__(self, run: RunHandle) -> None:
        self._run = run

    @property
    def _namespace(self) -> str:
        return f"run:{self._run.id}"

    def put(self, key: str, value: Any, *, expected: int | None = None) -> None:
        """Stores JSON, a dataclass or a pydantic model as the newest version of `key`.

        `expected`: the version that the key must have now (0: absent). Errors: `Conflict` where it has another; inside a
        step, the step raises it. `NotSerializable`, `LeaseLost`.
        """
        self._change({key: codec.encode(value).encode()}, expected)

    def delete(self, key: str, *, expected: int | None = None) -> None:
        """Deletes `key`; its history stays. `expected` as in `put`. Errors: `Conflict`, `LeaseLost`."""
        self._change({key: None}, expected)

    def get(self, key: str, default: Any = None) -> Any:
        """The newest value of `key`, or `default`."""
        return self.get_versioned(key, default)[1]

    def get_versioned(self, key: str, default: Any = None) -> tuple[int, Any]:
        """The newest version of `key` and its value. Without a value, `default`; version 0 for a key that never was."""
        found = self._states.get(self._namespace, self._AGENT, key)
        version, value = (found[1], found[2]) if found else (0, None)
        changes = self._open_step()
        if changes is not None:
            mine, newest = changes.last(self._namespace, self._AGENT, key)
            version, value = version + mine, newest if mine else value
        return version, default if value is None else codec.decode(value)

    def history(self, key: str) -> list[StateResult]:
        """All kept versions of `key`, oldest first, deletes among them."""
        return list(self._reads.history(self._namespace, self._AGENT, key))

    def at(
        self,
        key: str,
        *,
        version: int | None = None,
        commit: int | None = None,
        time: datetime.datetime | float | None = None,
    ) -> StateResult:
        """The key as it was: at a `version`, after a `commit` of this run's state, or at a `time` (a datetime, or seconds since the
        Unix epoch). One of the three. Errors: `Compacted` where that was removed.
        """
        by, moment = versions.which(version, commit, time)
        return self._reads.at(self._namespace, self._AGENT, key, by, moment)

    @functools.cached_property
    def _states(self) -> _native.States:
        return _native.States.of(self._run._engine)

    @functools.cached_property
    def _reads(self) -> Local:
        return Local(self._states, codec.decode)

    def _open_step(self) -> Changes | None:
        current = scope.variable.get()
        return current.changes if current is not None and current.run is self._run else None

    def _change(self, values: dict[str, bytes | None], expected: int | None = None) -> None:
        made = [(self._namespace, self._AGENT, key, value, expected) for key, value in values.items()]
        open_run = self._run._open_run_or_replay()
        # A completed run only replays: its state is what it was.
        if open_run is None:
            return
        changes = self._open_step()
        if changes is None:
            open_run.put(made).wait()
        else:
            changes.add(made)


class Context(State):
    """`run.context`: the task that the agent is at, in values by key: `run.context.set(task_id="1411")`."""

    _AGENT = "context"

    def set(self, **values: Any) -> None:
        """Sets all of the values in one commit, or none of them. On disk before it returns. Errors: as `State.put`."""
        if values:
            self._change({key: codec.encode(value).encode() for key, value in values.items()})
