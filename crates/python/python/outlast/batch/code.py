"""The digest of a function: its bytecode without line numbers.

Functions that it calls and prompts that it reads do not count: `version=` is for them.
"""

from __future__ import annotations

import dis
import functools
import hashlib
import json
from types import CodeType
from typing import Any, Callable

from .. import classes
from ..errors import Unkeyable
from ..identity import identity


def digest(fn: Callable[..., Any]) -> bytes:
    """The digest of a function, 32 bytes: equal while the function does the same under the same Python."""
    return hashlib.sha256("\n".join(_function(fn)).encode("utf-8", "replace")).digest()


def of_version(version: object) -> bytes:
    """The digest of a version that the caller gives, 32 bytes."""
    return hashlib.sha256(f"version {version}".encode("utf-8", "replace")).digest()


def _function(fn: Any) -> list[str]:
    if isinstance(fn, functools.partial):
        return [*_function(fn.func), _bound(fn.args, fn.keywords)]
    fn = _unwrapped(fn)
    if isinstance(fn, functools.partial):
        return _function(fn)
    if not hasattr(fn, "__code__"):
        # A callable object is digested by its class's `__call__`.
        fn = _unwrapped(getattr(type(fn), "__call__", fn))
    fn = getattr(fn, "__func__", fn)
    found = getattr(fn, "__code__", None)
    if found is None:
        return [f"{getattr(fn, '__module__', '')}.{getattr(fn, '__qualname__', repr(type(fn)))}"]
    return [*_code(found), _bound(tuple(fn.__defaults__ or ()), dict(fn.__kwdefaults__ or {}))]


def _bound(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """A text for the arguments that are bound to a function, such as its defaults. Objects such as clients count only by
    their class: they are not the function's input."""
    try:
        return identity(args, kwargs)
    except Unkeyable:
        return json.dumps([args, kwargs] if kwargs else args, default=lambda v: [classes.shown(type(v))], skipkeys=True)


def _unwrapped(fn: Any) -> Any:
    """Returns the function under all its decorators."""
    seen = set()
    while (under := getattr(fn, "__wrapped__", None)) is not None and id(fn) not in seen:
        seen.add(id(fn))
        fn = under
    return fn


def _code(code: CodeType) -> list[str]:
    # Uses what each instruction refers to, because indexes into tables change with a docstring.
    parts = [repr(code.co_varnames[: code.co_argcount + code.co_kwonlyargcount])]
    for instruction in dis.get_instructions(code):
        value = instruction.argval
        parts.append(instruction.opname)
        if isinstance(value, CodeType):
            parts += _code(value)
        elif isinstance(value, frozenset):
            # The order of a set differs between processes.
            parts.append(repr(sorted(map(repr, value))))
        else:
            parts.append(repr(value))
    return parts
