"""`@outlast.tool`: each call of an agent's tool is done once over all lives of a run.

A call is a step whose outcome is on disk before it is returned: a result, or the exception that the tool raised. The next
life gets the outcome without a call. `ToolSpec.call` is for plug-ins of frameworks, which know the call's id.
"""

from __future__ import annotations

import dataclasses
import inspect
import json
from typing import Any, Callable, Literal, TypeVar, overload

from . import approvals, classes, scope
from .effects import Process, drive, drive_async
from .errors import Error, NotSerializable, Skip, StepInDoubt, ToolFailed
from .opening import RunHandle
from .runs import current
from .steps.decorator import warn_if_lost
from .steps.life import begun, resolve
from .steps.spec import StepSpec, is_async, label_of, stand_in

F = TypeVar("F", bound=Callable[..., Any])

Effect = Literal["read", "idempotent", "once"]
InDoubt = Literal["raise", "tell"]

#: What a model is told of a call in doubt.
IN_DOUBT = "outcome unknown: {} was begun before and may have been done; look whether it was before you repeat it"


@overload
def tool(fn: F) -> F: ...
@overload
def tool(
    *,
    name: str | None = None,
    effect: Effect = "once",
    approve: bool = False,
    in_doubt: InDoubt = "raise",
    timeout: float | None = None,
) -> Callable[[F], F]: ...
def tool(
    fn: Any = None,
    *,
    name: str | None = None,
    effect: Effect = "once",
    approve: bool = False,
    in_doubt: InDoubt = "raise",
    timeout: float | None = None,
) -> Any:
    """Makes each call of a tool durable: the outcome is on disk before it is returned, and a later life of the run gets it
    without a call. An exception is an outcome, too, and is raised again. Sync and async functions; outside of a run, a
    call is a plain call.

    `effect` says what becomes of a call that a death cut off. `"once"` (the default): the beginning is on disk before the
    tool is called, and the next life raises `StepInDoubt` until a person says what came of it (`outlast resolve`).
    `"idempotent"`: called again; the tool hands `outlast.current().idempotency_key` on, which is the same in every life.
    `"read"`: called again.

    `in_doubt="tell"` returns a text for the model instead of raising `StepInDoubt`. `approve=True` asks a person first (see
    `Run.approve`). `timeout` limits the call, in seconds. `name` is the function's name by default.

    A call is known by its name, its arguments and its place among equal calls. A result is JSON, a dataclass or a pydantic
    model. Errors: those of the tool; `ToolFailed` for a recorded exception that cannot be made again; `StepInDoubt`;
    `StepTimeout`; `NotSerializable`; `ApprovalDenied`; for `"once"` also `StepDiverged`; and those of `Run.step`.
    """

    def decorate(fn: F) -> F:
        return ToolSpec(label_of(fn, name, "tool", "effect"), effect, approve, in_doubt, timeout).wrap(fn)

    return decorate(fn) if fn is not None else decorate


@dataclasses.dataclass
class Raised:
    """An exception that a tool raised, recorded as the outcome of the tool's call."""

    type: str
    message: str
    shown: str
    args: Any

    @staticmethod
    def of(error: Exception) -> "Raised":
        cls = type(error)
        try:
            args = json.loads(json.dumps(error.args, allow_nan=False))
        except (TypeError, ValueError, RecursionError):
            args = None
        return Raised(f"{cls.__module__}:{cls.__qualname__}", _text(str, error), _text(repr, error), args)

    def again(self) -> Exception:
        """The exception again: of the class that was raised where that gives the same text, else `ToolFailed`."""
        try:
            cls: Any = classes.lookup(self.type)
            made = cls(*self.args)
            if isinstance(made, Exception) and (str(made), repr(made)) == (self.message, self.shown):
                return made
        except Exception:
            # The class is gone, or is made of other arguments: the words are what counts.
            pass
        return ToolFailed(self.message)


def _text(of: Callable[[Any], str], error: Exception) -> str:
    try:
        return of(error)
    except Exception as e:
        return f"({type(error).__name__}, whose text raised {type(e).__name__})"


@dataclasses.dataclass(frozen=True)
class ToolSpec:
    """The facts of a tool. Errors: `ValueError`."""

    name: str
    effect: Effect = "once"
    approve: bool = False
    in_doubt: InDoubt = "raise"
    timeout: float | None = None
    #: Exceptions by which a framework leaves a tool and calls it again later, from its top.
    pauses: tuple[type[BaseException], ...] = ()

    def __post_init__(self) -> None:
        if self.effect not in ("read", "idempotent", "once"):
            raise ValueError(f"tool {self.name!r}: effect wants 'read', 'idempotent' or 'once', had {self.effect!r}")
        if self.in_doubt not in ("raise", "tell"):
            raise ValueError(f"tool {self.name!r}: in_doubt wants 'raise' or 'tell', had {self.in_doubt!r}")

    def wrap(self, fn: F) -> F:
        """A function whose calls are calls of this tool."""

        return stand_in(fn, lambda args, kwargs: self.call(fn, args, kwargs))

    def call(
        self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], id: str | None = None, shown: Any = None
    ) -> Any:
        """Calls `fn` once over all lives. Awaitable for an async function.

        `id` is the tool-call id of the model's answer; asked again with it, also in this life, the recorded outcome is given.
        `shown`: the arguments for people and approvals, where `args` are not data.
        """
        current = scope.variable.get()
        if current is None:
            warn_if_lost(self.name)
            return fn(*args, **kwargs)
        call = ToolCall(self, current.run, fn, id)
        if self.approve and shown is None:
            shown = _by_name(fn, args, kwargs)
        return call.awaited(args, kwargs, shown) if is_async(fn) else call.waited(args, kwargs, shown)


def _by_name(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a call by the names of their parameters, for a person to read."""
    try:
        return dict(inspect.signature(fn).bind(*args, **kwargs).arguments)
    except (TypeError, ValueError):
        # The call itself says what is wrong with it.
        return {**{str(n): arg for n, arg in enumerate(args)}, **kwargs}


class ToolCall:
    """One call of a tool in a run, for threads and for tasks."""

    def __init__(self, spec: ToolSpec, run: RunHandle, fn: Callable[..., Any], id: str | None) -> None:
        self._spec = spec
        self._run = run
        self._fn = fn
        self._id = id
        # Inside another step, the call is its inner step.
        around = scope.variable.get()
        outer = around.step if around is not None and id is not None else None
        self._key = None if id is None else f"tool/{spec.name}/{id}" if outer is None else f"{outer}/tool/{spec.name}/{id}"
        self._error: Exception | None = None
        # The key under which the step was begun, and whether the tool was left by a pause.
        self._begun: str | None = None
        self._paused = False

    def waited(self, args: tuple[Any, ...], kwargs: dict[str, Any], asked: Any) -> Any:
        return self._given(drive(self._life(self._sync, args, kwargs, asked)))

    async def awaited(self, args: tuple[Any, ...], kwargs: dict[str, Any], asked: Any) -> Any:
        return self._given(await drive_async(self._life(self._async, args, kwargs, asked)))

    def _life(self, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], asked: Any) -> Process[Any]:
        """The outcome of the call, from its approval to its record."""
        outcomes = self._run.steps.outcomes
        if self._key is not None and self._key in outcomes:
            return outcomes[self._key]
        if self._spec.approve:
            yield from approvals.asked(self._run, approvals.Question(self._spec.name, asked, None, None, self._key))
        try:
            outcome = yield from begun(self._run, self._step(fn), args, kwargs)
        except Exception as e:
            return self._failed(e)
        if self._key is not None:
            outcomes[self._key] = outcome
        return outcome

    def _given(self, outcome: Any) -> Any:
        if not isinstance(outcome, Raised):
            return outcome
        error, self._error = self._error, None
        raise outcome.again() if error is None else error

    def _step(self, fn: Callable[..., Any]) -> StepSpec:
        spec = self._spec
        return StepSpec(spec.name, fn, self._key, None, spec.timeout, spec.effect == "once", spec.effect != "once")

    # --- the tool itself

    def _sync(self, *args: Any, **kwargs: Any) -> Any:
        try:
            self._begun = current().step
            return self._fn(*args, **kwargs)
        except Exception as e:
            return self._raised(e)

    async def _async(self, *args: Any, **kwargs: Any) -> Any:
        try:
            self._begun = current().step
            return await self._fn(*args, **kwargs)
        except Exception as e:
            return self._raised(e)

    def _raised(self, error: Exception) -> Raised:
        """The outcome of a tool that raised. Exceptions that are no outcome of the tool are raised again: pauses, and
        refusals by Outlast itself."""
        self._paused = isinstance(error, self._spec.pauses)
        if self._paused or isinstance(error, (Error, Skip)) and not isinstance(error, ToolFailed):
            raise error
        self._error = error
        return Raised.of(error)

    def _failed(self, error: Exception) -> Any:
        if self._paused and self._spec.effect == "once" and self._begun is not None:
            # The framework calls the tool again from its top: that is no doubt.
            resolve(self._run, self._spec.name, (), {}, self._begun, True, None, None)
        if isinstance(error, StepInDoubt) and self._spec.in_doubt == "tell":
            return IN_DOUBT.format(self._spec.name)
        if isinstance(error, NotSerializable) and self._begun is not None:
            error.hint = f"return JSON from tool {self._spec.name!r}, a dataclass or a pydantic model; what it did is not undone"
        raise error
