"""One item, from its claim to its record. Written once for threads and tasks: it yields what is to be awaited."""

from __future__ import annotations

import asyncio
import contextvars
import dataclasses
import inspect
import json
import threading
import time
from typing import TYPE_CHECKING, Any, Callable, Generator, Sequence

from .. import _native, codec, scope, steps, waiting
from ..buffer import Changes
from ..errors import AlreadySettled, AlreadyTaken, Conflict, Error, LeaseLost, RunHalted, Skip, StepTimeout, StopRequested
from ..retry import header, retry_after, status_of
from .jobrun import CODE_HEADER, ItemRun
from .width import CROWDED

if TYPE_CHECKING:
    from .core import Core


class Effect:
    """Something to wait for, in a thread or in a task."""

    def wait(self) -> Any:
        raise NotImplementedError

    async def awaited(self) -> Any:
        raise NotImplementedError


@dataclasses.dataclass
class Commit(Effect):
    ticket: "_native.Ticket"

    def wait(self) -> Any:
        return self.ticket.wait()

    async def awaited(self) -> Any:
        return await waiting.done(self.ticket)


@dataclasses.dataclass
class Pause(Effect):
    """Waits; True when the batch stops meanwhile."""

    core: "Core"
    seconds: float

    def wait(self) -> bool:
        return self.core.stopping.wait(self.seconds)

    async def awaited(self) -> bool:
        until = time.monotonic() + self.seconds
        while not self.core.stopping.is_set() and (left := until - time.monotonic()) > 0:
            await self.core.bell.ring_or(left)
        return self.core.stopping.is_set()


@dataclasses.dataclass
class Invoke(Effect):
    """Calls the function on an item, in the item's context."""

    fn: Callable[[Any], Any]
    item: Any
    current: scope.Current
    timeout: float | None
    #: The thread that a late function still runs in.
    late: threading.Thread | None = None

    def wait(self) -> Any:
        if self.timeout is None:
            token = scope.variable.set(self.current)
            try:
                return self._checked(self.fn(self.item))
            finally:
                scope.variable.reset(token)
        return self._checked(self._in_thread(self.timeout))

    def _checked(self, result: Any) -> Any:
        if inspect.iscoroutine(result):
            result.close()
            raise TypeError("outlast.map wants a plain function, had one that returns a coroutine: use outlast.amap")
        return result

    def _in_thread(self, timeout: float) -> Any:
        """A thread cannot be ended: a late one goes on, and keeps its slot."""
        result: list[Any] = []
        error: list[BaseException] = []
        context = contextvars.copy_context()
        context.run(scope.variable.set, self.current)

        def body() -> None:
            try:
                result.append(context.run(self.fn, self.item))
            except BaseException as e:
                error.append(e)

        thread = threading.Thread(target=body, name="outlast item", daemon=True)
        thread.start()
        thread.join(timeout)
        if thread.is_alive():
            self.late = thread
            raise _late(timeout)
        if error:
            raise error[0]
        return result[0]

    async def awaited(self) -> Any:
        token = scope.variable.set(self.current)
        try:
            awaitable = self.fn(self.item)
            if self.timeout is None:
                return await awaitable
            waiting = asyncio.ensure_future(awaitable)
            try:
                finished, _ = await asyncio.wait([waiting], timeout=self.timeout)
            except asyncio.CancelledError:
                waiting.cancel()
                raise
            if finished:
                return waiting.result()
            waiting.cancel()
            # It has the chance to tidy up; what it says then does not count.
            await asyncio.wait([waiting], timeout=1.0)
            raise _late(self.timeout)
        except asyncio.CancelledError as e:
            if _is_cancelled():
                raise
            # Something that it waits for was: that is the item's own failure, and not the batch's end.
            raise RuntimeError("the item's function was cancelled by what it waits for") from e
        finally:
            scope.variable.reset(token)


def _is_cancelled() -> bool:
    """Whether this task is to end. Before Python 3.11 nobody can tell, and it is."""
    task = asyncio.current_task()
    return task is None or not hasattr(task, "cancelling") or task.cancelling() > 0


def _late(timeout: float) -> StepTimeout:
    return StepTimeout(f"the item took longer than its timeout of {timeout:g} s")


Process = Generator[Effect, Any, None]


def drive(process: Process) -> None:
    """Runs an item's process in this thread."""
    answer, error = None, None
    while True:
        try:
            effect = process.send(answer) if error is None else process.throw(error)
        except StopIteration:
            return
        answer, error = None, None
        try:
            answer = effect.wait()
        except BaseException as e:
            error = e


async def drive_async(process: Process) -> None:
    """Runs an item's process in this task."""
    answer, error = None, None
    while True:
        try:
            effect = process.send(answer) if error is None else process.throw(error)
        except StopIteration:
            return
        answer, error = None, None
        try:
            answer = await effect.awaited()
        except BaseException as e:
            error = e


#: A call found no room in a budget for so long that it was sent away: calls in flight hold it, or it is used up above.
NO_ROOM = "admission_timeout"


def no_room(error: BaseException | None) -> str | None:
    """`NO_ROOM` where the error says so, by its answer's header or as ours: for clients that were made by hand."""
    if error is None:
        return None
    is_ours = isinstance(error, Error) and error.code == NO_ROOM
    return NO_ROOM if is_ours or header(error, CODE_HEADER) == NO_ROOM else None


def goes_back(error: BaseException | None, refused: str | None, answers: int, is_halted: bool) -> bool:
    """Whether an item is pending again, whatever its function returned or raised. Pure.

    One whose call was refused by a limit does. So does one that ends in a halted run, unless it returned and all
    that we saw of its calls was answered: that one is paid for and whole.
    """
    if refused is not None or isinstance(error, (RunHalted, LeaseLost, StopRequested)):
        return True
    return is_halted and (error is not None or answers == 0)


def one(core: "Core", index: int, alone: bool) -> Process:
    """Claims an item, runs it, and records what came of it."""
    seat = core.seat
    options, plan = core.options, core.plan
    key = plan.source.keys[index]
    assert key is not None
    item = plan.source.items[index]
    on_change = "rerun" if options.on_change == "rerun" else "keep"
    # Before the claim: an item that waits for its turn dies with no process, and others may take it.
    wait = core.gate_delay()
    if wait > 0 and (yield Pause(core, wait)):
        core.returned(index)
        return
    try:
        claim = yield Commit(
            _native.claim_item(seat, key, index, plan.source.content(index), plan.version, on_change, plan.on_version, alone)
        )
    except LeaseLost as e:
        core.lost(seat, index, e)
        return
    kind, seq = claim[0], claim[1]
    if kind != "run":
        core.not_started()
    if kind == "held":
        core.held(index)
        return
    if kind == "suspect":
        core.suspect(index)
        return
    if kind != "run":
        standing = claim[2] if kind == "ended" else "done"
        core.recorded(index, seq, standing)
        return
    _, _, tries, _, _, steps_scope = claim
    run = ItemRun(core.run, seat, key, seq, steps_scope)
    try:
        yield from _tries(core, seat, run, index, item, seq, tries)
    except GeneratorExit:
        raise
    except BaseException:
        # Cancelled, or the store failed: nothing is held against the item.
        try:
            _native.return_item(seat, seq)
        except Error:
            pass
        raise
    finally:
        run.close()


def _tries(core: "Core", seat: "_native.Seat", run: ItemRun, index: int, item: Any, seq: int, tries: int) -> Process:
    first = True
    while True:
        wait = 0.0 if first else core.gate_delay()
        if wait > 0 and (yield Pause(core, wait)):
            yield from _return(core, seat, index, seq)
            return
        first = False
        changes, began = Changes(run.id), time.monotonic()
        invoke = Invoke(core.fn, item, scope.Current(run, None, seq, tries, changes), core.options.timeout)
        error: BaseException | None = None
        text = ""
        try:
            text = codec.encode((yield invoke))
        except Exception as e:
            error = e
        finally:
            # What a late thread still writes commits with nothing: it is told so.
            changed = changes.seal()
        refused = run.refused or no_room(error)
        certain = error is None and run.answers > 0
        barred = None if refused or certain else core.engine.barred(core.run._no)
        is_halted = barred is not None and barred[0] == "halted"
        # Of a client that was made by hand no answer is seen: what it was told may have been this.
        if refused == NO_ROOM or (barred is not None and not is_halted):
            yield from _return(core, seat, index, seq, began)
            return
        if goes_back(error, refused, run.answers, is_halted):
            yield from _return(core, seat, index, seq)
            core.stop(core.refusal(error, refused))
            return
        if error is None:
            try:
                yield from _record(core, seat, index, seq, "done", text.encode(), None, changed)
                return
            except Conflict as e:
                # Somebody changed what it read: a failed try, which left nothing.
                error = e
        if isinstance(error, Skip):
            reason = steps.said(error)
            yield from _record(core, seat, index, seq, "skipped", reason.encode("utf-8", "replace"), error)
            return
        # A late thread still runs it: another try beside it would do it twice.
        delay = None if invoke.late else core.options.retry.delay(error, tries)
        if status_of(error) in CROWDED:
            core.crowded(began)
        if delay is not None and status_of(error) == 429 and retry_after(error) is not None:
            core.hold(delay)
        if delay is None:
            told = json.dumps({"error": steps.told(error)}).encode()
            yield from _record(core, seat, index, seq, "failed", told, error)
            if invoke.late is not None:
                # Its slot stays occupied until it ends.
                core.late(invoke.late)
            return
        yield Commit(_native.next_try(seat, seq))
        tries += 1
        run.begin_try()
        if (yield Pause(core, delay)):
            yield from _return(core, seat, index, seq)
            return


def _record(
    core: "Core",
    seat: "_native.Seat",
    index: int,
    seq: int,
    how: str,
    raw: bytes,
    error: BaseException | None,
    changes: "Sequence[_native.Change]" = (),
) -> Process:
    try:
        standing, tries, nano, _ = yield Commit(_native.record_item(seat, seq, how, raw, True, list(changes)))
    except (AlreadyTaken, AlreadySettled):
        # This process was thought dead, and another has the item now: its result counts.
        core.held(index)
        return
    core.ended(index, seq, standing, tries, nano, raw, error)


def _return(core: "Core", seat: "_native.Seat", index: int, seq: int, no_room_since: float | None = None) -> Process:
    try:
        yield Commit(_native.return_item(seat, seq))
    except (AlreadyTaken, AlreadySettled):
        pass
    if no_room_since is None:
        core.returned(index)
    else:
        core.no_room(index, no_room_since)
