"""The steps that earlier lives of a run recorded, the keys that this life has used, and who else works in the run beside it."""

from __future__ import annotations

import asyncio
import threading
import weakref
from typing import TYPE_CHECKING, Any

from ..errors import DivergenceWarning, DuplicateKey
from ..say import warn

if TYPE_CHECKING:
    from .. import _native


class Memory:
    """The recorded steps of a run, as one life uses them; of an item, as one try does."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.recorded: "_native.Recorded | None" = None
        self.beside: Beside | None = None
        #: Outcomes of tool calls of this life by their key: a framework that runs a node again asks for them again.
        self.outcomes: dict[str, Any] = {}
        self._explicit: set[str] = set()
        self._warned = False
        # Names of async steps that were asked for where no event loop runs, and not awaited yet.
        self._unawaited: list[str] = []

    def begin(self, recorded: "_native.Recorded") -> None:
        """Begins a life of the run with the steps that the store has recorded."""
        self.recorded = recorded
        self._explicit.clear()
        self.outcomes.clear()
        self._warned = False
        self._unawaited.clear()

    def take_explicit(self, key: str, run_id: str) -> str:
        """Takes the key that the caller gave for a step that begins. Errors: `DuplicateKey`."""
        self.recorded.note_strand()  # type: ignore[union-attr]
        with self._lock:
            if key in self._explicit:
                raise DuplicateKey(
                    f"the key {key!r} names two steps of run {run_id}",
                    hint="give each step a key of its own, or none",
                )
            self._explicit.add(key)
            return key

    def give_back(self, key: str, explicit: bool) -> None:
        """Frees the key of a step that was not run after all: the next equal step gets the same key."""
        if not explicit:
            self.recorded.give_back(key)  # type: ignore[union-attr]
            return
        with self._lock:
            self._explicit.discard(key)

    def promise(self, name: str) -> None:
        """Notes an async step that was called where no event loop runs, so that it may never be awaited."""
        if asyncio._get_running_loop() is None:
            self._unawaited.append(name)

    def awaited(self, name: str) -> None:
        """Notes that an async step begins."""
        if name in self._unawaited:
            self._unawaited.remove(name)

    def forgotten(self, run_id: str | None) -> TypeError | None:
        """The error for async steps that nobody awaited, without which a run is not complete; None if there are none."""
        if not self._unawaited:
            return None
        return TypeError(
            f"step {self._unawaited[0]!r} of run {run_id} has an async function, and was never awaited: open the run by "
            "`async with rt.run(…)` in an async function, and `await run.step(…)`; or pass a plain function"
        )

    def warn_once(self, message: str) -> None:
        """Warns of a divergence, once in a life of the run."""
        if not self._warned:
            self._warned = True
            warn(message, DivergenceWarning)


class Beside:
    """Threads and tasks that existed when a run was opened. Later ones may be the run's workers."""

    def __init__(self) -> None:
        self._opener = threading.get_ident()
        self._threads = {thread.ident for thread in threading.enumerate()}
        self._tasks: weakref.WeakSet[Any] = weakref.WeakSet(_tasks())

    def is_anybody(self) -> bool:
        """Returns whether a thread or task other than the caller's may be working in the run."""
        if threading.get_ident() != self._opener:
            return True
        if any(thread.ident not in self._threads for thread in threading.enumerate()):
            return True
        tasks = _tasks()
        current = asyncio.current_task() if tasks else None
        return any(task is not current and task not in self._tasks for task in tasks)


def _tasks() -> set[Any]:
    try:
        return asyncio.all_tasks()
    except RuntimeError:
        return set()
