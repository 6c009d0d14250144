"""`outlast.map` and `outlast.amap`, and the handles that they return: results as they come, counts, the end."""

from __future__ import annotations

import asyncio
import threading
import weakref
from typing import Any, AsyncIterator, Callable, Generator, Iterable, Iterator

from .. import declared, runtime
from ..effects import Process, drive, drive_async
from ..say import say
from ..steps.spec import is_async
from . import progress, work
from .core import LOOK_S, Core
from .options import Options, taking
from .progress import Stats
from .queue import Wait
from .results import Result
from .table import Tabular


class Handle(Tabular):
    """The handle of a batch, of threads or of tasks: its counts, its cost and its tables."""

    # None before the batch has begun.
    _core: Core | None

    @property
    def stats(self) -> Stats:
        """The counts of items, and the batch's cost so far."""
        return Stats() if self._core is None else self._core.stats_now()

    @property
    def failed(self) -> list[Result]:
        """Results of the failed and dead items so far, in the order of the input."""
        return [] if self._core is None else sorted(self._core.outcomes.failed, key=lambda result: result.index)

    def __iter__(self) -> Iterator[Result]:
        raise NotImplementedError

    def _results(self) -> Iterator[Result]:
        return iter(self)

    def __repr__(self) -> str:
        words = ", not begun" if self._core is None else f" {self._core.run.id}: {self._core.words()}"
        return f"<outlast.{type(self).__name__}{words}>"

    def _repr_html_(self) -> str:
        return repr(self).replace("<", "&lt;") if self._core is None else self._core.html()


class Batch(Handle):
    """A running batch of `outlast.map`. Iterating gives its results; `wait()` waits for its end.

    Each iteration gives all results from the first one: those that were read before come from the store, and not from memory.
    The workers are threads, and go on while nobody reads. A batch that nobody holds any more, or whose process ends,
    claims no more items and finishes what runs.
    """

    _core: Core

    def __init__(self, core: Core) -> None:
        self._core = core
        self._place = 0
        count = core.wanted_workers
        core.workers_start(count)
        core.threads = [threading.Thread(target=drive, args=(_work(core),), name="outlast batch", daemon=True) for _ in range(count)]
        for thread in core.threads:
            thread.start()
        _mind(self, core)

    def __iter__(self) -> Iterator[Result]:
        place = 0
        while (result := self._result_at(place)) is not None:
            place += 1
            yield result

    def __next__(self) -> Result:
        """The next result that `next(batch)` has not given yet. Errors: at the end, what stopped the batch
        (`BudgetExceeded`, `NothingMetered`, …)."""
        result = self._result_at(self._place)
        if result is None:
            raise StopIteration
        self._place += 1
        return result

    def wait(self) -> "Batch":
        """Waits until the batch is over, and returns the batch. Errors: what stopped it."""
        while self._result_at(len(self._core.outcomes.given)) is not None:
            pass
        return self

    def _result_at(self, place: int) -> Result | None:
        """The result at a place of those that are given; None at the end. Errors: at the end, what stopped the batch."""
        core = self._core
        try:
            while True:
                result, over, rung = core.result_at(place)
                if result is not None or over:
                    break
                core.bell.after(rung).wait()
        except KeyboardInterrupt:
            self._interrupted()
            raise
        if result is None:
            core.all_told()
        return result

    def _interrupted(self) -> None:
        """Stops after Ctrl-C, and lets running items finish, unless their provider is away. A second Ctrl-C leaves at once."""
        core = self._core
        say("stopping when what runs is finished; Ctrl-C again leaves now")
        core.stop(KeyboardInterrupt())
        core.drop_out()
        try:
            core.finished()
        except KeyboardInterrupt:
            core.abandon()
            raise
        say(progress.resume_hint())


def _mind(batch: Handle, core: Core) -> None:
    """Ensures that a batch stops when its handle is dropped, and that its partial file is removed at the end of the
    process."""
    weakref.finalize(batch, core.dropped).atexit = False
    weakref.finalize(batch, core.drop_out)


def _work(core: Core) -> Process[None]:
    """The work of a worker, a thread or a task."""
    try:
        while True:
            with core.lock:
                taken, rung = core.take(), core.bell.rung
            if taken is None:
                return
            if isinstance(taken, Wait):
                yield core.bell.after(rung, _patience(taken))
                continue
            try:
                yield from work.one(core, taken.index, taken.alone)
            except GeneratorExit:
                raise
            except BaseException as e:
                core.crashed(e)
                if core.bell.loop is not None and isinstance(e, asyncio.CancelledError):
                    raise
    finally:
        core.worker_left()


def _patience(wait: Wait) -> float:
    # A second at most, because a person's stop is only seen by polling.
    return 1.0 if wait.seconds is None else min(1.0, max(0.0, wait.seconds))


class AsyncBatch(Handle):
    """A batch of `outlast.amap`. It begins when it is first awaited: `async for` gives its results, `await` waits for its end.

    Each iteration gives all results from the first one: those that were read before come from the store, and not from memory.
    Once it was awaited, a plain `for` gives them, too.
    """

    def __init__(self, items: Any, make: Callable[[], Core]) -> None:
        self._items = items
        self._make = make
        self._core: Core | None = None
        self._place = 0
        self._tasks: list[asyncio.Task[None]] = []
        # Held by the one of several readers that begins the batch.
        self._beginning = asyncio.Lock()
        self._is_given_up = False

    async def __aiter__(self) -> AsyncIterator[Result]:
        place = 0
        while (result := await self._result_at(place)) is not None:
            place += 1
            yield result

    async def __anext__(self) -> Result:
        """The next result that `anext(batch)` has not given yet. Errors: at the end, what stopped the batch."""
        result = await self._result_at(self._place)
        if result is None:
            raise StopAsyncIteration
        self._place += 1
        return result

    async def wait(self) -> "AsyncBatch":
        """Waits until the batch is over, and returns the batch. Errors: what stopped it."""
        core = await self._begun()
        while await self._result_at(len(core.outcomes.given)) is not None:
            pass
        return self

    def __await__(self) -> Generator[Any, None, "AsyncBatch"]:
        return self.wait().__await__()

    def __iter__(self) -> Iterator[Result]:
        core = self._core
        if core is None or not core.over:
            raise TypeError("a batch of outlast.amap is read with `async for`, or with `for` once it was awaited")
        yield from core.all_results()
        core.all_told()

    async def _result_at(self, place: int) -> Result | None:
        """The result at a place of those that are given; None at the end. Errors: at the end, what stopped the batch."""
        core = await self._begun()
        try:
            while True:
                result, over, rung = core.result_at(place)
                if result is not None or over:
                    break
                await core.bell.after(rung).awaited()
        except asyncio.CancelledError:
            await self._drain(core)
            raise
        if result is None:
            core.all_told()
        return result

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
        self._tasks = [asyncio.create_task(drive_async(_work(core))) for _ in range(count)]
        _mind(self, core)
        return core

    async def _drain(self, core: Core) -> None:
        """Stops after a cancellation, and lets running items finish. A second cancellation gives them back unfinished."""
        core.stop(asyncio.CancelledError())
        core.drop_out()
        waiting = {task for task in self._tasks if not task.done()}
        if waiting:
            say("stopping when what runs is finished")
            try:
                while waiting:
                    _, waiting = await asyncio.wait(waiting, timeout=LOOK_S)
                    if waiting and (why := core.away()) is not None:
                        say(f"job {core.run.id}: {why}, so that what runs goes back to pending")
                        for task in waiting:
                            task.cancel()
            except asyncio.CancelledError:
                # Cancelled again: leave now. Running items are given back.
                for task in waiting:
                    task.cancel()
        say(progress.resume_hint())


@taking(Options)
def map(items: Iterable[Any], fn: Callable[[Any], Any], options: Options) -> Batch:  # noqa: A001 (it is what it is called)
    """Calls `fn` on each item, in threads: each item once over all lives of `job`. Started again, the job goes on.

    What an item is:
    `key` names an item; without it, a digest of the item does. `dedupe`: what equal keys mean ("error", "first", "ordinal").
    `content` picks the part of an item that counts as its content; without it, all of it counts. The digest is kept with the
    item: other content under the same key runs again, unless `on_change` says "keep" or "fail".

    What counts as done:
    `version` names the code; another version runs done items again. Without `version`, a change of the function only warns.
    `JobChanged` is raised before the first call where more than 5 % of the done items would run again; `rerun=True` allows it.
    `resume="never"` runs all items anew; "if_unchanged" raises `JobChanged` where code or content changed. `ttl`: how long the
    results of a completed job count, in seconds or as a text like "30d". `from_snapshot` works on a fork of the job, which
    shares what was done by a snapshot (its name), the end of an attempt (its number) or a time.

    How items run:
    `concurrency`: the most that run at once; fewer for a while when a provider answers 429, 503 or 529. `rate`: starts, like
    "500/m". `retries`: further tries of an item, see `Retry`. `timeout`: seconds for each try; a late thread keeps its slot
    until it ends. `on_error="raise"` stops the batch at the first failed item. `budget`: the job's, over all its lives.

    What comes out:
    The batch is returned at once. Its results come in the order of the input, or of completion (`order`). A result is on disk
    before it is seen. `files`: a directory whose files are kept as each item leaves them, or `outlast.Files`
    (docs/guides/files.md). Failed items are collected, and run again at the next start; after three failed starts, or three deaths of
    the process, an item is dead. `out`: a file with a row for each item, in place when all is done: JSON lines, CSV or Parquet,
    by its ending `.jsonl`, `.csv` or `.parquet`. `progress`: None shows it on a terminal only. `store`: a place as for
    `outlast.connect`, or a runtime; by default the store that was opened last. Ctrl-C finishes what runs, then raises
    `KeyboardInterrupt`.

    Errors, at once: `Unkeyable`, `DuplicateKey`, `JobChanged`, `BudgetChanged`, `BudgetExceeded`. From the iteration and `wait()`:
    `BudgetExceeded`, `NothingMetered`, `RepeatedFailure`; with `on_error="raise"` an item's error.
    """
    if not callable(fn):
        raise TypeError(f"outlast.map wants a function of an item, had {fn!r}")
    if is_async(fn):
        raise TypeError("outlast.map wants a plain function, had an async one: use outlast.amap")
    declared.check(fn)
    core = Core(runtime.of(options.store), fn, options, aio=False)
    core.open(items)
    return Batch(core)


@taking(Options)
def amap(items: Any, fn: Callable[[Any], Any], options: Options) -> AsyncBatch:
    """Calls an async `fn` on each item, in tasks: `map` for asyncio, with the same parameters.

    The batch begins when it is first awaited: `async for result in batch`, or `await batch` for its end. Items may come from
    an async iterable. A late try is cancelled. A cancelled batch finishes what runs; cancelled again, it gives items back.
    """
    if not callable(fn):
        raise TypeError(f"outlast.amap wants an async function, had {fn!r}")
    if not is_async(fn):
        raise TypeError("outlast.amap wants an async function, had a plain one: use outlast.map")
    declared.check(fn)
    store = runtime.of(options.store)
    return AsyncBatch(items, lambda: Core(store, fn, options, aio=True))
