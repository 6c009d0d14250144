"""The spec of a step: its function, its name or key, and the rules by which it is done."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import threading
from types import FunctionType
from typing import Any, Callable, TypeVar

from .. import _native
from ..errors import Unkeyable
from ..identity import identity
from ..retry import Retry

F = TypeVar("F", bound=Callable[..., Any])

# This much of an outer step's key stands as it is in the names of its inner steps.
_LONG_KEY = 128


@dataclasses.dataclass(slots=True, eq=False)
class StepSpec:
    """The parameters of `Run.step` and of `@outlast.step`, checked. Errors: `TypeError`, `ValueError`."""

    name: str
    fn: Callable[..., Any]
    #: The caller's own key; None for a step that is known by its name and arguments.
    key: str | None = None
    retry: Retry | None = None
    #: Seconds for each try.
    timeout: float | None = None
    at_most_once: bool = False
    #: Whether the step may be a new one while recorded steps of its name are left over: a model decides about it.
    may_diverge: bool = False

    def __post_init__(self) -> None:
        if type(self.name) is not str or not callable(self.fn) or self.key is not None or self.timeout is not None or self.at_most_once:
            self._check()
        self.at_most_once = self.at_most_once is not False and bool(self.at_most_once)

    def _check(self) -> None:
        self._check_function()
        if self.key is not None and not isinstance(self.key, str):
            raise TypeError(f"step {self.name!r}: key wants a text, had {type(self.key).__name__}")
        if self.at_most_once and self.retry is not None and self.retry.retries:
            raise ValueError(f"step {self.name!r}: at_most_once and retries exclude each other")
        if self.timeout is not None:
            self._check_timeout()

    def _check_function(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"a step wants a name first, had {type(self.name).__name__}")
        if not callable(self.fn):
            raise TypeError(f"step {self.name!r} wants a function, had {type(self.fn).__name__}")

    def _check_timeout(self) -> None:
        if isinstance(self.timeout, bool) or not isinstance(self.timeout, (int, float)):
            raise TypeError(f"step {self.name!r}: timeout wants seconds, had {self.timeout!r}")
        if not 0 < self.timeout < threading.TIMEOUT_MAX:
            raise ValueError(f"step {self.name!r}: timeout wants a number of seconds above 0, had {self.timeout!r}")


def is_async(fn: Callable[..., Any]) -> bool:
    """Whether calling `fn` gives an awaitable."""
    if type(fn) is FunctionType and not fn.__dict__:
        # The usual case, without the half dozen looks of `inspect`.
        return bool(fn.__code__.co_flags & inspect.CO_COROUTINE)
    while isinstance(fn, functools.partial):
        fn = fn.func
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None))


def label_of(fn: Any, name: str | None, decorator: str, parameter: str) -> str:
    """The name of a decorated function: `name`, else its own. Errors: `TypeError`."""
    if not callable(fn):
        raise TypeError(f"outlast.{decorator} wants a function, had {fn!r}; its parameters have names: @outlast.{decorator}({parameter}=…)")
    label = name or getattr(fn, "__name__", None)
    if not isinstance(label, str):
        raise TypeError(f"outlast.{decorator} wants a name for {fn!r}: outlast.{decorator}(name=…)(…)")
    return label


def stand_in(fn: F, call: Callable[[tuple[Any, ...], dict[str, Any]], Any]) -> F:
    """A function that looks like `fn`, a coroutine function if `fn` is one, and whose calls go to `call`."""

    @functools.wraps(fn)
    def called(*args: Any, **kwargs: Any) -> Any:
        return call(args, kwargs)

    if not is_async(fn):
        return called  # type: ignore[return-value]

    @functools.wraps(fn)
    async def awaited(*args: Any, **kwargs: Any) -> Any:
        return await called(*args, **kwargs)

    return awaited  # type: ignore[return-value]


def nested(outer: str, name: str) -> str:
    """The name of a step that begins inside the step with the key `outer`.

    The inner steps of one outer step are equals among themselves only. Where the outer step is replayed, its inner
    steps are not asked for, and do not count as left over.
    """
    if len(outer) > _LONG_KEY:
        # The key of a recursion does not grow with its depth.
        outer = _native.Recorded.base("", outer)
    return f"{outer}/{name}"


def key_of(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """A step's key without its number among equal steps: the name, and a digest of the arguments. Errors: `Unkeyable`."""
    try:
        return _native.Recorded.base(name, identity(args, kwargs))
    except Unkeyable as e:
        raise unkeyed(name, e) from None


def unkeyed(name: str, error: Unkeyable) -> Unkeyable:
    """The error for a step whose arguments have no key, made from the error about the arguments."""
    return Unkeyable(
        f"step {name!r} has no key: {error.message}",
        hint="give the step a key=…; or pass data (texts, dicts, dataclasses), and bind what is no input, such as a client, "
        "into the function: functools.partial(fn, client)",
    )
