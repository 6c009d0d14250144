"""The text by which an argument or an item is known: equal for equal values, in every process; refused where it would lie.

Data counts as its JSON, and as `==` has it: a tuple as a list, a dict's number key as its text, a value of a subclass of
`str`, `int`, `list` or `dict` as that class's value. Everything else is written out (`_written`), or refused: a key that
leaves something out would hand one value's recorded result to another.
"""

from __future__ import annotations

import dataclasses
import enum
import functools
import hashlib
import json
import re
import types
from collections.abc import Iterator
from typing import Any

from . import classes, libraries
from .errors import Unkeyable

_SIMPLE = frozenset({str, int, float, bool, type(None)})

#: Modules whose classes say in their `repr` all that their values hold.
_SAYING_ALL = frozenset({"array", "datetime", "decimal", "fractions", "ipaddress", "pathlib", "re", "typing", "uuid", "zoneinfo"})

#: Classes of containers, beside the usual ones, that show their elements.
_CONTAINERS = ("deque", "dict_items", "dict_keys", "dict_values", "mappingproxy", "odict_items", "odict_keys", "odict_values")

#: Packages whose objects without a `repr` are connections to a provider: where a call goes is no part of what it asks.
CLIENTS = ("openai.", "anthropic.", "google.genai.")

#: Modules of pydantic's addresses, whose JSON is the address.
_URLS = ("pydantic.networks", "pydantic_core._pydantic_core")

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]{4}")
_QUIET = "does not say what it holds"


def identity(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The text of a call's arguments. Errors: `Unkeyable`, which names the argument."""
    if not kwargs:
        for value in args:
            if type(value) not in _SIMPLE:
                break
        else:
            return repr(args)
    try:
        return _text([args, kwargs] if kwargs else args)
    except Unkeyable as e:
        for place, value in (*enumerate(args, 1), *kwargs.items()):
            try:
                _text(value)
            except Unkeyable as its:
                raise Unkeyable(f"argument {place} has no faithful text: {its.message}") from None
        raise e from None


def digest(value: Any) -> bytes:
    """The digest of an item or an input, 32 bytes. Errors: `Unkeyable`."""
    try:
        text = repr((value,)) if type(value) in _SIMPLE else _text((value,))
    except ValueError as e:
        raise Unkeyable(f"an int cannot be written: {e}") from None
    return hashlib.sha256(text.encode("utf-8", "replace")).digest()


def _text(value: Any) -> str:
    try:
        try:
            return _json(value)
        except Unkeyable:
            raise
        except (TypeError, ValueError):
            # A dict has keys that are no texts, a list holds itself, or an int is too long.
            if _is_all_shown(value):
                return repr(value).encode("ascii", "backslashreplace").decode()
            return _json(_tree(value))
    except RecursionError:
        raise Unkeyable(f"{classes.shown(type(value))} holds itself, or is nested too deeply") from None
    except ValueError as e:
        raise Unkeyable(f"{classes.shown(type(value))} cannot be written: {e}") from None


def _tree(value: Any) -> Any:
    """The value as JSON takes it. A dict with other keys than texts becomes the sorted pairs of its texts."""
    if isinstance(value, dict):
        if all(isinstance(key, str) for key in value):
            return {key: _tree(part) for key, part in value.items()}
        return ["builtins.dict", sorted([_text(key), _text(part)] for key, part in value.items())]
    if isinstance(value, (list, tuple)):
        return [_tree(part) for part in value]
    return value if isinstance(value, (str, int, float, type(None))) else _tree(_written(value))


def _is_all_shown(value: Any) -> bool:
    """Whether the `repr` of a value shows everything that the value holds, and is the same in every process."""
    cls = type(value)
    if cls in _SIMPLE or cls is bytes:
        return True
    if cls is dict:
        return all(_is_all_shown(key) and _is_all_shown(part) for key, part in value.items())
    if cls is list or cls is tuple:
        return all(map(_is_all_shown, value))
    try:
        return not isinstance(value, (set, frozenset)) and bool(_own_text(value))
    except Unkeyable:
        return False


# --- values that JSON does not have


def _written(value: Any) -> Any:
    """The value as the name of its class and the content that distinguishes it from others of the class. Errors:
    `Unkeyable`."""
    cls: Any = type(value)
    name = classes.shown(cls)
    if _says_all(cls):
        return [name, _own_text(value)]
    if classes.is_model(cls):
        return [name, _model(value)]
    if dataclasses.is_dataclass(cls):
        return [name, _fields(value)]
    if isinstance(value, (bytes, bytearray)):
        return [name, hashlib.sha256(value).hexdigest()]
    if isinstance(value, (set, frozenset)):
        return [name, sorted(map(_text, value))]
    if isinstance(value, enum.Enum):
        return [name, repr(value)] if _is_all_shown(value) else [name, value.name, value.value]
    if hasattr(cls, "get_secret_value"):
        return [name, hashlib.sha256(repr(value.get_secret_value()).encode("utf-8", "replace")).hexdigest()]
    if isinstance(value, functools.partial):
        return [name, value.func, list(value.args), value.keywords]
    if isinstance(value, types.MethodType):
        return [name, value.__func__, value.__self__]
    if issubclass(cls, type) or (callable(value) and _qualname(value)):
        return [name, *_named(value)]
    parts = libraries.written(value)
    if parts is not None:
        return [name, *parts]
    if (parts := _buffer(value)) is not None:
        return [name, *parts]
    if _lack(cls) is _QUIET and (_is_empty(value) or f"{cls.__module__}.".startswith(CLIENTS)):
        return [name, f"{cls.__module__}."] if callable(value) else [name]
    return [name, _own_text(value)]


_json = json.JSONEncoder(default=_written, sort_keys=True).encode


def _model(value: Any) -> Any:
    """The fields of a pydantic model: as the model's JSON where that shows everything."""
    try:
        dumped = value.model_dump(mode="json", warnings=False)
        if _says(dumped, value):
            return dumped
    except Exception:
        # A field that pydantic cannot write as JSON, such as an array, is written here.
        pass
    return _fields(value)


def _fields(value: Any) -> dict[str, Any]:
    """The fields of a model or a dataclass, including those that the model's JSON leaves out."""
    if classes.is_model(type(value)):
        extra = getattr(value, "__pydantic_extra__", None)
        return {**vars(value), **extra} if extra else vars(value)
    return {f.name: getattr(value, f.name, None) for f in dataclasses.fields(value)}


def _says(dumped: Any, value: Any) -> bool:
    """Whether the JSON of a model's field states its whole value: nothing is excluded, hidden, shortened or unordered."""
    cls: Any = type(value)
    if cls in _SIMPLE:
        return value is dumped or value == dumped or str(value) == dumped
    if _says_all(cls) or cls.__module__ in _URLS or isinstance(value, (enum.Enum, bytes)):
        return True
    if classes.is_model(cls) or dataclasses.is_dataclass(cls):
        fields = _fields(value)
        if not isinstance(dumped, dict):
            return list(fields) == ["root"] and _says(dumped, fields["root"])
        aliases = _aliases(cls)
        return all(_says(dumped.get(name, dumped.get(aliases.get(name))), part) for name, part in fields.items())
    if isinstance(value, dict):
        keys = all(type(key) in _SIMPLE or _says_all(type(key)) or isinstance(key, enum.Enum) for key in value)
        return keys and len(dumped) == len(value) and all(map(_says, dumped.values(), value.values()))
    if isinstance(value, (list, tuple)):
        return len(dumped) == len(value) and all(map(_says, dumped, value))
    return isinstance(value, (str, int, float)) and value == dumped


@functools.lru_cache(maxsize=512)
def _aliases(cls: Any) -> dict[str, str | None]:
    return {name: field.serialization_alias for name, field in getattr(cls, "model_fields", {}).items()}


def _qualname(value: Any) -> str:
    # An alias such as `list[int]` has the name of its origin.
    name = None if type(value).__module__ in ("types", "typing") else getattr(value, "__qualname__", None)
    return name if isinstance(name, str) else ""


def _named(value: Any) -> list[Any]:
    """A class or function by its name, a built-in method with its object. Errors: `Unkeyable` where the name does not
    identify it."""
    qualname = _qualname(value)
    named = [f"{getattr(value, '__module__', '')}.{qualname}"]
    if isinstance(value, type):
        return named
    own = getattr(value, "__self__", None)
    if own is not None and not isinstance(own, (type, types.ModuleType)):
        return [*named, own]
    if "<lambda>" in qualname:
        raise Unkeyable("a lambda has no name of its own")
    if "<locals>" in qualname and (held := _captured(value)):
        raise Unkeyable(f"the function {qualname} holds variables ({', '.join(held)}), which its name does not say")
    return named


def _captured(fn: Any) -> list[str]:
    code = getattr(fn, "__code__", None)
    free = list(code.co_freevars) if code is not None else []
    # A function that calls itself holds its own name, and nothing else by it.
    held = [n for n, cell in zip(free, getattr(fn, "__closure__", None) or ()) if _content(cell) is not fn]
    return held + (["its defaults"] if getattr(fn, "__defaults__", None) or getattr(fn, "__kwdefaults__", None) else [])


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return None


def _buffer(value: Any) -> list[Any] | None:
    """The content of a value that has a memory buffer; None for any other value."""
    try:
        view = memoryview(value)
    except TypeError:
        return None
    if set(view.format) & set("OP&"):
        raise Unkeyable(f"{classes.shown(type(value))} holds addresses")
    text = hashlib.sha256(view.tobytes()).hexdigest()
    return [text] if view.format == "B" and view.ndim == 1 else [view.format, list(view.shape or ()), text]


# --- objects


def _own_text(value: Any) -> str:
    """The `repr` of an object, where that shows everything that the object holds. Errors: `Unkeyable`."""
    cls = type(value)
    shown = classes.shown(cls)
    if lack := _lack(cls):
        raise Unkeyable(f"{shown} {lack}")
    try:
        text = repr(value)
    except RecursionError:
        raise
    except Exception as e:
        raise Unkeyable(f"{shown} {_QUIET}: its repr raises {type(e).__name__}") from None
    if _ADDRESS.search(text) or hex(id(value)) in text or str(id(value)) in text:
        raise Unkeyable(f"{shown} is shown by its address in memory")
    if hidden := next((name for name, part in _state(value) if not _is_visible(part, text)), None):
        raise Unkeyable(f"{shown} does not show its {hidden}")
    return text


@functools.lru_cache(maxsize=512)
def _lack(cls: type) -> str | None:
    """The reason why no `repr` can show everything that the class's values hold; None where one can."""
    if libraries.is_array(cls):
        return "is an array whose content is not known here"
    if any(hasattr(cls, name) for name in ("__next__", "__anext__", "__await__")):
        return "can be gone through only once"
    if hasattr(cls, "fileno"):
        return "is an open file, or another handle of this process"
    return _QUIET if cls.__repr__ is object.__repr__ else None


def _is_empty(value: Any) -> bool:
    """Whether the object has no state, neither Python's nor C's, so that its class identifies it."""
    try:
        _, args, *state = object.__reduce_ex__(value, 2)  # type: ignore[misc]
    except Exception:
        return False
    return args == (type(value),) and not any(state)


def _says_all(cls: type) -> bool:
    return cls.__module__.partition(".")[0] in _SAYING_ALL


def _state(value: Any) -> Iterator[tuple[str, Any]]:
    """Yields the contents of an object by name: attributes, slots, and the elements of a container."""
    cls = type(value)
    if _says_all(cls) or cls is types.ModuleType or cls.__module__.startswith("outlast."):
        return
    if isinstance(value, enum.Enum):
        yield "name", value.name or value.value
        return
    if cls.__dictoffset__:
        yield from ((name, part) for name, part in value.__dict__.items() if not _is_pythons(name))
    for base in cls.__mro__:
        slots = () if _says_all(base) else base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            name = f"_{base.__name__.lstrip('_')}{name}" if name.startswith("__") and not _is_pythons(name) else name
            if not _is_pythons(name) and hasattr(value, name):
                yield name, getattr(value, name)
    if isinstance(value, BaseException):
        yield "args", [*value.args, getattr(value, "filename", None)]
    if cls.__name__ in _CONTAINERS:
        yield "elements", list(value.items() if isinstance(value, types.MappingProxyType) else value)


def _is_pythons(name: str) -> bool:
    return name.startswith("__") and name.endswith("__")


def _is_visible(part: Any, text: str) -> bool:
    """Whether a part of an object appears in the object's `repr`, so that other parts give another `repr`."""
    cls = type(part)
    if part is None:
        return True
    if cls is str:
        return not part or _stands(part, text) or _stands(repr(part)[1:-1], text)
    if cls in _SIMPLE:
        return _stands(repr(part), text)
    if isinstance(part, dict):
        return all(_is_visible(key, text) and _is_visible(value, text) for key, value in part.items())
    if isinstance(part, (list, tuple)):
        return all(_is_visible(value, text) for value in part)
    if isinstance(part, (set, frozenset)):
        # The order of a longer one differs between processes.
        return len(part) < 2 and all(_is_visible(value, text) for value in part)
    try:
        own = repr(part) if cls is bytes else _own_text(part)
    except Unkeyable:
        return False
    return own in text or str(part) in text


def _stands(word: str, text: str) -> bool:
    """Whether a word appears in a text by itself, and not within another word."""
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text) is not None
