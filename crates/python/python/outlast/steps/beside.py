"""Detects concurrent work in a run: with several threads or tasks, the order of steps is no sign of divergence."""

from __future__ import annotations

import asyncio
import threading
import weakref
from typing import Any


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

