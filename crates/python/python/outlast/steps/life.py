"""A step's life: found recorded, or opened, run, recorded and tried again. Written once, for threads and tasks.

The usual step costs little beside the disk: each call here counts.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from .. import _native, codec, scope
from ..effects import Process, Sleep, Work, drive, drive_async
from ..errors import Conflict, Error, RunHalted, StepFailed, StepTimeout, Unkeyable
from . import divergence, doubt, journal
from .spec import StepSpec, is_async, nested, unkeyed

if TYPE_CHECKING:
    from ..runs import Run
    from .memory import Memory


def begin(run: "Run", spec: StepSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Implements `Run.step`: gives the recorded result, or runs the step. Awaitable for an async function."""
    name, around = spec.name, scope.variable.get()
    if around is not None and around.step is not None and around.run is run and spec.key is None:
        name = nested(around.step, name)
    if is_async(spec.fn):
        run.steps.promise(spec.name)
        return _awaited(run, spec, name, args, kwargs)
    found = find(run, spec, name, args, kwargs)
    return drive(life(found)) if type(found) is Call else found


async def _awaited(run: "Run", spec: StepSpec, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    run.steps.awaited(spec.name)
    # The task that awaits the step takes its key, so that equal steps have the same order in a replay.
    found = find(run, spec, name, args, kwargs)
    return await drive_async(life(found)) if type(found) is Call else found


def find(run: "Run", spec: StepSpec, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The recorded result; without one, a `Call` whose key is taken.

    Errors: `Unkeyable`, `StepInDoubt`, `StepDiverged`, `DuplicateKey`; `RunCompleted` and `StepFailed` where a completed run is replayed.
    """
    if run._state != "open":
        # Opens a run that its first step opens; raises if the run is not open.
        run._open_run_or_replay()
    memory = run.steps
    recorded: Any = memory.recorded
    if spec.key is not None:
        key: Any = memory.take_explicit(spec.key)
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
            raise run._completed(f"step {call.shown()}")
        if spec.at_most_once and found is not None:
            doubt.check(run, call.shown(), call.key, *found)
        if found is None and spec.key is None and not spec.may_diverge:
            divergence.check(call)
        return call
    except BaseException:
        call.memory.give_back(call.key, spec.key is not None)
        raise


def life(call: "Call") -> Process[Any]:
    """Runs a step whose key is taken: tries the step until it is recorded, or given up."""
    run, spec = call.run, call.spec
    try:
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
                doubt.check(run, call.shown(), call.key, number, "open")
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
                    try:
                        # A result written in parts needs a committed entry (`here.seq`).
                        number = here.number if len(text) < journal.LONG else here.seq
                        yield journal.open_run_of_entry(run, call.name).record(number, text, False, changes)
                    except Error as e:
                        if not here.is_ahead or e.code not in journal.NOT_OURS:
                            raise
                        # Another process wrote to the run since the opening was answered, and its entry has that number.
                        yield journal.open_run_of_entry(run, call.name).record(here.seq, text, False, changes)
                    return result if type(result) in codec.UNCHANGED else codec.decode(text)["value"]
                except Conflict as e:
                    # Another writer changed what the step read: the try failed, and left nothing.
                    error = e
            delay = None if spec.retry is None else spec.retry.delay(error, tried)
            yield journal.failure(call, here.seq, error, delay is not None)
            if spec.at_most_once:
                call.memory.recorded.note(call.key, here.seq, False)  # type: ignore[union-attr]
            if delay is None:
                try:
                    raise error
                finally:
                    # Breaks the cycle between the exception and this frame.
                    del error
            yield Sleep(delay)
    except BaseException:
        call.memory.give_back(call.key, spec.key is not None)
        raise


def _opening(call: "Call") -> "_native.Ticket":
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
        self, run: "Run", spec: StepSpec, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], memory: "Memory", key: str
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
