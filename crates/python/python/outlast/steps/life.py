"""A step's life: found recorded, or opened, run, recorded and tried again. Written once, for threads and tasks.

The usual step costs little beside the disk: each call here counts.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from .. import _native, codec, scope
from ..effects import Commit, Invoke, Process, Sleep, drive, drive_async
from ..errors import Conflict, Error, RunHalted, StepFailed, StepTimeout
from . import divergence, doubt, journal
from .spec import StepSpec, is_async, nested

if TYPE_CHECKING:
    from ..runs import Run
    from .memory import Memory

# `Call.find` found no recorded result: the step begins.
_BEGINS: Any = object()


def begin(run: "Run", spec: StepSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Does what `Run.step` says: gives the recorded result, or does the step. Awaitable for an async function."""
    call = Call(run, spec, args, kwargs)
    if is_async(spec.fn):
        return _awaited(call)
    value = call.find()
    return drive(life(call)) if value is _BEGINS else value


async def _awaited(call: "Call") -> Any:
    # The place among equal steps is that of the task that awaits the step: in a replay as when it was done.
    value = call.find()
    return await drive_async(life(call)) if value is _BEGINS else value


def life(call: "Call") -> Process[Any]:
    """Does a step whose key is taken: tries it until it is recorded, or given up."""
    run, spec = call.run, call.spec
    try:
        while True:
            opening = Opening(call)
            try:
                number, before, is_done, tried = yield opening
            except RunHalted as e:
                raise run._halted(e) from None
            if is_done:
                # Another process recorded it meanwhile.
                return call.recorded(number)
            if tried < 0 or (before and spec.at_most_once):
                doubt.check(run, call.shown(), call.key, number, "open")
            here = scope.OpenStep(run, call.key, number, tried, opening.is_ahead)
            error: Exception | None = None
            try:
                result = yield InvokeStep(call, here)
                text = _native.written(call.args, call.kwargs, result)
            except Exception as e:
                error = e
            finally:
                changes = here.seal()
            if error is None:
                try:
                    yield from _record(call, here, text, changes)
                    return result if type(result) in codec.UNCHANGED else codec.decode(text)["value"]
                except Conflict as e:
                    # Somebody changed what the step read: a failed try, which left nothing.
                    error = e
            delay = None if spec.retry is None else spec.retry.delay(error, tried)
            yield Commit(journal.failure(run, call.name, here.seq, call.args, call.kwargs, error, delay is not None))
            if spec.at_most_once:
                call.memory.recorded.note(call.key, here.seq, False)  # type: ignore[union-attr]
            if delay is None:
                try:
                    raise error
                finally:
                    # The exception holds this frame, and must not be held by it.
                    del error
            yield Sleep(delay)
    except BaseException:
        call.memory.give_back(call.key, spec.key is not None)
        raise


def _record(call: "Call", here: scope.OpenStep, text: bytes, changes: "list[_native.Change]") -> Process[None]:
    """Records a result, with what the step changed in the state: one commit. Errors: `Conflict`."""
    # What is written in parts is written to an entry that is there.
    number = here.number if len(text) < journal.LONG else here.seq
    try:
        yield Commit(journal.seat_of_entry(call.run, call.name).record(number, text, False, changes))
    except Error as e:
        if not here.is_ahead or e.code not in journal.NOT_OURS:
            raise
        # Another process wrote to the run since the opening was answered: the number was that entry's.
        yield Commit(journal.seat_of_entry(call.run, call.name).record(here.seq, text, False, changes))


class Opening(Commit):
    """Opens the step's entry. Gives its number, whether it was begun before, whether it is done, and the try.

    In a thread, a plain step is answered ahead of its commit, which is that of its result, or comes within 100 ms: a
    step that nobody saw open is one that never began. Where somebody asks for its number, it is committed first.
    """

    __slots__ = ("is_ahead", "_may_be_ahead")

    def __init__(self, call: "Call") -> None:
        run, spec = call.run, call.spec
        seat = run._seat_or_replay()
        if seat is None:
            raise run._completed(f"step {call.shown()}")
        tries = spec.retry is not None
        self._ticket = seat.begin(call.key, spec.at_most_once, tries, run._scope, run._within)
        self._may_be_ahead = not (spec.at_most_once or tries or run._within is not None)
        self.is_ahead = False

    def wait(self) -> Any:
        self.is_ahead = self._may_be_ahead
        return self._ticket.wait_ahead() if self._may_be_ahead else self._ticket.wait()


class InvokeStep(Invoke):
    """Calls a step's function."""

    __slots__ = ("_name",)

    def __init__(self, call: "Call", here: scope.OpenStep) -> None:
        super().__init__(call.spec.fn, call.args, call.kwargs, here, call.spec.timeout)
        self._name = call.name

    def label(self) -> str:
        return f"step {self._name}"

    def too_late(self, timeout: float) -> StepTimeout:
        return StepTimeout(f"step {self._name!r} took longer than its timeout of {timeout:g} s")

    def is_coroutine(self) -> TypeError:
        return TypeError(f"step {self._name!r}: its function returned a coroutine; pass an async function, and await the step")


class Call:
    """A call of `run.step`: what is done, with which arguments, under which key."""

    __slots__ = ("run", "spec", "args", "kwargs", "name", "key", "memory")

    memory: "Memory"
    key: str

    def __init__(self, run: "Run", spec: StepSpec, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.run = run
        self.spec = spec
        self.args = args
        self.kwargs = kwargs
        self.name = spec.name
        if spec.key is None and run._state == "open":
            around = scope.variable.get()
            if around is not None and around.step is not None and around.run is run:
                self.name = nested(around.step, spec.name)

    def find(self) -> Any:
        """The recorded result; or `_BEGINS`, and the key is taken.

        Errors: `StepInDoubt`, `StepDiverged`, `DuplicateKey`; `RunCompleted` and `StepFailed` where a completed run is replayed.
        """
        run, spec = self.run, self.spec
        if run._state != "open":
            # A run that its first step opens, or one that is not open.
            run._seat_or_replay()
        self.memory = run.steps
        recorded: Any = self.memory.recorded
        if spec.key is not None:
            self.key = self.memory.take_explicit(spec.key)
            return self._find_closely(recorded)
        key, base, value = _native.enter(recorded, self.name, self.args, self.kwargs, not spec.at_most_once)
        if base is None:
            return value
        if key is not None:
            self.key = key
            if run._seat is not None:
                return _BEGINS
        else:
            self.key = recorded.take(base)
        return self._find_closely(recorded)

    def _find_closely(self, recorded: "_native.Recorded") -> Any:
        """Finds the step where the quick look did not decide: by its key, and what is left over of its name."""
        run, spec = self.run, self.spec
        try:
            found = recorded.find(self.key)
            if found is not None and found[1] == "done":
                return self.recorded(found[0])
            if run._seat_or_replay() is None:
                if found is not None and found[1] == "failed":
                    self._failed_before(found[0])
                raise run._completed(f"step {self.shown()}")
            if spec.at_most_once and found is not None:
                doubt.check(run, self.shown(), self.key, *found)
            if found is None and spec.key is None:
                divergence.check(self)
            return _BEGINS
        except BaseException:
            self.memory.give_back(self.key, spec.key is not None)
            raise

    def recorded(self, seq: int) -> Any:
        """The recorded result of entry `seq`."""
        return codec.decode(self.run._engine.value(self.run._no, seq))["value"]

    def _failed_before(self, seq: int) -> None:
        error = json.loads(self.run._engine.value(self.run._no, seq)).get("error", {})
        raise StepFailed(
            f"step {self.shown()} raised {error.get('type', 'an exception')} when run {self.run.id} was completed: {error.get('message', '')}",
            hint="a completed run replays, and runs nothing again; open a run with another id, to do that",
        )

    def shown(self) -> str:
        """The step for people: `fetch('https://…')`."""
        return f"{self.name}({', '.join(codec.shown(self.args, self.kwargs, 40, 120))})"
