"""What the caller of a batch holds: its results as they come, its counts, its end."""

from __future__ import annotations

import datetime
import asyncio
import os
import threading
import weakref
from typing import Any, AsyncIterator, Callable, Generator, Iterable, Iterator, Literal, Mapping

from .. import runtime as runtimes, steps
from ..budget import Budget
from ..retry import Retry
from ..say import say
from . import options as asked, telling, work
from .core import Core
from .progress import Stats
from .queue import Take, Wait
from .results import Result


class Batch:
    """A running batch of `outlast.map`: iterate over it for its results, or `wait()` for its end.

    Its workers are threads; they go on while nobody reads. Dropped, or at the end of the process, it stops claiming and
    finishes what runs.
    """

    def __init__(self, core: Core) -> None:
        self._core = core
        count = core.wanted_workers
        core.workers_start(count)
        for _ in range(count):
            threading.Thread(target=_work, args=(core,), name="outlast batch", daemon=True).start()
        _mind(self, core)

    @property
    def stats(self) -> Stats:
        """The counts as they are now."""
        return self._core.stats

    @property
    def failed(self) -> list[Result]:
        """Failed and dead items so far."""
        return self._core.failed

    def __iter__(self) -> Iterator[Result]:
        return self

    def __next__(self) -> Result:
        """The next result. Errors: at the end, what stopped the batch (`BudgetExceeded`, `NothingMetered`, …)."""
        core = self._core
        try:
            with core.lock:
                while True:
                    over = core.over
                    result = core.next_result()
                    if result is not None or over:
                        break
                    core.bell.condition.wait()
            if result is not None:
                core.told(result)
                return result
        except KeyboardInterrupt:
            self._interrupted()
            raise
        core.all_told()
        raise StopIteration

    def wait(self) -> "Batch":
        """Waits until it is over, and returns it. Errors: what stopped it."""
        for _ in self:
            pass
        return self

    def _interrupted(self) -> None:
        """Ctrl-C: nothing more is claimed, and what runs is finished; a second one leaves now."""
        core = self._core
        say("stopping when what runs is finished; Ctrl-C again leaves now")
        core.stop(KeyboardInterrupt())
        core.drop_out()
        try:
            with core.lock:
                core.bell.condition.wait_for(lambda: core.over)
        except KeyboardInterrupt:
            core.abandoned = True
            raise
        say(telling.resume_hint())


def _mind(batch: "Batch | AsyncBatch", core: Core) -> None:
    """What is to be done when nobody holds the batch any more, and at the end of the process."""
    weakref.finalize(batch, core.dropped).atexit = False
    weakref.finalize(batch, core.drop_out)


def _work(core: Core) -> None:
    """A worker's thread."""
    try:
        while True:
            with core.lock:
                while isinstance(taken := core.take(), Wait):
                    core.bell.condition.wait(_patience(taken))
            if taken is None:
                return
            try:
                work.drive(work.one(core, taken.index, taken.alone))
            except BaseException as e:
                core.crashed(e)
    finally:
        core.worker_left()


def _patience(wait: Wait) -> float:
    # A second at most: a stop by a person is seen by looking.
    return 1.0 if wait.seconds is None else min(1.0, max(0.0, wait.seconds))


class AsyncBatch:
    """A batch of `outlast.amap`, begun when it is first awaited: `async for` its results, or `await` its end."""

    def __init__(self, items: Any, make: Callable[[], Core]) -> None:
        self._items = items
        self._make = make
        self._core: Core | None = None
        self._tasks: list[asyncio.Task[None]] = []
        # Of several that read it, one begins it.
        self._beginning = asyncio.Lock()
        self._is_given_up = False

    @property
    def stats(self) -> Stats:
        """The counts as they are now."""
        return Stats() if self._core is None else self._core.stats

    @property
    def failed(self) -> list[Result]:
        """Failed and dead items so far."""
        return [] if self._core is None else self._core.failed

    def __aiter__(self) -> AsyncIterator[Result]:
        return self

    async def __anext__(self) -> Result:
        """The next result. Errors: at the end, what stopped the batch."""
        core = await self._begun()
        try:
            while True:
                over = core.over
                with core.lock:
                    result = core.next_result()
                if result is not None or over:
                    break
                await core.bell.ring_or(None)
        except asyncio.CancelledError:
            await self._drain(core)
            raise
        if result is None:
            core.all_told()
            raise StopAsyncIteration
        core.told(result)
        return result

    async def wait(self) -> "AsyncBatch":
        """Waits until it is over, and returns it. Errors: what stopped it."""
        async for _ in self:
            pass
        return self

    def __await__(self) -> Generator[Any, None, "AsyncBatch"]:
        return self.wait().__await__()

    async def _begun(self) -> Core:
        async with self._beginning:
            if self._core is None:
                if self._is_given_up:
                    raise RuntimeError("the batch was cancelled while it began: its input is read in part; call outlast.amap again")
                try:
                    self._core = await self._begin()
                except asyncio.CancelledError:
                    self._is_given_up = True
                    raise
                finally:
                    self._items = None
        return self._core

    async def _begin(self) -> Core:
        items = self._items
        if hasattr(items, "__aiter__"):
            items = [item async for item in items]
        core = self._make()
        try:
            # Reading what is recorded of a large job takes its time: the loop goes on meanwhile.
            await asyncio.to_thread(core.open, items)
        except asyncio.CancelledError:
            core.give_up()
            raise
        count = core.wanted_workers
        core.workers_start(count)
        self._tasks = [asyncio.create_task(_work_async(core)) for _ in range(count)]
        _mind(self, core)
        return core

    async def _drain(self, core: Core) -> None:
        """Cancelled: nothing more is claimed, and what runs is finished."""
        core.stop(asyncio.CancelledError())
        core.drop_out()
        waiting = [task for task in self._tasks if not task.done()]
        if waiting:
            say("stopping when what runs is finished")
            try:
                await asyncio.wait(waiting)
            except asyncio.CancelledError:
                # Again: leave now. What runs is given back.
                for task in waiting:
                    task.cancel()
        say(telling.resume_hint())


async def _work_async(core: Core) -> None:
    """A worker's task."""
    try:
        while True:
            with core.lock:
                taken = core.take()
            if taken is None:
                return
            if isinstance(taken, Wait):
                await core.bell.ring_or(_patience(taken))
                continue
            assert isinstance(taken, Take)
            try:
                await work.drive_async(work.one(core, taken.index, taken.alone))
            except asyncio.CancelledError as e:
                core.crashed(e)
                raise
            except BaseException as e:
                core.crashed(e)
    finally:
        core.worker_left()


def map(  # noqa: A001 (it is what it is called)
    items: Iterable[Any],
    fn: Callable[[Any], Any],
    *,
    job: str,
    key: Callable[[Any], Any] | None = None,
    content: Callable[[Any], Any] | None = None,
    version: object | None = None,
    concurrency: int = 16,
    rate: str | float | None = None,
    retries: Retry | int | None = None,
    on_error: Literal["collect", "raise"] = "collect",
    dedupe: Literal["error", "first", "ordinal"] = "error",
    budget: Budget | None = None,
    timeout: float | None = None,
    ttl: Any = None,
    resume: Literal["always", "if_unchanged", "never"] = "always",
    on_change: Literal["rerun", "keep", "fail"] = "rerun",
    order: Literal["input", "completion"] = "input",
    out: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
    store: Any = None,
    rerun: bool = False,
    tags: Mapping[str, str] | None = None,
    from_snapshot: int | str | datetime.datetime | None = None,
) -> Batch:
    """Calls `fn` on each item in threads, each item once over all lives of `job`: started again, it goes on.

    `key` names an item (a digest of it without); `content` is what it is, where that is less than all of it: other content
    under the same key runs again (`on_change`). `version` says which code it is: another one runs done items again; without it
    a change of the function is warned of, and done items are kept. Work that would repeat more than 5 % of what is done raises
    `JobChanged` before the first call, unless `rerun=True`.

    `concurrency`: how many run at once at most; fewer for a while when a provider answers 429, 503 or 529. `rate`: starts,
    like "500/m". `retries`: of an item's function, see `Retry`. `timeout`: seconds for each item; a late thread
    keeps its slot until it ends. `ttl`: how long results of a completed job count. `resume`: "never" runs all anew, "if_unchanged"
    raises `JobChanged` where code or content changed. `out`: JSON lines, there when all is done. `progress`: None shows it on
    a terminal. `store`: as for `outlast.connect`; the store opened last without.

    `from_snapshot` works on a fork of the job: what was done by a snapshot's name, the end of an attempt or a time is shared.

    Returns at once; results stream from the batch in the order of the input or of completion. A result is on disk before it is
    seen. Failed items are collected and run again at the next start; after three failed starts, or three deaths of the process,
    an item is dead. Ctrl-C finishes what runs, then raises KeyboardInterrupt.

    Errors: `DuplicateKey`, `JobChanged`, `BudgetChanged`, `BudgetExceeded` at once; from the iteration or `wait()` also
    `BudgetExceeded`, `NothingMetered`, `RepeatedFailure`, and with `on_error="raise"` an item's error.
    """
    if not callable(fn):
        raise TypeError(f"outlast.map wants a function of an item, had {fn!r}")
    if steps.is_async(fn):
        raise TypeError("outlast.map wants a plain function, had an async one: use outlast.amap")
    options = asked.make(
        job=job, key=key, content=content, version=version, concurrency=concurrency, rate=rate, retries=retries,
        on_error=on_error, dedupe=dedupe, budget=budget, timeout=timeout, ttl=ttl, resume=resume, on_change=on_change,
        order=order, out=out, progress=progress, rerun=rerun, tags=tags, from_snapshot=from_snapshot,
    )  # fmt: skip
    core = Core(_runtime(store), fn, options, aio=False)
    core.open(items)
    return Batch(core)


def amap(
    items: Any,
    fn: Callable[[Any], Any],
    *,
    job: str,
    key: Callable[[Any], Any] | None = None,
    content: Callable[[Any], Any] | None = None,
    version: object | None = None,
    concurrency: int = 16,
    rate: str | float | None = None,
    retries: Retry | int | None = None,
    on_error: Literal["collect", "raise"] = "collect",
    dedupe: Literal["error", "first", "ordinal"] = "error",
    budget: Budget | None = None,
    timeout: float | None = None,
    ttl: Any = None,
    resume: Literal["always", "if_unchanged", "never"] = "always",
    on_change: Literal["rerun", "keep", "fail"] = "rerun",
    order: Literal["input", "completion"] = "input",
    out: str | os.PathLike[str] | None = None,
    progress: bool | None = None,
    store: Any = None,
    rerun: bool = False,
    tags: Mapping[str, str] | None = None,
    from_snapshot: int | str | datetime.datetime | None = None,
) -> AsyncBatch:
    """`map` for an async function, with tasks instead of threads. Items may come from an async iterable.

    It begins when it is first awaited: `async for result in batch`, or `await batch` for its end. A late try is cancelled.
    Cancelled, it finishes what runs; cancelled again, it gives it back.
    """
    if not callable(fn):
        raise TypeError(f"outlast.amap wants an async function of an item, had {fn!r}")
    if not steps.is_async(fn):
        raise TypeError("outlast.amap wants an async function, had a plain one: use outlast.map")
    options = asked.make(
        job=job, key=key, content=content, version=version, concurrency=concurrency, rate=rate, retries=retries,
        on_error=on_error, dedupe=dedupe, budget=budget, timeout=timeout, ttl=ttl, resume=resume, on_change=on_change,
        order=order, out=out, progress=progress, rerun=rerun, tags=tags, from_snapshot=from_snapshot,
    )  # fmt: skip
    runtime = _runtime(store)
    return AsyncBatch(items, lambda: Core(runtime, fn, options, aio=True))


def _runtime(store: Any) -> "runtimes.Runtime":
    if isinstance(store, runtimes.Runtime):
        return store
    return runtimes.default() if store is None else runtimes.connect(store)
