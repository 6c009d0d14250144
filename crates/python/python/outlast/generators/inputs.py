"""The inputs of a generator, and how it takes them.

Where each result follows exactly one plain pull, a result belongs to an input, and a resume gives the generator
only the inputs without one. Whatever else a generator does with its inputs is noticed here.
"""

from __future__ import annotations

import gc
from collections.abc import AsyncIterable, Iterable, Mapping
from typing import Any, Callable

from .. import identity
from ..errors import Unkeyable

#: Marks the end: there are no more inputs, or no more results.
END: Any = object()


def chosen(args: tuple[Any, ...], kwargs: dict[str, Any], items: int | str | None) -> int | str | None:
    """The position or name of the argument that has the inputs: `items` if it is given, else that of the first argument that
    is iterable and neither text nor a dict. None if there is none. Errors: `ValueError` where `items` names no argument."""
    if items is not None:
        try:
            kwargs[items] if isinstance(items, str) else args[items]
        except (KeyError, IndexError):
            raise ValueError(f"items={items!r} names none of the generator's arguments") from None
        return items
    places: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
    for place, value in places:
        if isinstance(value, (str, bytes, bytearray, Mapping)):
            continue
        if isinstance(value, (Iterable, AsyncIterable)):
            return place
    return None


def digest(value: Any, index: int) -> str:
    """An input as the record knows it: 64 hex digits, the same in every life. Errors: `Unkeyable`."""
    try:
        return identity.digest(value).hex()
    except Unkeyable as e:
        raise Unkeyable(
            f"input {index} of the generator has no key to know it by: {e.message}",
            hint="give the generator data: texts, dicts, dataclasses; it can make the objects of them itself",
        ) from None


class Watch:
    """Source of a job's inputs, and the functions of the job by which `Pulls` and `AsyncPulls` take them."""

    def __init__(self, source: Any, take: Callable[[], Any], take_async: Callable[[], Any], other: Callable[[str], None]) -> None:
        self.source = source
        self.take = take
        self.take_async = take_async
        self.other = other
        self.begun = False

    def begin(self) -> None:
        if self.begun:
            self.other("goes through its inputs more than once")
        self.begun = True


class Inputs:
    """The iterable that the generator gets in place of the one that was given, so that the job hands out the inputs."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def __iter__(self) -> "Pulls":
        self._watch.begin()
        return Pulls(self._watch)

    def __aiter__(self) -> "AsyncPulls":
        self._watch.begin()
        return AsyncPulls(self._watch)

    # Supports `next(inputs)` without a loop.
    def __next__(self) -> Any:
        self._watch.begun = True
        return _pulled(self._watch.take())

    async def __anext__(self) -> Any:
        self._watch.begun = True
        return _pulled_async(await self._watch.take_async())

    def __len__(self) -> int:
        self._watch.other("asks how many inputs there are")
        return len(self._watch.source)

    def __bool__(self) -> bool:
        # A test for emptiness, as in `if not documents: return`, does not change a result.
        return bool(self._watch.source)

    def __getitem__(self, at: Any) -> Any:
        self._watch.other("takes its inputs by index")
        return self._watch.source[at]

    def __contains__(self, value: Any) -> bool:
        self._watch.other("looks for a value among its inputs")
        return value in self._watch.source

    def __reversed__(self) -> Any:
        self._watch.other("goes through its inputs backwards")
        return reversed(self._watch.source)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self._watch.other(f"uses .{name} of its inputs")
        return getattr(self._watch.source, name)


class Pulls:
    """The iterator over `Inputs`."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch
        self._looked = False

    def __iter__(self) -> "Pulls":
        return self

    def __next__(self) -> Any:
        if not self._looked:
            self._looked = True
            through = _reader(self)
            if through:
                self._watch.other(f"reads its inputs through {through}, which counts or pairs them")
        return _pulled(self._watch.take())


class AsyncPulls:
    """The asynchronous iterator over `Inputs`."""

    def __init__(self, watch: Watch) -> None:
        self._watch = watch

    def __aiter__(self) -> "AsyncPulls":
        return self

    async def __anext__(self) -> Any:
        return _pulled_async(await self._watch.take_async())


def _pulled(value: Any) -> Any:
    if value is END:
        raise StopIteration
    return value


def _pulled_async(value: Any) -> Any:
    if value is END:
        raise StopAsyncIteration
    return value


def _reader(pulls: Pulls) -> str | None:
    """Returns the name of a counting or pairing iterator around this one: its results depend on the inputs left out."""
    for holder in gc.get_referrers(pulls):
        cls = type(holder)
        if cls in (enumerate, zip) or cls.__module__ == "itertools":
            return cls.__name__
    return None
