"""Values as they are recorded: JSON, with dataclasses and pydantic models as their class.

A value of a class becomes `{"$outlast": "module:Class", "value": {…}}`. What `decode` gives is what every life of
the run sees, the first one too: a tuple is a list from the start, not only after a crash.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import sys
from json.encoder import encode_basestring
from typing import Any

from .errors import NotSerializable

TAG = "$outlast"
_QUOTED_TAG = f'"{TAG}"'
#: Of these exact classes JSON gives back the value itself. No floats: there are those that are not equal to themselves.
UNCHANGED = frozenset({str, int, bool, type(None)})

#: Compact JSON of plain data.
compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def encode(value: Any) -> str:
    """The value as JSON text. Errors: `NotSerializable`, which names the class that is in the way."""
    tags = 0

    def tagged(value: Any) -> Any:
        nonlocal tags
        tags += 1
        cls = type(value)
        if _is_model(cls):
            fields = value.model_dump(mode="json", round_trip=True)
        elif dataclasses.is_dataclass(cls):
            fields = {f.name: getattr(value, f.name) for f in dataclasses.fields(cls) if hasattr(value, f.name)}
        else:
            raise NotSerializable(
                f"a result of class {cls.__module__}.{cls.__qualname__} cannot be recorded as JSON",
                hint="return numbers, texts, lists, dicts, dataclasses or pydantic models",
            )
        return {TAG: _name(cls), "value": fields}

    try:
        if type(value) is str:
            # The usual case of an agent's step, without the ways around.
            text = encode_basestring(value)
            text.encode()
            return text
        text = json.dumps(value, default=tagged, ensure_ascii=False, separators=(",", ":"))
        text.encode()
    except NotSerializable:
        raise
    except UnicodeEncodeError as e:
        raise NotSerializable(f"a result holds a text that is no Unicode: {e}") from e
    except (TypeError, ValueError, RecursionError) as e:
        raise NotSerializable(f"a result cannot be recorded as JSON: {e}") from e
    if text.count(_QUOTED_TAG) != tags:
        raise NotSerializable(f"a result uses the key {TAG!r}, which is reserved")
    return text


def read_back(value: Any, text: str) -> Any:
    """What `decode` gives of `text`, which is `value` encoded: of a text, a number or None just that."""
    return value if type(value) in UNCHANGED else decode(text)


def decode(text: str | bytes) -> Any:
    """What `encode` was given, as it was recorded."""
    tagged = _QUOTED_TAG in text if isinstance(text, str) else _QUOTED_TAG.encode() in text
    return json.loads(text, object_hook=_untag if tagged else None)


def _untag(fields: dict[str, Any]) -> Any:
    name = fields.get(TAG)
    if name is None:
        return fields
    cls: Any = _class(name)
    values = fields["value"]
    if _is_model(cls):
        return cls.model_validate(values)
    # As it was, not as its constructor would make it: what __post_init__ does was done already.
    made: Any = object.__new__(cls)
    for field, value in values.items():
        object.__setattr__(made, field, value)
    return made


def _is_model(cls: type) -> bool:
    return hasattr(cls, "model_validate") and hasattr(cls, "model_dump")


def _name(cls: type) -> str:
    name = f"{cls.__module__}:{cls.__qualname__}"
    try:
        found = _class(name)
    except NotSerializable:
        found = None
    if found is not cls:
        raise NotSerializable(
            f"a result of class {name} cannot be read back: the class is not found under its name",
            hint="define the class at module level",
        )
    return name


def _class(name: str) -> type:
    module_name, _, qualname = name.partition(":")
    try:
        module = sys.modules.get(module_name)
        if module is None:
            import importlib

            module = importlib.import_module(module_name)
        found: Any = module
        for part in qualname.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as e:
        raise NotSerializable(
            f"a recorded value is of class {name}, which is not there any more: {e}",
            hint="put the class back, or start a new run",
        ) from e
    if not (isinstance(found, type) and (dataclasses.is_dataclass(found) or _is_model(found))):
        raise NotSerializable(f"a recorded value names {name}, which is neither a dataclass nor a pydantic model")
    return found


_SIMPLE = frozenset({str, int, float, bool, type(None)})


def identity(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """A text for the arguments: equal over processes where their values are.

    Objects that are neither data nor name themselves count by their class only.
    """
    if not kwargs:
        for value in args:
            if type(value) not in _SIMPLE:
                break
        else:
            return repr(args)
    whole = [args, kwargs] if kwargs else args
    try:
        return json.dumps(whole, default=_plain, sort_keys=True, ensure_ascii=True)
    except (TypeError, ValueError):
        # Keys that are no texts, or a cycle: what people see of it.
        return _steady(ascii(whole))


def _plain(value: Any) -> Any:
    cls: Any = type(value)
    name = f"{cls.__module__}.{cls.__qualname__}"
    if _is_model(cls):
        return [name, value.model_dump(mode="json")]
    if dataclasses.is_dataclass(cls):
        return [name, {f.name: getattr(value, f.name, None) for f in dataclasses.fields(cls)}]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return [name, hashlib.sha256(value).hexdigest()]
    if isinstance(value, (set, frozenset)):
        return [name, sorted(json.dumps(v, default=_plain, sort_keys=True) for v in value)]
    if isinstance(value, type) or callable(value):
        return [name, f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"]
    if cls.__repr__ is object.__repr__:
        return [name]
    return [name, _steady(repr(value))]


def _steady(text: str) -> str:
    if "0x" not in text:
        return text
    import re

    return re.sub(r"0x[0-9a-fA-F]{4,}", "0x", text)


def shown(args: tuple[Any, ...], kwargs: dict[str, Any], each: int = 80, whole: int = 320) -> list[str]:
    """The arguments for people: the start of each."""
    texts: list[str] = []
    for name, value in (*(("", v) for v in args), *kwargs.items()):
        # A large text need not be printed to be cut.
        text = repr(value[:each]) if isinstance(value, (str, bytes)) else _steady(repr(value))
        text = f"{name}={text}" if name else text
        if len(text) > each:
            text = text[: each - 1] + "…"
        whole -= len(text)
        if whole < 0:
            texts.append("…")
            break
        texts.append(text)
    return texts
