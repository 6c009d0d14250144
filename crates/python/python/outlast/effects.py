"""Work that a thread and a task do alike: a generator yields each thing it waits for, and a driver waits for it.

A step, an item of a batch, an approval and a generator's job are each written once, as a `Process`. `drive` carries its
effects out in the calling thread, `drive_async` in the calling task.
"""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import inspect
import threading
import time
from typing import Any, Awaitable, Callable, Generator, Protocol, TypeVar

from . import scope
from .errors import StepTimeout

T = TypeVar("T")

# Tests replace it, so as not to wait.
_sleep = time.sleep

# A result of one of these classes is certainly no coroutine.
_DATA = frozenset({str, int, float, bool, type(None), dict, list, tuple})

#: Seconds that a cancelled function has to tidy up.
_TIDY_S = 1.0


class Effect(Protocol):
    """Something that a process waits for, such as a commit: a `_native.Ticket`. An exception raised by the wait is raised
    in the process at this point."""

    def wait(self) -> Any:
        """Performs the effect in the calling thread, which blocks meanwhile."""

    def awaited(self) -> Awaitable[Any]:
        """Performs the effect without blocking the event loop."""


Process = Generator[Effect, Any, T]


def drive(process: Process[T]) -> T:
    """Runs a process to its end in the calling thread. Gives what it returns, or raises what it raises."""
    proceed: Any = process.send
    answer: Any = None
    stop: StopIteration | None = None
    try:
        while True:
            try:
                effect = proceed(answer)
            except StopIteration as over:
                return over.value  # type: ignore[no-any-return]
            except RuntimeError as e:
                # A generator cannot raise `StopIteration`: Python makes it the cause of a `RuntimeError`.
                if stop is None or e.__cause__ is not stop:
                    raise
                raise stop from None
            try:
                answer = effect.wait()
                proceed = process.send
            except BaseException as e:
                answer, proceed = e, process.throw
                stop = e if isinstance(e, StopIteration) else stop
    finally:
        # Breaks the cycle between an exception and this frame.
        del answer, stop


async def drive_async(process: Process[T]) -> T:
    """Runs a process to its end in the calling task."""
    proceed: Any = process.send
    answer: Any = None
    try:
        while True:
            try:
                effect = proceed(answer)
            except StopIteration as over:
                return over.value  # type: ignore[no-any-return]
            try:
                answer = await effect.awaited()
                proceed = process.send
            except BaseException as e:
                answer, proceed = e, process.throw
    finally:
        del answer


@dataclasses.dataclass(slots=True, eq=False)
class Do:
    """An effect that a thread has by one function, and a task by another."""

    wait: Callable[[], Any]
    awaited: Callable[[], Awaitable[Any]]


def sleep(seconds: float) -> Do:
    """Waits for some seconds."""
    return Do(lambda: _sleep(seconds), lambda: asyncio.sleep(seconds))


def beside(fn: Callable[[], Any]) -> Do:
    """Calls a function that blocks for a moment: in a task, in a thread beside the event loop."""
    return Do(fn, lambda: asyncio.to_thread(fn))


class Work:
    """A call of the user's function, and the words for errors about the call. As an effect: calls the function, where
    `outlast.current()` is `current`. Errors: the function's own; `StepTimeout`."""

    __slots__ = ("fn", "args", "kwargs", "timeout", "current", "late")

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    #: Seconds, None without a limit.
    timeout: float | None
    current: scope.Current[Any]
    #: The thread in which a late function still runs.
    late: threading.Thread | None

    def label(self) -> str:
        """The part of the thread's name that follows `outlast`, for a function with a timeout."""
        raise NotImplementedError

    def too_late(self, timeout: float) -> StepTimeout:
        """The error for a function that took longer than its timeout."""
        raise NotImplementedError

    def is_coroutine(self) -> TypeError:
        """The error for a plain function that returned a coroutine."""
        raise NotImplementedError

    def wait(self) -> Any:
        token = scope.variable.set(self.current)
        try:
            result = self.fn(*self.args, **self.kwargs) if self.timeout is None else self._in_thread(self.timeout)
        finally:
            scope.variable.reset(token)
        if type(result) not in _DATA and inspect.iscoroutine(result):
            result.close()
            raise self.is_coroutine()
        return result

    async def awaited(self) -> Any:
        token = scope.variable.set(self.current)
        try:
            awaitable = self.fn(*self.args, **self.kwargs)
            return await (awaitable if self.timeout is None else self._in_time(awaitable, self.timeout))
        finally:
            scope.variable.reset(token)

    def _in_thread(self, timeout: float) -> Any:
        """Calls the function in a thread of its own. A thread cannot be ended: a function that is too late keeps running,
        and its result is dropped."""
        result: list[Any] = []
        error: list[BaseException] = []
        context = contextvars.copy_context()

        def body() -> None:
            try:
                result.append(context.run(self.fn, *self.args, **self.kwargs))
            except BaseException as e:
                error.append(e)

        thread = threading.Thread(target=body, name=f"outlast {self.label()}", daemon=True)
        thread.start()
        thread.join(timeout)
        if error:
            raise error[0]
        if not result:
            self.late = thread
            raise self.too_late(timeout)
        return result[0]

    async def _in_time(self, awaitable: Awaitable[Any], timeout: float) -> Any:
        task = asyncio.ensure_future(awaitable)
        try:
            finished, _ = await asyncio.wait([task], timeout=timeout)
        except asyncio.CancelledError:
            task.cancel()
            raise
        if finished:
            return task.result()
        task.cancel()
        # The function may tidy up; its result or error is ignored.
        await asyncio.wait([task], timeout=_TIDY_S)
        raise self.too_late(timeout)
