"""One item, from its claim to its record: a process for a thread or a task (see `effects`)."""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import time
from typing import Any, Callable, Sequence

from .. import _native, codec, scope
from ..effects import Do, Process, Work, beside
from ..errors import AlreadySettled, AlreadyTaken, Conflict, Error, ItemFailed, LeaseLost, NotSerializable, RunHalted, Skip, StepTimeout, StopRequested
from ..passing import watch
from ..retry import header, status_of
from ..say import without_own_frames
from ..scope import Changes
from ..steps import life
from .core import Core
from .jobrun import CODE_HEADER, ItemRun
from .outside import is_outside, may_begin_outage
from .queue import CROWDED


def pause(core: Core, seconds: float) -> Do:
    """Waits for some seconds. Gives True if the batch is stopped meanwhile."""

    async def awaited() -> bool:
        until = time.monotonic() + seconds
        while not core.stopping.is_set() and (left := until - time.monotonic()) > 0:
            await core.bell.ring_or(left)
        return core.stopping.is_set()

    return Do(lambda: core.stopping.wait(seconds), awaited)


class Call(Work):
    """A call of the batch's function with an item."""

    __slots__ = ()

    def __init__(self, core: Core, item: Any, current: scope.Current[Any]) -> None:
        self.fn = core.fn
        self.args = (item,)
        self.kwargs = {}
        self.timeout = core.options.timeout
        self.current = current
        self.late = None

    def label(self) -> str:
        return "item"

    def too_late(self, timeout: float) -> StepTimeout:
        return StepTimeout(f"the item took longer than its timeout of {timeout:g} s")

    def is_coroutine(self) -> TypeError:
        return TypeError("outlast.map wants a plain function, had one that returns a coroutine: use outlast.amap")

    async def awaited(self) -> Any:
        try:
            return await super().awaited()
        except asyncio.CancelledError as e:
            if _is_cancelled():
                raise
            # Something that it waits for was: that is the item's own failure, and not the batch's end.
            raise RuntimeError("the item's function was cancelled by what it waits for") from e


def _is_cancelled() -> bool:
    """Whether this task is being cancelled. Before Python 3.11 that is not known, and the answer is yes."""
    task = asyncio.current_task()
    return task is None or not hasattr(task, "cancelling") or task.cancelling() > 0


#: A call found no room in a budget for so long that it was sent away: calls in flight hold it, or it is used up above.
NO_ROOM = "admission_timeout"


def no_room(error: BaseException | None) -> str | None:
    """`NO_ROOM` if the error is a refusal for lack of room: an error of Outlast's own, or another client's, whose answer
    says so in a header. None otherwise."""
    if error is None:
        return None
    is_ours = isinstance(error, Error) and error.code == NO_ROOM
    return NO_ROOM if is_ours or header(error, CODE_HEADER) == NO_ROOM else None


def goes_back(error: BaseException | None, refused: str | None, answers: int, is_halted: bool) -> bool:
    """Returns whether an item goes back to pending, whatever its function returned or raised. Pure.

    An item goes back if a limit refused one of its calls. An item that ends in a halted run goes back, too, unless it
    returned and calls of it were answered: its result is paid for and whole.
    """
    if refused is not None or isinstance(error, (RunHalted, LeaseLost, StopRequested)):
        return True
    return is_halted and (error is not None or answers == 0)


def one(core: Core, index: int, alone: bool) -> Process[None]:
    """Claims an item, runs the function on it, and records the outcome."""
    open_run = core.open_run
    options, plan = core.options, core.plan
    key = plan.key(index)
    item = plan.source.items[index]
    on_change = "rerun" if options.on_change == "rerun" else "keep"
    # Waits before the claim: meanwhile, other processes may take the item, and a death does not count against it.
    wait = core.gate_delay()
    if wait > 0 and (yield pause(core, wait)):
        core.returned(index)
        return
    try:
        claim: _native.Claim = yield _native.claim_item(open_run, key, index, plan.source.content(index), plan.version, on_change, plan.on_version, alone)
    except LeaseLost as e:
        core.lost(open_run, index, e)
        return
    if claim[0] != "run":
        core.not_started()
        match claim:
            case "held", _:
                core.held(index)
            case "suspect", _, _:
                core.suspect(index)
            case "ended", seq, standing:
                core.recorded(index, seq, standing)
            case "changed", seq:
                core.recorded(index, seq, "done")
        return
    _, seq, tries, _, _, steps_scope = claim
    claimed = Claimed(core, open_run, index, seq)
    core.claimed[index] = (open_run, seq)
    run = ItemRun(core.run, open_run, key, seq, steps_scope)
    try:
        yield from _tries(claimed, run, item, tries)
    except GeneratorExit:
        raise
    except BaseException:
        # After a cancellation or a failed store, the item is given back without a failure.
        try:
            _native.return_item(open_run, seq)
        except Error:
            pass
        raise
    finally:
        core.claimed.pop(index, None)
        run.close()


@dataclasses.dataclass(frozen=True)
class Claimed:
    """An item that this process has claimed: its outcome is recorded, or it is given back."""

    core: Core
    open_run: _native.OpenRun
    index: int
    seq: int

    def record(
        self, how: _native.ItemEnd, raw: bytes, error: BaseException | None, changes: Sequence[_native.Change] = (), spared: bool = False
    ) -> Process[None]:
        try:
            standing, tries, nano, _ = yield _native.record_item(self.open_run, self.seq, how, raw, True, list(changes))
        except (AlreadyTaken, AlreadySettled):
            # This process was declared dead, and another one has the item now, whose result counts.
            self.core.held(self.index)
            return
        if how == "failed" and (spared or is_outside(error)):
            standing = yield self.core.engine.spare_item(self.core.run._no, self.core.plan.key(self.index), self.seq)
        self.core.ended(self.index, self.seq, standing, tries, nano, raw, error)

    def give_back(self, then: Callable[[int], None]) -> Process[None]:
        """Makes the item pending again. `then` tells the batch when it runs next."""
        try:
            yield _native.return_item(self.open_run, self.seq)
        except (AlreadyTaken, AlreadySettled):
            pass
        then(self.index)


def _tries(claimed: Claimed, run: ItemRun, item: Any, tries: int) -> Process[None]:
    core, index, seq, first = claimed.core, claimed.index, claimed.seq, True
    while True:
        wait = 0.0 if first else core.gate_delay()
        if wait > 0 and (yield pause(core, wait)):
            yield from claimed.give_back(core.returned)
            return
        first = False
        changes, began = Changes(run.id), time.monotonic()
        call = Call(core, item, scope.Current(run, None, seq, tries, changes))
        error: BaseException | None = None
        text, has_returned = "", False
        try:
            watch()
            returned = yield call
            has_returned = True
            text = codec.encode(returned)
        except Exception as e:
            error = without_own_frames(e)
        finally:
            # Sealed, so that later writes of a late thread raise: they would commit with nothing.
            changed = changes.seal()
        if run.answers > 0:
            core.answered(began)
        refused = run.refused or no_room(error)
        certain = error is None and run.answers > 0
        barred = None if refused or certain else core.engine.barred(core.run._no)
        is_halted = barred is not None and barred[0] == "halted"
        # Answers to a client made by hand are not seen here: it may have been refused for this reason.
        waits = refused == NO_ROOM or (barred is not None and not is_halted)
        # Begun again, a call that may be paid and left no answer would be paid twice, and nobody told: its item ends here.
        if waits and not core.engine.has_paid_in_vain(core.run._no, seq):
            yield from claimed.give_back(functools.partial(core.no_room, began=began))
            return
        if goes_back(error, None if waits else refused, run.answers, is_halted):
            yield from claimed.give_back(core.returned)
            core.stop(core.run.refusal(error, refused))
            return
        if error is None:
            try:
                if core.run._keeps_files:
                    yield beside(functools.partial(claimed.open_run.take_files, run.key, True))
                yield from claimed.record("done", text.encode(), None, changed)
                return
            except Conflict as e:
                # Another writer changed what the item read: the try failed, and left nothing.
                error = e
        if has_returned and isinstance(error, NotSerializable) and core.stats.done == core.stats.cached:
            # No item returned anything that could be recorded: others are not paid for it. What this one paid is replayed.
            yield from claimed.give_back(core.returned)
            core.stop(NotSerializable(f"item {run.key!r} of job {run.id}: {error.message}", hint=error.hint))
            return
        if isinstance(error, Skip):
            reason = life.message(error)
            yield from claimed.record("skipped", reason.encode("utf-8", "replace"), error)
            return
        # No further try beside a late thread: the item would run twice at once.
        delay = None if call.late else core.options.retry.delay(error, tries)
        if status_of(error) in CROWDED:
            core.crowded(began)
        if delay is None and not waits and call.late is None and may_begin_outage(error) and core.is_undecided(index, began):
            yield from claimed.give_back(core.held)
            return
        if delay is None:
            if waits and header(error, CODE_HEADER) == "provider_outage":
                # That a later call of the item was held is not why it failed.
                error = _in_doubt(error)
            yield from claimed.record("failed", life.failed(error), error, spared=waits)
            if call.late is not None:
                # The late thread keeps its slot until it ends.
                core.late(call.late)
            return
        yield _native.next_try(claimed.open_run, seq)
        tries += 1
        run.begin_try()
        if (yield pause(core, delay)):
            yield from claimed.give_back(core.returned)
            return


def _in_doubt(held: BaseException) -> ItemFailed:
    """The failure of an item of which a call may be paid and left no answer. `held`: the error of its later call."""
    error = ItemFailed(
        "a call was sent and got no whole answer: it may be paid, so that the item is not begun again by itself",
        hint="start the batch again: failed items run again; retries=… asks again at once",
    )
    error.__cause__ = held
    return error
