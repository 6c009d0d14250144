"""`@outlast.step`: each call of a function is a step of the current run."""

from __future__ import annotations

import threading
from typing import Any, Callable, TypeVar, overload

from .. import scope
from ..errors import UnrecordedWarning
from ..opening import Store
from ..retry import Retry
from ..say import warn
from .life import begin
from .spec import StepSpec, label_of, stand_in

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
    """Makes each call of a function a step of the current run. Outside of a run, a call is a plain call.

    Decorates functions of module level: `@outlast.step`, or `@outlast.step(retries=outlast.Retry(4))`. `retries`,
    `timeout` and `at_most_once` mean what they mean for `Run.step`; `name` is the function's name by default. Inside
    another step, a call is a plain call: the outer step is recorded.

    Errors: those of `Run.step`. `UnrecordedWarning` where a thread without a current run calls the function while a
    run is open.
    """

    def decorate(fn: F) -> F:
        label = label_of(fn, name, "step", "name")
        spec = StepSpec(label, fn, retry=Retry.of(retries), timeout=timeout, at_most_once=at_most_once)

        def call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            current = scope.variable.get()
            if current is None:
                warn_if_lost(label)
                return fn(*args, **kwargs)
            if current.step is not None:
                return fn(*args, **kwargs)
            return begin(current.run, spec, args, kwargs)

        return stand_in(fn, call)

    return decorate(fn) if fn is not None else decorate


def warn_if_lost(name: str) -> None:
    if threading.current_thread() is not threading.main_thread() and Store._is_any_run_open():
        warn(
            f"{name}() was called in a thread that has no current run: it is not recorded. "
            "Start the thread's work with contextvars.copy_context().run(…), or use run.step(…)",
            UnrecordedWarning,
        )
