"""A step: its key, its recorded result, its tries."""

from __future__ import annotations

import asyncio
import contextvars
import functools
import inspect
import json
import threading
import time
import traceback
from types import FunctionType
from typing import TYPE_CHECKING, Any, Callable

from . import _native, codec, doubt, scope
from .beside import Beside
from .buffer import Changes
from .errors import Conflict, DivergenceWarning, DuplicateKey, Error, StepDiverged, StepFailed, StepInDoubt, StepTimeout
from .opening import Opening
from .retry import Retry
from .waiting import done
from .warned import warn

if TYPE_CHECKING:
    from .runs import Run

# A traceback as it is journaled: its end says most.
_TRACEBACK = 16 << 10

# What is said of an entry that is not the step's.
OTHERS = frozenset({"unknown_entry", "already_taken", "already_settled"})

# A result of this length may need parts.
LONG = 256 << 10

# Of an outer step's key this much is in those of its inner ones as it is.
_LONG_KEY = 128

# Waits between tries; tests put their own in.
_sleep = time.sleep


class Memory:
    """What one life of a run has recorded before it, and which keys it has used itself."""

    def __init__(self, run: "Run") -> None:
        self._run = run
        self._lock = threading.Lock()
        self.recorded: "_native.Recorded | None" = None
        self.beside: Beside | None = None
        self._explicit: set[str] = set()
        self._warned = False

    def begin(self, recorded: "_native.Recorded") -> None:
        self.recorded = recorded
        self._explicit.clear()
        self._warned = False

    def take(self, base: str, explicit: bool) -> str:
        """The key of a step that begins: `base`, or the next one among equals."""
        if not explicit:
            return self.recorded.take(base)  # type: ignore[union-attr]
        self.recorded.note_strand()  # type: ignore[union-attr]
        with self._lock:
            if base in self._explicit:
                raise DuplicateKey(
                    f"the key {base!r} names two steps of run {self._run.id}",
                    hint="give each step a key of its own, or none",
                )
            self._explicit.add(base)
            return base

    def give_back(self, key: str, explicit: bool) -> None:
        """The step came to nothing: the next equal one stands in its place."""
        if not explicit:
            self.recorded.give_back(key)  # type: ignore[union-attr]
            return
        with self._lock:
            self._explicit.discard(key)

    def warn_once(self, message: str) -> None:
        if not self._warned:
            self._warned = True
            warn(message, DivergenceWarning)


class Call:
    """One call of `run.step`."""

    def __init__(
        self,
        run: "Run",
        name: str,
        fn: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        key: str | None,
        retry: Retry | None,
        timeout: float | None,
        at_most_once: bool,
        base: str | None = None,
    ) -> None:
        if not isinstance(name, str):
            raise TypeError(f"a step wants a name first, had {type(name).__name__}")
        if not callable(fn):
            raise TypeError(f"step {name!r} wants a function, had {type(fn).__name__}")
        if key is not None and not isinstance(key, str):
            raise TypeError(f"step {name!r}: key wants a text, had {type(key).__name__}")
        if at_most_once and retry is not None and retry.retries:
            raise ValueError(f"step {name!r}: at_most_once and retries exclude each other")
        self.run_ = run
        self.name = name
        self.fn = fn
        self.args = args
        self.kwargs = kwargs
        self.explicit = key is not None
        self.base = base if key is None else key
        self.retry = retry
        self.timeout = _seconds(name, timeout)
        self.at_most_once = bool(at_most_once)
        self.key = ""
        self._opening = Opening(self)

    # --- the two ways to run

    def run(self) -> Any:
        recorded, value = self._find()
        if recorded:
            return value
        try:
            while True:
                if not self._opening.open():
                    return self._value(self._opening.number)
                tried = self._opening.tried
                changes = Changes(self.run_.id)
                token = scope.variable.set(scope.Current(self.run_, self.key, self._opening, tried, changes))
                try:
                    result = self._invoke()
                    text = codec.encode(result)
                except Exception as e:
                    changes.seal()
                    scope.variable.reset(token)
                    delay = self._failed(e, tried)
                    self._record_error(self._opening.seq, e, delay is not None).wait()
                    if delay is None:
                        raise
                    _sleep(delay)
                    continue
                except BaseException:
                    changes.seal()
                    scope.variable.reset(token)
                    raise
                scope.variable.reset(token)
                try:
                    self._close(text, changes)
                except Conflict as e:
                    delay = self._failed(e, tried)
                    self._record_error(self._opening.seq, e, delay is not None).wait()
                    if delay is None:
                        raise
                    _sleep(delay)
                    continue
                return codec.read_back(result, text)
        except BaseException:
            self._came_to_nothing()
            raise

    def _close(self, text: str, changes: Changes) -> None:
        """Records the result, with what the step changed in the state. Errors: `Conflict`, and it is a failed try."""
        try:
            # What goes in parts goes to an entry that is there.
            number = self._opening.number if len(text) < LONG else self._opening.seq
            self._record(number, text, changes).wait()
        except Error as e:
            if not self._opening.is_ahead or e.code not in OTHERS:
                raise
            # Another process wrote to the run since the answer: the number was its entry's.
            self._record(self._opening.seq, text, changes).wait()

    async def run_async(self) -> Any:
        # Its place among equals is that of the task that awaits it: in a replay as when it was done.
        recorded, value = self._find()
        if recorded:
            return value
        try:
            while True:
                if not await self._opening.open_async():
                    return self._value(self._opening.number)
                begun, tried = self._opening.seq, self._opening.tried
                changes = Changes(self.run_.id)
                token = scope.variable.set(scope.Current(self.run_, self.key, begun, tried, changes))
                try:
                    result = await self._invoke_async()
                    text = codec.encode(result)
                except Exception as e:
                    changes.seal()
                    scope.variable.reset(token)
                    delay = self._failed(e, tried)
                    await done(self._record_error(begun, e, delay is not None))
                    if delay is None:
                        raise
                    await asyncio.sleep(delay)
                    continue
                except BaseException:
                    changes.seal()
                    scope.variable.reset(token)
                    raise
                scope.variable.reset(token)
                try:
                    await done(self._record(begun, text, changes))
                except Conflict as e:
                    delay = self._failed(e, tried)
                    await done(self._record_error(begun, e, delay is not None))
                    if delay is None:
                        raise
                    await asyncio.sleep(delay)
                    continue
                return codec.read_back(result, text)
        except BaseException:
            self._came_to_nothing()
            raise

    # --- what is recorded

    def _find(self) -> tuple[bool, Any]:
        """The recorded result, if there is one. Errors: `StepInDoubt`, `StepDiverged`, `RunCompleted`."""
        run, memory = self.run_, self.run_.steps
        seat = run._seat_or_replay()
        assert memory.recorded is not None
        if self.base is None:
            _, self.base, value = _native.enter(memory.recorded, self.name, self.args, self.kwargs, False)
            if self.base is None:
                return True, value
        self.key = memory.take(self.base, self.explicit)
        try:
            found = memory.recorded.find(self.key)
            if found is not None and found[1] == "done":
                return True, self._value(found[0])
            if seat is None:
                if found is not None and found[1] == "failed":
                    self._failed_before(found[0])
                run._seat_or_raise(f"step {self._shown()}")
            if self.at_most_once and found is not None:
                self._doubt(found[0], found[1])
            if found is None and not self.explicit:
                self._check_divergence()
            return False, None
        except BaseException:
            self._came_to_nothing()
            raise

    def _value(self, seq: int) -> Any:
        return codec.decode(self.run_._engine.value(self.run_._no, seq))["value"]

    def _failed_before(self, seq: int) -> None:
        error = json.loads(self.run_._engine.value(self.run_._no, seq)).get("error", {})
        raise StepFailed(
            f"step {self._shown()} raised {error.get('type', 'an exception')} when run {self.run_.id} was completed: {error.get('message', '')}",
            hint="a completed run replays, and runs nothing again; open a run with another id, to do that",
        )

    def _doubt(self, seq: int, state: str) -> None:
        doubt.check(self.run_, self._shown(), self.key, seq, state)

    def _check_divergence(self) -> None:
        memory = self.run_.steps
        assert memory.recorded is not None
        # Where several tasks or threads do steps, one may well be ahead of what another has yet to replay.
        unused = memory.recorded.unused(self.name) if memory.recorded.is_sequential else None
        if unused is None:
            return
        if memory.beside is not None and memory.beside.is_anybody():
            memory.recorded.be_concurrent()
            return
        seq, _, count = unused
        had = json.loads(self.run_._engine.value(self.run_._no, seq)).get("args", [])
        now = codec.shown(self.args, self.kwargs)
        message = (
            f"step {self._shown()} was not done by earlier lives of run {self.run_.id}, which have {count} of its name "
            f"left unused: {_difference(now, had)}"
        )
        if self.run_._on_divergence == "live":
            memory.warn_once(message)
            return
        raise StepDiverged(
            message,
            hint='make the program do the same steps again, give the step a key=, or open the run with on_divergence="live"',
        )

    def _shown(self) -> str:
        return f"{self.name}({', '.join(codec.shown(self.args, self.kwargs, 40, 120))})"

    # --- opening and closing

    def _record(self, seq: int, text: str, changes: Changes) -> "_native.Ticket":
        """The result, with what the step changed in the state. Errors, when committed: `Conflict`, and it is a failed try."""
        args = codec.compact(codec.shown(self.args, self.kwargs))
        # A lone surrogate in an argument is no reason to lose a result.
        whole = f'{{"args":{args},"value":{text}}}'.encode("utf-8", "replace")
        return seat_of_entry(self.run_, self.name).record(seq, whole, False, changes.seal())

    def _record_error(self, seq: int, error: BaseException, again: bool) -> "_native.Ticket":
        ticket = record_error(self.run_, self.name, seq, self.args, self.kwargs, error, again)
        if self.at_most_once and self.run_.steps.recorded is not None:
            self.run_.steps.recorded.note(self.key, seq, False)
        return ticket

    def _failed(self, error: BaseException, tried: int) -> float | None:
        return self.retry.delay(error, tried) if self.retry is not None else None

    def _came_to_nothing(self) -> None:
        if self.key:
            self.run_.steps.give_back(self.key, self.explicit)
            self.key = ""

    # --- calling the function

    def _invoke(self) -> Any:
        if self.timeout is None:
            result = self.fn(*self.args, **self.kwargs)
        else:
            result = _in_thread(self.fn, self.args, self.kwargs, self.timeout, self.name)
        if inspect.iscoroutine(result):
            result.close()
            raise TypeError(f"step {self.name!r}: its function returned a coroutine; pass an async function, and await the step")
        return result

    async def _invoke_async(self) -> Any:
        awaitable = self.fn(*self.args, **self.kwargs)
        if self.timeout is None:
            return await awaitable
        waiting = asyncio.ensure_future(awaitable)
        finished, _ = await _wait(waiting, self.timeout)
        if finished:
            return waiting.result()
        waiting.cancel()
        # It has the chance to tidy up; what it says then does not count.
        await asyncio.wait([waiting], timeout=1.0)
        raise _late(self.name, self.timeout)


async def _wait(waiting: "asyncio.Future[Any]", timeout: float) -> tuple[Any, Any]:
    try:
        return await asyncio.wait([waiting], timeout=timeout)
    except asyncio.CancelledError:
        waiting.cancel()
        raise


def _late(name: str, timeout: float) -> StepTimeout:
    return StepTimeout(f"step {name!r} took longer than its timeout of {timeout:g} s")


def _in_thread(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], timeout: float, name: str) -> Any:
    """Calls `fn` in a thread of its own. A thread cannot be ended: a late one goes on, and its result is dropped."""
    result: list[Any] = []
    error: list[BaseException] = []
    context = contextvars.copy_context()

    def body() -> None:
        try:
            result.append(context.run(fn, *args, **kwargs))
        except BaseException as e:
            error.append(e)

    thread = threading.Thread(target=body, name=f"outlast step {name}", daemon=True)
    thread.start()
    thread.join(timeout)
    if error:
        raise error[0]
    if not result:
        raise _late(name, timeout)
    return result[0]


def record_error(
    run: "Run", name: str, seq: int, args: tuple[Any, ...], kwargs: dict[str, Any], error: BaseException, again: bool = False
) -> "_native.Ticket":
    """The error of a try; `again`: the next one follows, also in another life."""
    whole = {"args": codec.shown(args, kwargs), "error": told(error)}
    return seat_of_entry(run, name).record(seq, json.dumps(whole).encode(), True, [], again)


def seat_of_entry(run: "Run", name: str) -> "_native.Seat":
    # Closing is the entry's own right: also of a run that was asked to stop, or left while others were at work in it,
    # until it is opened again and may do the step anew.
    seat = run._seat
    if seat is None and run._runtime._live.get(run.id) is None:
        seat = run._left
    return run._seat_or_raise(f"step {name!r}") if seat is None else seat


def told(error: BaseException) -> dict[str, str]:
    """An exception as it is journaled."""
    cls = type(error)
    text = "".join(traceback.format_exception(cls, error, error.__traceback__))
    return {"type": f"{cls.__module__}.{cls.__qualname__}", "message": said(error)[:4096], "traceback": text[-_TRACEBACK:]}


def said(error: BaseException) -> str:
    """What an exception says, also where it cannot say it."""
    try:
        return str(error)
    except Exception as e:
        return f"(its text raised {type(e).__name__})"


def _difference(now: list[str], had: list[str]) -> str:
    for i, (a, b) in enumerate(zip(now, had)):
        if a != b:
            return f"argument {i + 1} is {a}, and was {b}"
    if len(now) != len(had):
        return f"it has {len(now)} arguments, and had {len(had)}"
    return "its arguments differ beyond what is shown" if now else "it is done more often"


def key_of(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """A step's key but for its place among equals: the name, and a digest of the arguments."""
    return _native.Recorded.base(name, codec.identity(args, kwargs))


def begin(
    run: "Run",
    name: str,
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    key: str | None,
    retry: Retry | None,
    timeout: float | None,
    at_most_once: bool,
) -> Any:
    """`Run.step`: as a usual step where it is one."""
    if key is None and run._state == "open" and type(name) is str and callable(fn):
        around = scope.variable.get()
        if around is not None and around.step is not None and around.run is run:
            name = nested(around.step, name)
        if retry is None and timeout is None and not at_most_once:
            return plain.step(run, name, fn, args, kwargs)
    call = Call(run, name, fn, args, kwargs, key, retry, timeout, at_most_once)
    return call.run_async() if is_async(fn) else call.run()


def nested(outer: str, name: str) -> str:
    """The name of a step that is begun inside the step `outer`: its equals are those of the same one.

    Where the outer step is replayed its inner ones are not asked for: they are no step's of outside, nor left unused.
    """
    if len(outer) > _LONG_KEY:
        # A recursion's key does not grow with its depth.
        outer = _native.Recorded.base("", outer)
    return f"{outer}/{name}"


def is_async(fn: Callable[..., Any]) -> bool:
    """Whether calling `fn` gives an awaitable."""
    if type(fn) is FunctionType and not fn.__dict__:
        # The usual case, without the half dozen looks of `inspect`.
        return bool(fn.__code__.co_flags & inspect.CO_COROUTINE)
    while isinstance(fn, functools.partial):
        fn = fn.func
    return inspect.iscoroutinefunction(fn) or inspect.iscoroutinefunction(getattr(fn, "__call__", None))


def _seconds(name: str, timeout: Any) -> float | None:
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise TypeError(f"step {name!r}: timeout wants seconds, had {timeout!r}")
    if not 0 < timeout < threading.TIMEOUT_MAX:
        raise ValueError(f"step {name!r}: timeout wants a number of seconds above 0, had {timeout!r}")
    return timeout


# Both ways: it takes what is unusual back here.
from . import plain  # noqa: E402
