"""A step's life: found recorded, or opened, run, recorded and tried again. Written once, for threads and tasks.

The usual step costs little beside the disk: each call here counts. Two reasons refuse a step: divergence, where a program
does a step that earlier lives did not do, while recorded steps of its name are left over; and doubt, where an
`at_most_once` step was begun, and nobody knows what came of it until a person says it.
"""

from __future__ import annotations

import functools
import json
import shlex
import traceback
from typing import TYPE_CHECKING, Any

from .. import _native, codec, scope
from ..effects import Process, Work, beside, drive, drive_async, sleep
from ..errors import AlreadySettled, Conflict, Error, RunHalted, StepDiverged, StepFailed, StepInDoubt, StepTimeout, Unkeyable
from .spec import StepSpec, is_async, key_of, nested, unkeyed

if TYPE_CHECKING:
    from ..opening import RunHandle
    from .memory import Memory

# Values of `resolved` in the payload. `outlast resolve` writes the same.
_RERUN, _FAILED = "rerun", "failed"

# Number of characters kept from the end of a traceback, which says most.
_TRACEBACK = 16 << 10

# Codes of the engine for an entry that is not the step's own.
_NOT_OURS = frozenset({"unknown_entry", "already_taken", "already_settled"})

# From this length on, a result may be written in parts.
_LONG = 256 << 10

# Seconds for a busy event loop to come to what it cancels.
_BUSY_S = 5.0


def begin(run: "RunHandle", spec: StepSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Implements `Run.step`: gives the recorded result, or runs the step. Awaitable for an async function."""
    name = _name(run, spec)
    if is_async(spec.fn):
        if not run._is_async:
            run.steps.promise(spec.name)
        return _awaited(run, spec, name, args, kwargs)
    found = find(run, spec, name, args, kwargs)
    return drive(life(found)) if type(found) is Call else found


def begun(run: "RunHandle", spec: StepSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Process[Any]:
    """A step within another process: gives the recorded result, or runs the step."""
    found = find(run, spec, _name(run, spec), args, kwargs)
    return (yield from life(found)) if type(found) is Call else found


def _name(run: "RunHandle", spec: StepSpec) -> str:
    around = scope.variable.get()
    if around is not None and around.step is not None and around.run is run and spec.key is None:
        return nested(around.step, spec.name)
    return spec.name


async def _awaited(run: "RunHandle", spec: StepSpec, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    run.steps.awaited(spec.name)
    # The task that awaits the step takes its key, so that equal steps have the same order in a replay.
    found = find(run, spec, name, args, kwargs)
    return await drive_async(life(found)) if type(found) is Call else found


def find(run: "RunHandle", spec: StepSpec, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The recorded result; without one, a `Call` whose key is taken.

    Errors: `Unkeyable`, `StepInDoubt`, `StepDiverged`, `DuplicateKey`; `RunCompleted` and `StepFailed` where a completed run is replayed.
    """
    if run._state != "open":
        # Opens a run that its first step opens; raises if the run is not open.
        run._open_run_or_replay()
    memory = run.steps
    recorded: Any = memory.recorded
    if spec.key is not None:
        key: Any = memory.take_explicit(spec.key, run.id)
    else:
        # One native call handles most steps: recorded ones, and new ones without anything unusual.
        try:
            key, base, value = _native.enter(recorded, name, args, kwargs, not spec.at_most_once)
        except Unkeyable as e:
            raise unkeyed(spec.name, e) from None
        if base is None:
            return value
        if key is not None and run._open_run is not None:
            return Call(run, spec, name, args, kwargs, memory, key)
        if key is None:
            key = recorded.take(base)
    return _found_closely(Call(run, spec, name, args, kwargs, memory, key))


def _found_closely(call: "Call") -> Any:
    """Finds a step that the native call could not decide: by its key, and by the recorded steps left over of its name."""
    run, spec, recorded = call.run, call.spec, call.memory.recorded
    assert recorded is not None
    try:
        found = recorded.find(call.key)
        if found is not None and found[1] == "done":
            return call.recorded(found[0])
        if run._open_run_or_replay() is None:
            if found is not None and found[1] == "failed":
                raise call.failed_before(found[0])
            if found is None or not is_async(spec.fn):
                raise run._completed(f"step {call.shown()}")
            return call
        if spec.at_most_once and found is not None:
            check_doubt(run, call.shown(), call.key, *found)
        if found is None and spec.key is None and not spec.may_diverge:
            check_divergence(call)
        return call
    except BaseException:
        call.memory.give_back(call.key, spec.key is not None)
        raise


def life(call: "Call") -> Process[Any]:
    """Runs a step whose key is taken: tries the step until it is recorded, or given up."""
    run, spec = call.run, call.spec
    try:
        if run._open_run is None:
            # A completed run has the step begun and not ended: its task was cancelled, and so it is here. A program that does
            # not cancel it in the time that the run took is another one.
            yield sleep(run._lasted() + _BUSY_S)
            raise run._completed(f"step {call.shown()}")
        while True:
            opening = _opening(call)
            try:
                number, before, is_done, tried = yield opening
            except RunHalted as e:
                raise run._halted(e) from None
            if is_done:
                # Another process recorded the step meanwhile.
                return call.recorded(number)
            if tried < 0 or (before and spec.at_most_once):
                check_doubt(run, call.shown(), call.key, number, "open")
            call.current = here = scope.OpenStep(run, call.key, number, tried, opening.is_ahead)
            error: Exception | None = None
            try:
                result = yield call
                text = _native.written(call.args, call.kwargs, result)
            except Exception as e:
                error = e
            finally:
                changes = here.seal()
            if error is None:
                try:
                    if run._keeps_files:
                        yield beside(functools.partial(open_run_of_entry(run, call.name).take_files, call.key, False))
                    try:
                        # A result written in parts needs a committed entry (`here.seq`).
                        number = here.number if len(text) < _LONG else here.seq
                        yield open_run_of_entry(run, call.name).record(number, text, False, changes)
                    except Error as e:
                        if not here.is_ahead or e.code not in _NOT_OURS:
                            raise
                        # Another process wrote to the run since the opening was answered, and its entry has that number.
                        yield open_run_of_entry(run, call.name).record(here.seq, text, False, changes)
                    return result if type(result) in codec.UNCHANGED else codec.decode(text)["value"]
                except Conflict as e:
                    # Another writer changed what the step read: the try failed, and left nothing.
                    error = e
            delay = None if spec.retry is None else spec.retry.delay(error, tried)
            yield _failure(call, here.seq, error, delay is not None)
            if spec.at_most_once:
                call.memory.recorded.note(call.key, here.seq, False)  # type: ignore[union-attr]
            if delay is None:
                try:
                    raise error
                finally:
                    # Breaks the cycle between the exception and this frame.
                    del error
            yield sleep(delay)
    except BaseException:
        call.memory.give_back(call.key, spec.key is not None)
        raise


def _opening(call: "Call") -> "_native.Ticket[tuple[int, bool, bool, int]]":
    """Opens the step's entry. The answer: its number, whether it was begun before, whether it is done, and the try.

    In a thread, a plain step is answered ahead of its commit, which is that of its result, or comes within 100 ms: a
    step that nobody saw open is one that never began. Where somebody asks for its number, it is committed first.
    """
    run, spec = call.run, call.spec
    open_run = run._open_run_or_replay()
    if open_run is None:
        raise run._completed(f"step {call.shown()}")
    tries, within = spec.retry is not None, run._within
    may_be_ahead = not (spec.at_most_once or tries or within is not None)
    return open_run.begin(call.key, spec.at_most_once, tries, run._scope, within, may_be_ahead)


class Call(Work):
    """A call of `run.step` that begins a step: what is done, with which arguments, under which key."""

    __slots__ = ("run", "spec", "name", "memory", "key")

    def __init__(
        self, run: "RunHandle", spec: StepSpec, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], memory: "Memory", key: str
    ) -> None:
        self.run = run
        self.spec = spec
        #: The step's name; inside another step, below that step's key.
        self.name = name
        self.fn = spec.fn
        self.args = args
        self.kwargs = kwargs
        self.timeout = spec.timeout
        self.memory = memory
        self.key = key

    def shown(self) -> str:
        """The step as people are shown it: `fetch('https://…')`."""
        return f"{self.name}({', '.join(codec.shown(self.args, self.kwargs, 40, 120))})"

    def label(self) -> str:
        return f"step {self.name}"

    def too_late(self, timeout: float) -> StepTimeout:
        return StepTimeout(f"step {self.name!r} took longer than its timeout of {timeout:g} s")

    def is_coroutine(self) -> TypeError:
        return TypeError(f"step {self.name!r}: its function returned a coroutine; pass an async function, and await the step")

    def recorded(self, seq: int) -> Any:
        """The recorded result of entry `seq`."""
        return codec.decode(self.run._engine.value(self.run._no, seq))["value"]

    def failed_before(self, seq: int) -> StepFailed:
        """The error for a step of a completed run that had failed with entry `seq`."""
        error = json.loads(self.run._engine.value(self.run._no, seq)).get("error", {})
        return StepFailed(
            f"step {self.shown()} raised {error.get('type', 'an exception')} when run {self.run.id} was completed: {error.get('message', '')}",
            hint="a completed run replays, and runs nothing again; open a run with another id, to do that",
        )


# --- the reasons to refuse a step


def check_divergence(call: "Call") -> None:
    """Checks whether a step without a recorded result is a divergence.

    Only while one thread or task runs all steps: of several, one may be ahead of steps that another has yet to replay.
    Errors: `StepDiverged`; with `on_divergence="live"` a warning instead.
    """
    run, memory = call.run, call.memory
    recorded = memory.recorded
    assert recorded is not None
    unused = recorded.unused(call.name) if recorded.is_sequential else None
    if unused is None:
        return
    if memory.beside is not None and memory.beside.is_anybody():
        recorded.be_concurrent()
        return
    seq, _, count = unused
    had = json.loads(run._engine.value(run._no, seq)).get("args", [])
    message = (
        f"step {call.shown()} was not done by earlier lives of run {run.id}, which have {count} of its name "
        f"left unused: {_difference(codec.shown(call.args, call.kwargs), had)}"
    )
    if run._on_divergence == "live":
        memory.warn_once(message)
        return
    raise StepDiverged(
        message,
        hint='make the program do the same steps again, give the step a key=, or open the run with on_divergence="live"',
    )


def _difference(now: list[str], had: list[str]) -> str:
    for i, (a, b) in enumerate(zip(now, had)):
        if a != b:
            return f"argument {i + 1} is {a}, and was {b}"
    if len(now) != len(had):
        return f"it has {len(now)} arguments, and had {len(had)}"
    return "its arguments differ beyond what is shown" if now else "it is done more often"


def check_doubt(run: "RunHandle", shown: str, key: str, seq: int, state: str) -> None:
    """Refuses an `at_most_once` step that was begun before and is not done. Returns if a person said to run it again.

    Errors: `StepInDoubt`; `StepFailed` where a person said that the step failed.
    """
    came = ""
    if state == "failed":
        recorded = json.loads(run._engine.value(run._no, seq))
        error = recorded.get("error", {})
        if recorded.get("resolved") == _RERUN:
            return
        if recorded.get("resolved") == _FAILED:
            raise StepFailed(f"step {shown} of run {run.id} failed, as was said of it: {error.get('message', '')}")
        came = f" and raised {error.get('type', 'an exception')}: {error.get('message', '')}"
    raise StepInDoubt(
        f"step {shown} of run {run.id} was begun before{came}, and may have had its effect",
        hint=f"look whether it had, then say so: outlast resolve {run.id} {shlex.quote(key)} --result JSON, --failed WHY or "
        f"--rerun; or in Python run.resolve(name, key={key!r}, result=…)",
    )


def resolve(
    run: "RunHandle",
    name: str,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
    key: str | None,
    rerun: bool,
    failed: str | None,
    result: Any,
) -> None:
    """Implements `Run.resolve`."""
    if rerun and failed is not None:
        raise ValueError("resolve wants one of result, failed and rerun, had failed and rerun")
    base = key if key is not None else key_of(name, args, kwargs)
    open_run = run._open_run_or_raise(f"step {name!r}")
    recorded = run.steps.recorded
    assert recorded is not None
    found = recorded.find(base)
    args_shown = json.dumps(codec.shown(args, kwargs))
    if rerun:
        text = f'{{"args":{args_shown},"resolved":"{_RERUN}"}}'
    elif failed is not None:
        error = json.dumps({"type": "outlast.StepFailed", "message": failed})
        text = f'{{"args":{args_shown},"resolved":"{_FAILED}","error":{error}}}'
    else:
        text = f'{{"args":{args_shown},"resolved":"done","value":{codec.encode(result)}}}'
    is_failed = rerun or failed is not None
    # None for a step that this life began itself: the memory holds earlier lives only.
    seen = None if found is None else found[0]
    try:
        seq = _native.resolve_step(open_run, base, run._scope, seen, text.encode("utf-8", "replace"), is_failed).wait()
    except AlreadySettled:
        raise StepInDoubt(f"step {name!r} of run {run.id} is not in doubt: its result is recorded") from None
    recorded.note(base, seq, not is_failed)


# --- its records in the journal


def _failure(call: "Call", seq: int, error: BaseException, again: bool) -> "_native.Ticket[int]":
    """Records the exception of a step's try. `again`: another try follows, possibly in a later life."""
    whole = {"args": codec.shown(call.args, call.kwargs), "error": described(error)}
    return open_run_of_entry(call.run, call.name).record(seq, json.dumps(whole).encode(), True, [], again)


def open_run_of_entry(run: "RunHandle", name: str) -> "_native.OpenRun":
    """The attempt that may close an entry which this process opened.

    Closing is the entry's own right: also in a run that was asked to stop, and in one that was left while a step was
    under way, until the run is opened again and may do the step anew.
    """
    open_run = run._open_run
    if open_run is None and not run._is_open_here():
        open_run = run._left
    return run._open_run_or_raise(f"step {name!r}") if open_run is None else open_run


def described(error: BaseException) -> dict[str, str]:
    """An exception as the journal has it: type, message, traceback."""
    cls = type(error)
    text = "".join(traceback.format_exception(cls, error, error.__traceback__))
    return {"type": f"{cls.__module__}.{cls.__qualname__}", "message": message(error)[:4096], "traceback": text[-_TRACEBACK:]}


def failed(error: BaseException) -> bytes:
    """The record of an item that failed."""
    return json.dumps({"error": described(error)}).encode()


def message(error: BaseException) -> str:
    """The text of an exception, even where `str(error)` raises."""
    try:
        return str(error)
    except Exception as e:
        return f"(its text raised {type(e).__name__})"
