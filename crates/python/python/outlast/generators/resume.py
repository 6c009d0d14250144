"""`resume_or_start`: a generator's results, each computed once over any number of crashes.

The generator is handed its inputs one by one. While each of its results follows exactly one plain pull, a result is
stored with its input's digest, and a resume hands out only the inputs without one.
"""

from __future__ import annotations

import datetime
import functools
import inspect
import os
from typing import Any, AsyncIterator, Callable, Iterator

from ..budget import Budget
from ..effects import drive, drive_async
from .inputs import END
from .job import GeneratorJob
from .jsonl import JsonlStore
from .opening import JobSpec


def resume_or_start(
    job_id: str,
    store: JsonlStore | str | os.PathLike[str],
    generator_fn: Callable[..., Any],
    generator_args: tuple[Any, ...] = (),
    generator_kwargs: dict[str, Any] | None = None,
    *,
    redrive: bool = False,
    items: int | str | None = None,
    budget: Budget | None = None,
    from_snapshot: int | str | datetime.datetime | None = None,
) -> Any:
    """The results of `generator_fn(*generator_args, **generator_kwargs)`, each computed once over all lives of the job.

    Returns an iterator; for an asynchronous generator function, an asynchronous iterator. The iterator first gives the
    recorded results, as far as their inputs come first. Each result is on disk in the record `<path>.outlast.db` before it
    is given out, and a line of the JSONL file. The generator does not get an input again whose result is recorded.

    `items` names the argument that has the inputs, by place or name. Without `items`, the inputs are the first argument
    that can be gone through and is no text or dict. Equal inputs are told apart by their order. Inputs that are gone leave
    their results in the record.

    The generator is one plain `for`: each result follows exactly one pull. A plain loop may leave inputs out (`continue`), if
    it carries nothing from one turn to the next. Any other shape (prefetch, `len()`, an index) is reported when it is first
    seen (`OtherShape`). From then on a resume raises `WouldRepay` with the number of
    results it would compute again, before any call; unless `redrive=True`, or the calls are steps (`outlast.step`).

    `from_snapshot` opens a fork of the job: what was done by a snapshot (its name), the end of an attempt (its number) or a
    time counts as done. Without a budget the job may spend 5 usd. A deleted JSONL file starts the job over; the old
    results stay in the record.

    Errors, at the call: `RunHeld`, `WouldRepay`, `BudgetExceeded`, `BudgetChanged`, `StoreError`. Later: `Unkeyable` for an
    input whose class leaves out what it holds.
    """
    if not isinstance(job_id, str) or not job_id:
        raise TypeError(f"job_id wants a text, had {job_id!r}")
    if not callable(generator_fn):
        raise TypeError(f"generator_fn wants a generator function, had {generator_fn!r}")
    if not isinstance(store, JsonlStore):
        store = JsonlStore(store)
    args, kwargs = tuple(generator_args), dict(generator_kwargs or {})
    job = GeneratorJob(JobSpec(job_id, store, generator_fn, args, kwargs, redrive, items, budget, from_snapshot))
    fn = generator_fn
    while isinstance(fn, functools.partial):
        fn = fn.func
    return AsyncResults(job) if inspect.isasyncgenfunction(fn) else Results(job)


class Results(Iterator[Any]):
    """The results of a job, in the order of their inputs. `close()` leaves the job `interrupted`, to be resumed."""

    def __init__(self, job: "GeneratorJob") -> None:
        self._job = job

    def __iter__(self) -> "Results":
        return self

    def __next__(self) -> Any:
        job = self._job
        if job.over:
            raise StopIteration
        try:
            value = drive(job.next())
        except BaseException as error:
            drive(job.fail(error))
            raise
        if value is END:
            raise StopIteration
        return value

    def close(self) -> None:
        """Closes the generator and leaves the job, to be resumed. Idempotent."""
        if not self._job.over:
            generator = self._job.started
            if generator is not None and hasattr(generator, "close"):
                generator.close()
            drive(self._job.fail(GeneratorExit()))

    def __enter__(self) -> "Results":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        self._job.abandon()


class AsyncResults(AsyncIterator[Any]):
    """The results of a job of an asynchronous generator function. `aclose()` leaves the job `interrupted`."""

    def __init__(self, job: "GeneratorJob") -> None:
        self._job = job

    def __aiter__(self) -> "AsyncResults":
        return self

    async def __anext__(self) -> Any:
        job = self._job
        if job.over:
            raise StopAsyncIteration
        try:
            value = await drive_async(job.next())
        except BaseException as error:
            await drive_async(job.fail(error))
            raise
        if value is END:
            raise StopAsyncIteration
        return value

    async def aclose(self) -> None:
        """Closes the generator and leaves the job, to be resumed. Idempotent."""
        if not self._job.over:
            generator = self._job.started
            if generator is not None and hasattr(generator, "aclose"):
                await generator.aclose()
            await drive_async(self._job.fail(GeneratorExit()))

    async def __aenter__(self) -> "AsyncResults":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        self._job.abandon()
