"""The bell of a batch: it wakes the workers and the reader when something changed."""

from __future__ import annotations

import asyncio
import threading


class Bell:
    """Wakes threads that wait for a change."""

    def __init__(self, lock: threading.RLock) -> None:
        self.condition = threading.Condition(lock)

    def ring(self) -> None:
        self.condition.notify_all()


class AsyncBell:
    """Wakes tasks of one event loop that wait for a change. Any thread may ring."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._waiting: set[asyncio.Future[None]] = set()

    def ring(self) -> None:
        try:
            here = asyncio.get_running_loop() is self._loop
        except RuntimeError:
            here = False
        if here:
            self._wake()
        elif not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    async def ring_or(self, seconds: float | None) -> None:
        """Waits until somebody calls `ring`, for at most so many seconds."""
        future: asyncio.Future[None] = self._loop.create_future()
        self._waiting.add(future)
        try:
            await asyncio.wait([future], timeout=seconds)
        finally:
            self._waiting.discard(future)
