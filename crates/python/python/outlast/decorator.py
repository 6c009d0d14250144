"""`@outlast.step`: a function of which each call is a step of the run that it is called in."""

from __future__ import annotations

import functools
import threading
from typing import Any, Callable, TypeVar, overload

from . import scope, steps
from .errors import UnrecordedWarning
from .retry import Retry
from .warned import warn

F = TypeVar("F", bound=Callable[..., Any])


@overload
def step(fn: F) -> F: ...
@overload
def step(*, name: str | None = None, retries: Retry | int | None = None, timeout: float | None = None, at_most_once: bool = False) -> Callable[[F], F]: ...
def step(
    fn: Any = None,
    *,
    name: str | None = None,
    retries: Retry | int | None = None,
    timeout: float | None = None,
    at_most_once: bool = False,
) -> Any:
    """Makes each call of a function a step of the run that it is called in; a plain call outside of one.

    For module level: `@outlast.step` or `@outlast.step(retries=outlast.Retry(4))`. The parameters are those of
    `Run.step`; the name is the function's. Within another step it is a plain call: the outer step is what is recorded.
    """

    def decorate(fn: F) -> F:
        label = name or getattr(fn, "__name__", None)
        if not callable(fn):
            raise TypeError(f"outlast.step wants a function, had {fn!r}; its parameters have names: @outlast.step(name=…)")
        if not isinstance(label, str):
            raise TypeError(f"outlast.step wants a name for {fn!r}: outlast.step(name=…)(…)")
        retry = Retry.of(retries)

        @functools.wraps(fn)
        def called(*args: Any, **kwargs: Any) -> Any:
            current = scope.variable.get()
            if current is None:
                _warn_if_lost(label)
                return fn(*args, **kwargs)
            if current.step is not None:
                return fn(*args, **kwargs)
            return steps.begin(current.run, label, fn, args, kwargs, None, retry, timeout, at_most_once)

        if not steps.is_async(fn):
            return called  # type: ignore[return-value]

        # A coroutine function, to `run.step` and to whoever else asks.
        @functools.wraps(fn)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            return await called(*args, **kwargs)

        return awaited  # type: ignore[return-value]

    return decorate(fn) if fn is not None else decorate


def _warn_if_lost(name: str) -> None:
    from .runtime import _open

    if threading.current_thread() is not threading.main_thread() and any(r._live for r in _open.values()):
        warn(
            f"{name}() was called in a thread that has no current run: it is not recorded. "
            "Start the thread's work with contextvars.copy_context().run(…), or use run.step(…)",
            UnrecordedWarning,
        )
