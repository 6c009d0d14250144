"""Threads and tasks beside the one that does a step: one may then rightly be ahead of what another has yet to replay."""

from __future__ import annotations

import asyncio
import threading
import weakref
from typing import Any


class Beside:
    """The thread that opened a run, and the threads and tasks that were there before. Later ones may be the run's workers."""

    def __init__(self) -> None:
        self._opener = threading.get_ident()
        self._threads = {thread.ident for thread in threading.enumerate()}
        self._tasks: weakref.WeakSet[Any] = weakref.WeakSet(_tasks())

    def is_anybody(self) -> bool:
        """Whether another thread or task than the caller's may be at work in the run."""
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

