"""Where a value that was read back from its record is not the one that was returned."""

from __future__ import annotations

import dataclasses
from typing import Any

from . import classes

#: Classes by which a value of a class derived from them comes back: numpy's float64 is a float.
_BASES = (str, bool, int, float)
_MISSING = object()


def difference(returned: Any, read: Any, path: str = "") -> str | None:
    """The first place where `read` differs from `returned`, in words; None where they are the same.

    What the guide says of plain data is no difference: a tuple is read as a list, a key of a dict as its text, and a value
    of a class that is derived from a plain one as the plain one.
    """
    cls = type(returned)
    if isinstance(returned, dict) and isinstance(read, dict):
        return _of_items(returned, read, path)
    if isinstance(returned, (list, tuple)) and isinstance(read, (list, tuple)):
        if len(returned) != len(read):
            return _changed(returned, read, path)
        pairs = enumerate(zip(returned, read, strict=True))
        return _first(difference(a, b, f"{path}[{n}]") for n, (a, b) in pairs)
    if cls is not type(read):
        is_base = any(isinstance(returned, base) and type(read) is base for base in _BASES)
        return None if is_base and returned == read else _changed(returned, read, path)
    if classes.is_model(cls):
        return _of_model(returned, read, path)
    if dataclasses.is_dataclass(cls):
        names = [field.name for field in dataclasses.fields(cls)]
        return _first(_of_attribute(returned, read, name, path) for name in names)
    # A class without an equality of its own, such as a lock, has no value that could differ.
    is_same = returned == read or returned != returned or cls.__eq__ is object.__eq__
    return None if is_same else _changed(returned, read, path)


def _of_items(returned: dict[Any, Any], read: dict[Any, Any], path: str) -> str | None:
    if len(returned) != len(read):
        return _changed(list(returned), list(read), f"{path}'s keys" if path else "the keys")
    pairs = zip(returned.items(), read.items(), strict=True)
    return _first(difference(a, b, f"{path}[{key!r}]") for (key, a), (_, b) in pairs)


def _of_model(returned: Any, read: Any, path: str) -> str | None:
    cls: Any = type(returned)
    if classes.is_lenient(cls):
        # What it was on the wire. Besides, it holds what its SDK notes of the connection.
        a, b = (classes.on_the_wire(value) for value in (returned, read))
        return difference(a, b, path)
    fields = (_of_attribute(returned, read, name, path) for name in getattr(cls, "model_fields", vars(returned)))
    beside = (
        _of_attribute(returned, read, name, path, in_part=part)
        for part in ("__pydantic_private__", "__pydantic_extra__")
        for name in getattr(returned, part, None) or {}
    )
    return _first(fields) or _first(beside)


def _of_attribute(returned: Any, read: Any, name: str, path: str, in_part: str | None = None) -> str | None:
    if in_part is None:
        a, b = (getattr(value, name, _MISSING) for value in (returned, read))
    else:
        a, b = ((getattr(value, in_part, None) or {}).get(name, _MISSING) for value in (returned, read))
    if a is _MISSING or b is _MISSING:
        return None if a is b else _changed(a, b, f"{path}.{name}")
    return difference(a, b, f"{path}.{name}")


def _first(differences: Any) -> str | None:
    return next((found for found in differences if found is not None), None)


def _changed(returned: Any, read: Any, path: str) -> str:
    return f"{path.lstrip('.') or 'the value'}: {_short(returned)} would be read back as {_short(read)}"


def _short(value: Any) -> str:
    if value is _MISSING:
        return "nothing"
    try:
        text = repr(value)
    except Exception as e:
        text = f"an object whose repr raises {type(e).__name__}"
    text = text if len(text) <= 60 else f"{text[:59]}…"
    return f"{text} ({type(value).__qualname__})"
