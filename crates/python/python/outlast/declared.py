"""Declared return types: a class that cannot be recorded is refused before the first call is paid."""

from __future__ import annotations

import dataclasses
import inspect
import pathlib
import types
import typing
from collections.abc import AsyncIterable, Awaitable, Iterator
from typing import Any, Callable

from . import classes, codec, values
from .errors import NotSerializable

#: Classes whose values are recorded as they are, and those of classes derived from them as theirs.
_PLAIN = (str, int, float, dict, list, tuple, type(None), pathlib.PurePath)
#: Classes of values that are used up by reading them: none of these can be recorded.
_PASSING = (Iterator, AsyncIterable, Awaitable)
_CONTAINERS = (list, tuple, dict, set, frozenset)


def check(fn: Callable[..., Any]) -> None:
    """Checks the declared return type of a function; without one, or where it leaves open what comes, the first value tells.
    Errors: `NotSerializable`."""
    try:
        returned = typing.get_type_hints(inspect.unwrap(fn)).get("return", object)
    except Exception:
        # A name in the annotations is not there at runtime.
        return
    unrecordable = _unrecordable(returned)
    if unrecordable is not None:
        name = getattr(fn, "__qualname__", repr(fn))
        raise NotSerializable(
            f"{name} declares that it returns {classes.shown(unrecordable)}, which cannot be recorded; nothing was called",
            hint=codec.PLAIN,
        )


def _unrecordable(declared: Any) -> type | None:
    """The class in a declared type that cannot be recorded; None where there is none, or where that is not known."""
    origin, arguments = typing.get_origin(declared), typing.get_args(declared)
    if origin is typing.Annotated:
        return _unrecordable(arguments[0])
    if origin in (typing.Union, types.UnionType, *_CONTAINERS):
        return next((cls for cls in map(_unrecordable, arguments) if cls is not None), None)
    cls = declared if origin is None else origin
    return cls if isinstance(cls, type) and not _may_be_recorded(cls) else None


def _may_be_recorded(cls: Any) -> bool:
    if issubclass(cls, _PASSING):
        return False
    if cls in (object, Any) or issubclass(cls, _PLAIN) or cls in values.CLASSES or values.is_numpy_class(cls):
        return True
    if dataclasses.is_dataclass(cls) or classes.is_model(cls) or inspect.isabstract(cls) or getattr(cls, "_is_protocol", False):
        return True
    return any(map(_may_be_recorded, cls.__subclasses__()))
