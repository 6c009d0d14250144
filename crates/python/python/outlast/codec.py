"""Values as they are recorded: JSON, with dataclasses and pydantic models as their class, and tags for what JSON does not have.

A value of a class becomes `{"$outlast": "module:Class", "value": {…}}`, and NaN `{"$outlast": "float", "value": "nan"}`; other
tags are in `values`. Every life of a run sees what `decode` gives, the first one too: a tuple is a list from the start, not only after a
crash.
"""

from __future__ import annotations

import dataclasses
import json
import math
import sys
from json.encoder import encode_basestring
from typing import Any

from . import classes, values
from .errors import NotSerializable

# The extension finds it here.
from .identity import identity as identity
from .values import Tagged

TAG = "$outlast"
_QUOTED_TAG = f'"{TAG}"'
#: Classes whose values JSON gives back as they are. Not float: NaN is not equal to itself.
UNCHANGED = frozenset({str, int, bool, type(None)})

#: Classes by which a value of a class derived from them comes back: numpy's float64 is a float.
_BASES = (str, bool, int, float)
_MISSING = object()

#: Compact JSON of plain data.
compact = json.JSONEncoder(ensure_ascii=False, separators=(",", ":")).encode


def encode(value: Any) -> str:
    """The value as JSON text, from which `decode` gives the same value again.

    Errors: `NotSerializable`, which names the class that is in the way, or the place at which the value would change.
    """
    returned, tags = value, 0

    def tagged(value: Any) -> Any:
        nonlocal tags
        tags += 1
        cls = type(value)
        known = value if cls is Tagged else values.tagged(value)
        if known is not None:
            return {TAG: known.tag, "value": known.data if known is value else _prepared(known.data)}
        if not (classes.is_model(cls) or dataclasses.is_dataclass(cls)):
            raise NotSerializable(f"a value of class {classes.shown(cls)} cannot be recorded as JSON", hint=PLAIN)
        return {TAG: classes.name(cls), "value": _prepared(classes.fields(value))}

    def dumped(value: Any) -> str:
        return json.dumps(value, default=tagged, ensure_ascii=False, allow_nan=False, separators=(",", ":"))

    try:
        if type(value) is str:
            # The usual result of an agent's step, encoded directly.
            text = encode_basestring(value)
            text.encode()
            return text
        # Before the first try, because JSON takes numpy's floats for its own.
        value = _prepared(value) if "numpy" in sys.modules else value
        try:
            text = dumped(value)
        except ValueError:
            # NaN or an infinity is in it.
            text = None
        if text is None or text.count(_QUOTED_TAG) != tags:
            text = dumped(_prepared(value))
        text.encode()
    except NotSerializable:
        raise
    except UnicodeEncodeError as e:
        raise NotSerializable(f"a value holds a text that is no Unicode: {e}") from e
    except (TypeError, ValueError, RecursionError) as e:
        raise NotSerializable(f"a value cannot be recorded as JSON: {e}") from e
    if type(returned) not in UNCHANGED:
        _compare(returned, decode(text), tags > 0)
    return text


#: Advice for a value that cannot be recorded.
PLAIN = "return numbers, texts, bytes, times, Decimal, UUID, Path, lists, dicts, sets, dataclasses or pydantic models"


def _prepared(value: Any) -> Any:
    """The value with a tag for what JSON would give back as something else: NaN, infinities, numpy's floats, and a dict with
    the key of tags. Data without any of them is returned as it is."""
    cls = type(value)
    if cls in UNCHANGED:
        return value
    if isinstance(value, float):
        if cls is not float and values.is_numpy(value):
            known = values.tagged(value)
            return value if known is None else Tagged(known.tag, _prepared(known.data))
        return value if math.isfinite(value) else Tagged(values.FLOAT, repr(float(value)))
    if isinstance(value, dict):
        made = {k: _prepared(v) for k, v in value.items()}
        if TAG in value:
            return Tagged(values.DICT, [[str(k), v] for k, v in made.items()])
        return made if any(made[k] is not v for k, v in value.items()) else value
    if isinstance(value, (list, tuple)):
        parts = [_prepared(v) for v in value]
        return parts if any(a is not b for a, b in zip(parts, value, strict=True)) else value
    return value


def _compare(returned: Any, read: Any, is_tagged: bool) -> None:
    """Checks that a value is the same when it is read back. Errors: `NotSerializable`."""
    try:
        # Plain data is compared at once. A class may have an equality that passes over some of its fields.
        if not is_tagged and returned == read:
            return
    except Exception:
        # Some values have no truth, and some no equality.
        pass
    try:
        where = difference(returned, read)
    except RecursionError:
        where = "it is nested too deeply to be compared"
    except Exception as e:
        where = f"it cannot be compared ({type(e).__name__}: {e})"
    if where is not None:
        raise NotSerializable(
            f"a value of class {classes.shown(type(returned))} would not come back as it is: {where}",
            hint="return plain data of it, or a class that its recorded fields make again as it was",
        )


def read_back(value: Any, text: str) -> Any:
    """The value that `decode` gives back for `text`, the encoding of `value`."""
    return value if type(value) in UNCHANGED else decode(text)


def decode(text: str | bytes) -> Any:
    """The value that a recorded text stands for. Errors: `NotSerializable` where a class is gone or changed."""
    tagged = _QUOTED_TAG in text if isinstance(text, str) else _QUOTED_TAG.encode() in text
    return json.loads(text, object_hook=_untag if tagged else None)


def _untag(fields: dict[str, Any]) -> Any:
    name = fields.get(TAG)
    if name is None:
        return fields
    cls = classes.named(name) if ":" in name else None
    try:
        return classes.of(cls, fields["value"]) if cls is not None else values.made(name, fields["value"])
    except Exception as e:
        if cls is None:
            raise NotSerializable(f"a recorded value with the tag {name!r} cannot be made again: {e}") from e
        raise NotSerializable(
            f"a recorded value does not fit its class {name} any more: {e}",
            hint="make the class take what it took when this was recorded, or start a new run",
        ) from e


def _repr(value: Any) -> str:
    """The `repr` of a value without memory addresses, which differ from process to process."""
    try:
        return _steady(repr(value))
    except Exception as e:
        # A step must not fail for this: objects that are only half made may have no `repr`.
        return f"<{classes.shown(type(value))} whose repr raises {type(e).__name__}>"


def _steady(text: str) -> str:
    if "0x" not in text:
        return text
    import re

    return re.sub(r"0x[0-9a-fA-F]{4,}", "0x", text)


def shown(args: tuple[Any, ...], kwargs: dict[str, Any], each: int = 80, whole: int = 320) -> list[str]:
    """The call's arguments as people are shown them: the first characters of each, and of all together."""
    texts: list[str] = []
    for name, value in (*(("", v) for v in args), *kwargs.items()):
        # Cut before `repr`, which would be slow for a large text.
        text = repr(value[:each]) if isinstance(value, (str, bytes)) else _repr(value)
        text = f"{name}={text}" if name else text
        if len(text) > each:
            text = text[: each - 1] + "…"
        whole -= len(text)
        if whole < 0:
            texts.append("…")
            break
        texts.append(text)
    return texts


# --- where a value that was read back is not the one that was returned


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
