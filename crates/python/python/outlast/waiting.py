"""Answers of the native half: commits that tasks of an event loop wait for, and lists that come in pages."""

from __future__ import annotations

import asyncio
from typing import Any, Callable, Iterator, TypeVar

T = TypeVar("T")


def resolve(told: "list[tuple[asyncio.Future[Any], Any, BaseException | None]]") -> None:
    """Resolves the futures of one group of commits. Skips futures that are done already, such as cancelled ones."""
    for future, answer, error in told:
        if future.done():
            continue
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(answer)


def paged(page: Callable[[T | None], list[T]], most: int) -> Iterator[T]:
    """The rows of all pages. `page` gives those after a row, at first after None; one of fewer than `most` rows is the last."""
    rows = page(None)
    yield from rows
    while len(rows) == most:
        rows = page(rows[-1])
        yield from rows
