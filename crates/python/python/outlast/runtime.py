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
from .kept import Files
from .opening import RunSpec, Store
from .runs import Run

_newest: "weakref.ref[Runtime] | None" = None


class Runtime(Store):
    """An open store. `outlast.connect()` gives the same runtime for the same store."""

    def __new__(cls, store: str | os.PathLike[str] | None = None) -> "Runtime":
        global _newest
        asked = None if store is None else os.fspath(store)
        if not isinstance(asked, str) and asked is not None:
            asked = os.fsdecode(asked)
        place = _native.Engine.resolve(asked)
        gone = cls._open.get(place)
        if gone is not None and not gone._engine.is_there():
            # The store's file was removed or replaced, for a fresh start: the path now holds another store.
            with contextlib.suppress(Exception):
                gone.close()
        with cls._open_lock:
            found: Any = cls._open.get(place)
            if found is None:
                found = super().__new__(cls)
                found._engine = _native.Engine.open(asked)
                found.place = found._engine.place
                found._live = weakref.WeakValueDictionary()
                found._batches = weakref.WeakSet()
                found._opening = threading.Lock()
                found._left_behind = []
                cls._open[place] = found
            _newest = weakref.ref(found)
            return found  # type: ignore[no-any-return]

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
        files: str | os.PathLike[str] | Files | None = None,
        files_from: Literal["as-died", "last-step"] = "as-died",
    ) -> Run:
        """A run, to be opened by `with` or `async with`: created, or resumed where it was.

        `id` is 1 to 128 of A-Z a-z 0-9 . _ : -; without `id` the run gets a new one. Limits, tags, name and rules are
        stored when the run is created; without a budget the run may spend 5 usd. Under `outlast run`, the supervisor's id
        (or none) joins the supervisor's attempt. Any other id is a child run, which spends of its parent's budget, too.

        `on_divergence` decides about a step that earlier lives did not do while steps of its name are left over: by default
        the step raises `StepDiverged`; "live" warns and does it; "halt" raises, and calls halt the run.
        `if_held="takeover"` takes the run from a living process, such as your own forgotten notebook.

        `from_snapshot` opens a fork of run `id`: a child that shares what was done by a snapshot (its name), the end of an
        attempt (its number) or a time, and goes its own way from there. The same point is the same fork.

        `policy` names `[policies.NAME]` of `outlast.toml`, or a policy that the store keeps, for a new run: a budget, the
        tools there are, and what a person is asked first (docs/guides/approvals.md). Of two limits, the policy's and the
        budget's, the lower one counts.

        `files` names a directory whose files are kept with the run, as each step leaves them: `outlast files` and `outlast
        undo` show them and bring them back (docs/guides/files.md). `outlast.Files` says which of them. `files_from="last-step"` begins a later life with the
        files as the last finished step left them; by default they are as they fell. A later life keeps them without being
        told. On another machine, with a store in PostgreSQL, the newest files are brought first.

        Errors, when the run is entered: `RunHeld`, `BudgetChanged`, `BudgetExceeded` (halted), `RunEnded` (cancelled).
        """
        return Run(self, RunSpec(id, budget, _tags(tags), name, on_divergence, if_held, policy, from_snapshot=from_snapshot, files=files, files_from=files_from))

    def resume_run(self, id: str, *, if_held: Literal["raise", "takeover"] = "raise") -> Run:
        """An existing run to go on with. The handle claims nothing until its first step or loop.

        The run is a context manager, too. Without `with`, it is left `interrupted` when the process ends.
        Errors: `UnknownRun`.
        """
        self._engine.view(id)
        return Run(self, RunSpec(id, if_held=if_held), lazy=True)

    def __enter__(self) -> "Runtime":
        return self

    def __exit__(self, *exc: Any) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<outlast.Runtime {self.place}>"


def connect(store: str | os.PathLike[str] | None = None) -> Runtime:
    """Opens a store: the default store, a file, or `postgres://USER@HOST/DATABASE`. No server is needed.

    The default store is that of the command line: `OUTLAST_STORE`, then `outlast.toml`, then
    `~/.local/state/outlast/outlast.db`. A missing file is made. Each process calls `connect` itself: a file that is open
    at a fork is refused in the child (`store_forked`); close it before, or start processes by `spawn` or `forkserver`.
    Errors: `StoreError`.
    """
    return Runtime(store)


def _tags(tags: Mapping[str, str] | None) -> dict[str, str]:
    if tags is not None and not isinstance(tags, Mapping):
        raise TypeError(f"tags wants texts by name, had {tags!r}")
    return dict(tags or {})


def default() -> Runtime:
    """The runtime that was opened last; without one, that of the default store."""
    found = _newest() if _newest is not None else None
    if found is not None and Store._open.get(found.place) is found:
        return found
    return connect()


def of(store: Any) -> Runtime:
    """The runtime of a `store=` argument: a runtime, a place, or None for the default."""
    if isinstance(store, Runtime):
        return store
    return default() if store is None else connect(store)


def _close_all() -> None:
    for runtime in list(Store._open.values()):
        try:
            runtime.close()
        except Exception:
            # The process ends: the next one finds open runs interrupted.
            pass


def _after_fork() -> None:
    # The child has the parent's handles, and none of its threads: they are told apart by their pid.
    Store._open_lock = threading.Lock()
    scope.OpenStep._lock = threading.Lock()
    Store._open.clear()


atexit.register(_close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
