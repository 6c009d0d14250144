"""The usual step: known by its name and arguments, tried once, as often as it takes. `steps.Call` does all others.

Here each call counts: a step is to cost little beside the disk. What is unusual is handed over before anything is done.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any, Callable

from . import _native, codec, scope, steps
from .errors import Conflict, Error, RunHalted
from .waiting import done

if TYPE_CHECKING:
    from .runs import Run

# Of these a result is surely no coroutine.
_DATA = frozenset({str, int, float, bool, type(None), dict, list, tuple})


def step(run: "Run", name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """`run.step` without further parameters, in a run that is open."""
    recorded: Any = run.steps.recorded
    if steps.is_async(fn):
        return _awaited(run, name, fn, args, kwargs)
    key, base, value = _native.enter(recorded, name, args, kwargs, True)
    if base is None:
        return value
    if key is None:
        return _closely(run, name, fn, args, kwargs, base).run()
    try:
        seat = run._seat_or_replay()
        if seat is not None:
            ticket = seat.begin(key, False, False, run._scope, run._within)
            is_ahead = run._within is None
            try:
                number, _, is_done, tried = ticket.wait_ahead() if is_ahead else ticket.wait()
            except RunHalted as e:
                raise run._halted(e) from None
        if seat is None or is_done or tried < 0:
            recorded.give_back(key)
            key = None
            return _closely(run, name, fn, args, kwargs, base).run()
        here = scope.InStep(run, key, number, tried, is_ahead)
        token = scope.variable.set(here)
        try:
            result = fn(*args, **kwargs)
            if type(result) not in _DATA:
                _refuse_coroutine(result, name)
            whole = _native.written(args, kwargs, result)
        except BaseException as e:
            here.seal()
            scope.variable.reset(token)
            if isinstance(e, Exception):
                steps.record_error(run, name, here.seq, args, kwargs, e).wait()
            raise
        scope.variable.reset(token)
        changes = here.seal()
        try:
            # What goes in parts goes to an entry that is there.
            number = here.number if len(whole) < steps.LONG else here.seq
            steps.seat_of_entry(run, name).record(number, whole, False, changes).wait()
        except Conflict as e:
            steps.record_error(run, name, here.seq, args, kwargs, e).wait()
            raise
        except Error as e:
            if not here.is_ahead or e.code not in steps.OTHERS:
                raise
            # Another process wrote to the run since the answer: the number was its entry's.
            steps.seat_of_entry(run, name).record(here.seq, whole, False, changes).wait()
    except BaseException:
        if key is not None:
            recorded.give_back(key)
        raise
    return result if type(result) in codec.UNCHANGED else codec.decode(whole)["value"]


async def _awaited(run: "Run", name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # Its place among equals is that of the task that awaits it, if one does: in a replay as when it was done.
    recorded: Any = run.steps.recorded
    key, base, value = _native.enter(recorded, name, args, kwargs, True)
    if base is None:
        return value
    if key is None:
        return await _closely(run, name, fn, args, kwargs, base).run_async()
    try:
        seat = run._seat_or_replay()
        if seat is not None:
            try:
                number, _, is_done, tried = await done(seat.begin(key, False, False, run._scope, run._within))
            except RunHalted as e:
                raise run._halted(e) from None
        if seat is None or is_done or tried < 0:
            recorded.give_back(key)
            key = None
            return await _closely(run, name, fn, args, kwargs, base).run_async()
        here = scope.InStep(run, key, number, tried)
        token = scope.variable.set(here)
        try:
            result = await fn(*args, **kwargs)
            whole = _native.written(args, kwargs, result)
        except BaseException as e:
            here.seal()
            scope.variable.reset(token)
            if isinstance(e, Exception):
                await done(steps.record_error(run, name, number, args, kwargs, e))
            raise
        scope.variable.reset(token)
        try:
            await done(steps.seat_of_entry(run, name).record(number, whole, False, here.seal()))
        except Conflict as e:
            await done(steps.record_error(run, name, number, args, kwargs, e))
            raise
    except BaseException:
        if key is not None:
            recorded.give_back(key)
        raise
    return result if type(result) in codec.UNCHANGED else codec.decode(whole)["value"]


def _closely(run: "Run", name: str, fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], base: str) -> steps.Call:
    return steps.Call(run, name, fn, args, kwargs, None, None, None, False, base)


def _refuse_coroutine(result: Any, name: str) -> None:
    if inspect.iscoroutine(result):
        result.close()
        raise TypeError(f"step {name!r}: its function returned a coroutine; pass an async function, and await the step")
