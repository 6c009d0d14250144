"""`resume_or_start`: a generator's results, each computed once over any number of crashes.

The generator is handed its inputs one by one. While each of its results follows exactly one plain pull, a result is
stored with its input's digest, and a resume hands out only the inputs without one.
"""

from __future__ import annotations

import datetime
import functools
import inspect
import os
from typing import Any, AsyncIterator, Callable, Generator, Iterator

from . import waiting
from .budget import Budget
from .inputs import END
from .jsonl import JsonlStore
from .generator_job import PULL, RESUME, GeneratorJob


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
    """The results of `generator_fn(*generator_args)`, those of earlier lives first as far as their inputs come first.

    An iterator, or an asynchronous one where `generator_fn` is an asynchronous generator function. Each result is on
    disk in the record `<path>.outlast.db` before it is given out, and a line of the JSONL file. An input whose result
    is recorded is not handed to the generator again. `items` names the argument (by place or name) that has the inputs;
    without it, it is the first one that can be gone through and is no text or dict. Equal inputs are told apart by their
    order; inputs that are gone leave their results in the record.

    That wants one plain `for`: each result after exactly one pull. Anything else (prefetch, `continue`, `len()`, an index)
    is reported when it is first seen, and from then on a resume raises `WouldRepay` with the number of results it would
    compute again, before any call; unless `redrive=True`, or the body's calls are steps (`outlast.step`), which are not.

    `from_snapshot` goes on in a fork of the job: only what was done by a snapshot's name, the end of an attempt (its number)
    or a time counts as done.

    Without a budget the job may spend 5 usd, like any run. A deleted JSONL file starts the job over; its old results stay
    in the record. Errors, at the call: `RunHeld`, `WouldRepay`, `BudgetExceeded`, `BudgetChanged`, `StoreError`.
    """
    if not isinstance(job_id, str) or not job_id:
        raise TypeError(f"job_id wants a text, had {job_id!r}")
    if not callable(generator_fn):
        raise TypeError(f"generator_fn wants a generator function, had {generator_fn!r}")
    if not isinstance(store, JsonlStore):
        store = JsonlStore(store)
    job = GeneratorJob(job_id, store, generator_fn, tuple(generator_args), dict(generator_kwargs or {}), redrive, items, budget, from_snapshot)
    fn = generator_fn
    while isinstance(fn, functools.partial):
        fn = fn.func
    return AsyncResults(job) if inspect.isasyncgenfunction(fn) else Results(job)


class Results(Iterator[Any]):
    """The results in the order of their inputs. `close()` leaves the job `interrupted`, to be resumed."""

    def __init__(self, job: "GeneratorJob") -> None:
        self._job = job

    def __iter__(self) -> "Results":
        return self

    def __next__(self) -> Any:
        job = self._job
        if job.over:
            raise StopIteration
        try:
            value = self._drive(job.next())
        except BaseException as error:
            self._drive(job.fail(error))
            raise
        if value is END:
            raise StopIteration
        return value

    def _drive(self, machine: Generator[Any, Any, Any]) -> Any:
        answer: Any = None
        while True:
            try:
                asked = machine.send(answer)
            except StopIteration as done:
                return done.value
            if asked is PULL:
                answer = next(self._job.source(), END)
            elif asked is RESUME:
                with self._job.inside():
                    answer = next(self._job.generator(), END)
            else:
                answer = asked.wait()

    def close(self) -> None:
        if not self._job.over:
            generator = self._job.started
            if generator is not None and hasattr(generator, "close"):
                generator.close()
            self._drive(self._job.fail(GeneratorExit()))

    def __enter__(self) -> "Results":
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __del__(self) -> None:
        self._job.abandon()


class AsyncResults(AsyncIterator[Any]):
    """The same for an asynchronous generator function; `aclose()` leaves the job `interrupted`."""

    def __init__(self, job: "GeneratorJob") -> None:
        self._job = job

    def __aiter__(self) -> "AsyncResults":
        return self

    async def __anext__(self) -> Any:
        job = self._job
        if job.over:
            raise StopAsyncIteration
        try:
            value = await self._drive(job.next())
        except BaseException as error:
            await self._drive(job.fail(error))
            raise
        if value is END:
            raise StopAsyncIteration
        return value

    async def _drive(self, machine: Generator[Any, Any, Any]) -> Any:
        answer: Any = None
        while True:
            try:
                asked = machine.send(answer)
            except StopIteration as done:
                return done.value
            if asked is PULL:
                answer = await self._job.pull_async()
            elif asked is RESUME:
                with self._job.inside():
                    answer = await anext(self._job.generator(), END)
            else:
                answer = await waiting.done(asked)

    async def aclose(self) -> None:
        if not self._job.over:
            generator = self._job.started
            if generator is not None and hasattr(generator, "aclose"):
                await generator.aclose()
            await self._drive(self._job.fail(GeneratorExit()))

    async def __aenter__(self) -> "AsyncResults":
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.aclose()

    def __del__(self) -> None:
        self._job.abandon()
