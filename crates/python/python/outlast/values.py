"""Values of the standard library and of numpy as they are recorded: a tag, and plain data from which the value is made again.

A tag has no colon; the name of a class has one.
"""

from __future__ import annotations

import base64
import dataclasses
import datetime
import decimal
import pathlib
import sys
import uuid
from typing import Any, Callable

#: Tag of a number that JSON does not have: NaN or an infinity.
FLOAT = "float"
#: Tag of a dict that has the key of tags itself: its keys and values in pairs.
DICT = "dict"
#: Beginning of the tag of a numpy scalar, before the name of its type.
_NUMPY = "numpy."
_NUMPY_TYPES = frozenset(
    {"bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32", "float64"}
)
_MICROSECOND = datetime.timedelta(microseconds=1)


def _time(value: datetime.datetime | datetime.time) -> Any:
    zone = getattr(value.tzinfo, "key", None)
    if zone is None and not value.fold:
        return value.isoformat()
    # The zone by its name, which decides what the clock shows later on.
    return [value.replace(tzinfo=None).isoformat() if zone else value.isoformat(), zone, value.fold]


def _time_of(cls: Any) -> Callable[[Any], Any]:
    def made(data: Any) -> Any:
        text, zone, fold = (data, None, 0) if isinstance(data, str) else data
        value = cls.fromisoformat(text).replace(fold=fold)
        if zone is None:
            return value
        import zoneinfo

        return value.replace(tzinfo=zoneinfo.ZoneInfo(zone))

    return made


def _seconds(value: datetime.timedelta) -> str:
    return str(decimal.Decimal(value // _MICROSECOND).scaleb(-6))


def _timedelta(text: str) -> datetime.timedelta:
    return int(decimal.Decimal(text).scaleb(6)) * _MICROSECOND


def _members(value: set[Any] | frozenset[Any]) -> list[Any]:
    try:
        return sorted(value)
    except TypeError:
        return sorted(value, key=repr)


def _hashable(value: Any) -> Any:
    # A member of a set that is read as a list was a tuple.
    return tuple(_hashable(v) for v in value) if isinstance(value, list) else value


#: By class: the tag, what is recorded, and how the value is made of it again.
_KINDS: dict[type, tuple[str, Callable[[Any], Any], Callable[[Any], Any]]] = {
    datetime.datetime: ("datetime", _time, _time_of(datetime.datetime)),
    datetime.date: ("date", datetime.date.isoformat, datetime.date.fromisoformat),
    datetime.time: ("time", _time, _time_of(datetime.time)),
    datetime.timedelta: ("timedelta", _seconds, _timedelta),
    decimal.Decimal: ("decimal", str, decimal.Decimal),
    uuid.UUID: ("uuid", str, uuid.UUID),
    type(pathlib.Path()): ("path", str, pathlib.Path),
    bytes: ("bytes", lambda value: base64.b64encode(value).decode(), base64.b64decode),
    set: ("set", _members, lambda data: {_hashable(v) for v in data}),
    frozenset: ("frozenset", _members, lambda data: frozenset(_hashable(v) for v in data)),
}
_MAKERS: dict[str, Callable[[Any], Any]] = {tag: make for tag, _, make in _KINDS.values()}
_MAKERS |= {FLOAT: float, DICT: dict}

#: Classes whose values are recorded with a tag.
CLASSES = frozenset(_KINDS)


@dataclasses.dataclass(slots=True, eq=False)
class Tagged:
    """A value that stands for another one while it is recorded: its tag, and plain data."""

    tag: str
    data: Any


def tagged(value: Any) -> Tagged | None:
    """The tag and the data of a value; None for a value of any other class."""
    kind = _KINDS.get(type(value))
    if kind is not None:
        return Tagged(kind[0], kind[1](value))
    numpy = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic) and value.dtype.name in _NUMPY_TYPES:
        return Tagged(_NUMPY + value.dtype.name, value.item())
    return None


def is_numpy(value: Any) -> bool:
    """Whether a value is a numpy number. Some are floats for JSON, too."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and isinstance(value, numpy.number)


def is_numpy_class(cls: type) -> bool:
    """Whether values of a class are numpy numbers that are recorded."""
    numpy = sys.modules.get("numpy")
    return numpy is not None and issubclass(cls, numpy.generic) and numpy.dtype(cls).name in _NUMPY_TYPES


def made(tag: str, data: Any) -> Any:
    """The value of a tag and its data. Errors: `KeyError` for an unknown tag, and whatever the value's class raises."""
    if tag.removeprefix(_NUMPY) in _NUMPY_TYPES and tag.startswith(_NUMPY):
        import numpy  # type: ignore[import-untyped,unused-ignore]

        return numpy.dtype(tag.removeprefix(_NUMPY)).type(data)
    return _MAKERS[tag](data)
