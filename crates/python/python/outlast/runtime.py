"""The engine of one store, inside this process."""

from __future__ import annotations

import atexit
import contextlib
import datetime
import os
import threading
import weakref
from collections.abc import Mapping
from typing import Any, Literal

from . import _native, scope
from .budget import Budget
from .errors import UnknownRun
from .runs import Run
from .views import RunView

# One engine for each store and process: two connections are one instance with one heartbeat.
_open: dict[str, "Runtime"] = {}
_lock = threading.Lock()
_newest: "weakref.ref[Runtime] | None" = None


class Runtime:
    """An open store. `outlast.connect()` gives the same one for the same store."""

    place: str
    _engine: _native.Engine
    # The handles that are open, and held to look at them or change them.
    _live: "weakref.WeakValueDictionary[str, Run]"
    _opening: threading.Lock

    def __new__(cls, store: str | os.PathLike[str] | None = None) -> "Runtime":
        global _newest
        asked = None if store is None else os.fspath(store)
        if not isinstance(asked, str) and asked is not None:
            asked = os.fsdecode(asked)
        place = _native.Engine.resolve(asked)
        gone = _open.get(place)
        if gone is not None and not gone._engine.is_there():
            # Its file was removed or replaced, as one does to start afresh: what is there now is another store.
            with contextlib.suppress(Exception):
                gone.close()
        with _lock:
            found = _open.get(place)
            if found is None:
                found = super().__new__(cls)
                found._engine = _native.Engine.open(asked)
                found.place = found._engine.place
                found._live = weakref.WeakValueDictionary()
                found._opening = threading.Lock()
                _open[place] = found
            _newest = weakref.ref(found)
            return found

    def run(
        self,
        id: str | None = None,
        *,
        budget: Budget | None = None,
        tags: Mapping[str, str] | None = None,
        name: str | None = None,
        on_divergence: Literal["live", "halt"] | None = None,
        if_held: Literal["raise", "takeover"] = "raise",
        from_snapshot: "int | str | datetime.datetime | None" = None,
        policy: str | None = None,
    ) -> Run:
        """A run to be opened by `with` or `async with`: created, or resumed where it was.

        `id` is 1 to 128 of A-Z a-z 0-9 . _ : -; without one a new id is made. Limits, tags, name and rules are
        stored when the run is created; without a budget it may spend 5 usd. Under `outlast run`, the supervisor's id
        (or none) joins its attempt, and any other id is a child run, which spends of its parent's budget too.

        `on_divergence`: what a step does that earlier lives did not do, while steps of its name remain unused: raise
        `StepDiverged` (the default), run with a warning ("live"), or raise and let calls halt the run, too ("halt").
        `if_held="takeover"` takes the run from a living process: your own forgotten notebook.

        `from_snapshot` opens a fork of run `id` instead: a child that shares what was done by a snapshot's name, the end of
        an attempt (its number) or a time, and goes its own way from there. The same point is the same fork.

        `policy`: of a new run, `[policies.NAME]` of `outlast.toml`, or one that the store keeps: a budget, the tools there
        are, and what is asked for first (docs/guides/approvals.md). Of its limits and the budget's the lower one counts.

        Errors, on entering: `RunHeld`, `BudgetChanged`, `BudgetExceeded` (halted), `RunEnded` (cancelled).
        """
        run = Run(
            self,
            id,
            budget=budget,
            tags=_tags(tags),
            name=name,
            on_divergence=on_divergence,
            if_held=if_held,
            policy=policy,
        )
        run._from_snapshot = from_snapshot
        return run

    def resume_run(self, id: str, *, if_held: Literal["raise", "takeover"] = "raise") -> Run:
        """An existing run to go on with. It claims nothing until its first step or loop.

        A context manager too; without `with`, it is left `interrupted` when the process ends.
        Errors: `UnknownRun`.
        """
        self._engine.view(id)
        return Run(self, id, budget=None, tags={}, name=None, on_divergence=None, if_held=if_held, lazy=True)

    def get(self, id: str) -> RunView:
        """The run as it is committed. Claims nothing. Errors: `UnknownRun`."""
        return RunView.parse(self._engine.view(id))

    def close(self) -> None:
        """Leaves what is open as `interrupted`, and closes the store. Idempotent; done at exit by itself."""
        with _lock:
            if _open.get(self.place) is self:
                del _open[self.place]
        for run in list(self._live.values()):
            run._leave("interrupt", quiet=True)
        self._engine.close()

    def __enter__(self) -> "Runtime":
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<outlast.Runtime {self.place}>"


def connect(store: str | os.PathLike[str] | None = None) -> Runtime:
    """Opens a store: the default one, a file, or `postgres://USER@HOST/DATABASE`. No server is needed.

    The default is that of the command line: `OUTLAST_STORE`, `outlast.toml`, then
    `~/.local/state/outlast/outlast.db`. A file is made when it is not there. In a process forked from one that has a
    store open, call it again. Errors: `StoreError`.
    """
    return Runtime(store)


def _tags(tags: Mapping[str, str] | None) -> dict[str, str]:
    if tags is not None and not isinstance(tags, Mapping):
        raise TypeError(f"tags wants texts by name, had {tags!r}")
    return dict(tags or {})


def default() -> Runtime:
    """The runtime that was opened last, else that of the default store."""
    found = _newest() if _newest is not None else None
    if found is not None and _open.get(found.place) is found:
        return found
    return connect()


def parent_of(runtime: Runtime, id: str | None) -> int | None:
    """The number of the supervisor's run, which a run of another id is a child of."""
    supervised = os.environ.get("OUTLAST_RUN_ID")
    if not supervised or supervised == id:
        return None
    try:
        raw = runtime.get(supervised).raw
    except UnknownRun:
        # Another store than the supervisor's: no relation.
        return None
    return int(raw["no"]) if raw["status"] in ("running", "waiting") else None  # type: ignore[call-overload]


def _close_all() -> None:
    for runtime in list(_open.values()):
        try:
            runtime.close()
        except Exception:
            # The process ends: what is open is found by whoever comes next.
            pass


def _after_fork() -> None:
    # The child has the parent's handles, and none of its threads: they are told apart by their pid.
    global _lock
    _lock = threading.Lock()
    scope.InStep._lock = threading.Lock()
    _open.clear()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
