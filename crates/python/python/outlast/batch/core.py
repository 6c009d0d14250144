"""A batch in this process: which item is next, what became of it, when the batch is over."""

from __future__ import annotations

import asyncio
import collections
import re
import threading
import time
from typing import Any, Callable, Iterable, Iterator

from .. import _native, html
from ..budget import NANO
from ..effects import Do
from ..errors import OUTAGES, Error, LeaseLost, RepeatedFailure, RunEnded, RunHalted, StopRequested, reason
from ..metering import Meter
from ..opening import RunSpec, Store, typed
from ..say import say
from ..steps import life
from ..views import RunView
from . import plan as plans, progress
from .jobrun import JobRun
from .options import MOST_EQUAL_FAILURES, Options
from .outfile import OutFile
from .outside import is_outside
from .plan import LEFT_OUT, Source
from .progress import Stats
from .queue import Gate, Queue, Take, Wait, Width
from .results import Outcomes, Result, facts_of

#: Failures that a notebook shows.
_SHOWN_FAILURES = 10

#: Seconds between looks at whether this attempt still drives, at who died, and, while a batch stops, at its provider.
LOOK_S = 1.0


class Bell:
    """Wakes threads, and tasks of one event loop, that wait for a change. Rung with the lock held, by any thread."""

    def __init__(self, lock: threading.RLock, aio: bool) -> None:
        self.condition = threading.Condition(lock)
        #: How often the bell was rung. Who waits for the next time gives the number that it has seen.
        self.rung = 0
        #: The event loop whose tasks wait; None where threads do.
        self.loop = asyncio.get_running_loop() if aio else None
        self._waiting: set[asyncio.Future[None]] = set()

    def ring(self) -> None:
        self.rung += 1
        self.condition.notify_all()
        if self.loop is None or asyncio._get_running_loop() is self.loop:
            self._wake()
        elif not self.loop.is_closed():
            self.loop.call_soon_threadsafe(self._wake)

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)

    def after(self, rung: int, seconds: float | None = None) -> Do:
        """Waits until the bell is rung again, for at most so many seconds."""

        def wait() -> None:
            with self.condition:
                self.condition.wait_for(lambda: self.rung != rung, seconds)

        async def awaited() -> None:
            if self.rung == rung:
                await self.ring_or(seconds)

        return Do(wait, awaited)

    async def ring_or(self, seconds: float | None) -> None:
        """Waits until somebody calls `ring`, for at most so many seconds."""
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        try:
            await asyncio.wait([future], timeout=seconds)
        finally:
            self._waiting.discard(future)


class Alike:
    """Equal failures in a row."""

    def __init__(self) -> None:
        self._shape = ""
        #: Results of the row, each with its entry.
        self.row: list[tuple[Result, int]] = []
        #: Whether no item of this start did anything but fail like the others.
        self.are_all = True

    def ended(self) -> None:
        """Begins a new row, because an item ended without failing."""
        self.row, self.are_all = [], False

    def failed(self, error: BaseException | None, result: Result, seq: int) -> RepeatedFailure | None:
        """Adds a failed item. Returns the error that stops the batch when too many failed alike in a row."""
        says = f"{type(error).__name__}: {'' if error is None else life.message(error)}"
        # Numbers and addresses are masked: they differ between items with the same fault.
        shape = re.sub(r"0x[0-9a-fA-F]+|\d+", "#", says[:300])
        if shape != self._shape:
            self.row, self.are_all = [], self.are_all and not self.row
        self._shape = shape
        self.row.append((result, seq))
        if len(self.row) < MOST_EQUAL_FAILURES:
            return None
        stop = RepeatedFailure(
            f"{len(self.row)} items in a row failed alike: {says}",
            hint="repair it and start again: failed items run again",
        )
        stop.__cause__ = error
        return stop


class Core:
    """The state that workers and the reader of a batch share, under one lock."""

    plan: plans.Plan
    outcomes: Outcomes
    open_run: _native.OpenRun

    def __init__(self, store: Store, fn: Callable[[Any], Any], options: Options, aio: bool) -> None:
        self.store = store
        self.engine = store._engine
        self.fn = fn
        self.options = options
        spec = RunSpec(options.job, options.budget, dict(options.tags or {}), job=options.job, from_snapshot=options.from_snapshot, files=options.files)
        self.run = JobRun(store, spec)
        self.lock = threading.RLock()
        self.bell = Bell(self.lock, aio)
        self.stopping = threading.Event()
        self.over = False
        self.error: BaseException | None = None
        self.stats = Stats()
        self._workers = 0
        self._alike = Alike()
        # Beginning of the newest try of which a call was answered in this start, in seconds; 0 before the first one.
        self._answered_at = 0.0
        # Items that were asked again, because their failures may have been the beginning of an outage.
        self._doubted: set[int] = set()
        self._looked = 0.0
        self._opened = False
        self.out: OutFile | None = None
        self._is_dropped = False
        self._elsewhere_before = 0
        # Amount held for calls without an answer, in words.
        self._in_doubt: str | None = None
        # Time from which on the estimated calls are counted again, in seconds.
        self._counts_at = 0.0
        #: Items that run here: their entries, by their indexes, each with the attempt that claimed it.
        self.claimed: dict[int, tuple[_native.OpenRun, int]] = {}
        #: Threads of the workers.
        self.threads: list[threading.Thread] = []

    # --- the beginning

    def open(self, items: Iterable[Any]) -> None:
        """Reads the input and what is recorded, and joins the job. Nothing is called yet.

        Errors: `DuplicateKey`, `JobChanged`, `BudgetChanged`, `BudgetExceeded`.
        """
        options = self.options
        source = Source(items, options)
        # Steps that can fail come before the attempt, which they would leave open.
        self.out = OutFile(options.out) if options.out is not None else None
        open_run = None
        try:
            status = self.run.create()
            self.engine.sweep()
            view = self.run.view()
            # Items that failed are yet to be done: the others keep their results until then.
            is_whole = status == "completed" and not view.raw["job"]["failed"]
            expired = options.resume == "never" or (is_whole and plans.is_expired(view.ended_at, options.ttl_s))
            recorded = self.engine.recorded_items(self.run._no)
            self.plan = plans.make(source, self.fn, options, recorded, expired)
            self.outcomes = Outcomes(self.run, self.plan, options.order)
            self.open_run = open_run = self.run.join()
            if expired:
                self._reset(recorded)
            self._begin(view, len(recorded) > 0 or view.attempts > 0)
        except BaseException as e:
            self.drop_out()
            if open_run is not None:
                open_run.end("interrupt", reason(e))
            raise
        with self.lock:
            self._opened = True
            given_up = self.stopping.is_set()
        if given_up:
            self.workers_start(0)

    def _begin(self, view: RunView, resumes: bool) -> None:
        options, plan, spent_usd = self.options, self.plan, view.budget.usd.spent
        self.width = Width(options.concurrency)
        self.queue = Queue(plan.fresh(), self.width)
        self.gate = Gate(options.interval)
        self._spent_before = spent_usd
        self._began = time.monotonic()
        self.stats = Stats(
            total=len(plan.source) - plan.state.count(LEFT_OUT),
            done=plan.done,
            cached=plan.done,
            skipped=plan.skipped,
            dead=plan.dead,
            vanished=plan.vanished,
            cost_usd=self._spent_before,
        )
        self._before = self.stats.ended
        # Such items that the input does not have.
        self._elsewhere_before = self._rested_elsewhere(view)
        self.engine.expect_items(self.run._no, self.stats.total, plan.vanished)
        for line in progress.start(self.run.id, self.stats, plan, round(spent_usd * NANO), self.store.place, resumes):
            say(line)
        self.meter = Meter(self.run, options.meters, plan.done)
        self.shown = progress.make(options.progress, self.stats.total, self._before, self._spent_before, options.job)
        # The store's end drains what still runs.
        self.store._batches.add(self)

    def give_up(self) -> None:
        """Ends a batch that `open` begins in another thread: the caller no longer waits for the batch."""
        with self.lock:
            self.stopping.set()
            opened = self._opened
        if opened:
            self.workers_start(0)

    def _reset(self, recorded: _native.Items) -> None:
        """Makes the recorded items of the input pending again, in groups of commits."""
        tickets: collections.deque[Any] = collections.deque()
        for index, key in enumerate(self.plan.source.keys):
            if key is None:
                continue
            found = recorded.find(key, None, None)
            if found is None or found[1] == "open":
                continue
            tickets.append(self.engine.reset_item(self.run._no, key, False))
            if len(tickets) > 256:
                tickets.popleft().wait()
        for ticket in tickets:
            ticket.wait()

    @property
    def wanted_workers(self) -> int:
        return min(self.options.concurrency, self.plan.left)

    def workers_start(self, count: int) -> None:
        self._workers = count
        if count == 0:
            self._finish()

    # --- what workers ask

    def take(self) -> Take | Wait | None:
        """The next item, or how long to wait for one; None when there is none left. The caller holds the lock. Errors stop
        the batch."""
        now = time.monotonic()
        if now - self._looked > LOOK_S:
            self._looked = now
            try:
                self._look()
            except Error as e:
                self.stop(e)
        return self.queue.take(now)

    def _look(self) -> None:
        word = self.open_run.word()
        if word == "stop":
            raise StopRequested(f"job {self.run.id} was asked to stop", hint="start the script again to go on")
        if self.shown is not None:
            self.read_cost()
        if self.queue.waits_for_others:
            # The processes that hold the items may be dead.
            self.engine.sweep()

    def gate_delay(self) -> float:
        with self.lock:
            return self.gate.pass_at(time.monotonic())

    def not_started(self) -> None:
        """Gives the place at the gate back, because nothing was started."""
        with self.lock:
            self.gate.give_back()

    def crowded(self, began: float) -> None:
        """Notes that a provider had more than it could take: of many such tries fewer items run at once. `began`: the start
        of the try, in seconds."""
        with self.lock:
            self.width.crowded(began, time.monotonic())

    # --- what became of an item

    def answered(self, began: float) -> None:
        """Notes that a call was answered in a try that began then, in seconds."""
        with self.lock:
            self._answered_at = max(self._answered_at, began)

    def is_undecided(self, index: int, began: float) -> bool:
        """Whether an item that failed with its provider's status is asked once more: nobody who began later than it was
        answered yet, so that the failure may be the first one of an outage."""
        with self.lock:
            is_new = index not in self._doubted
            self._doubted.add(index)
            return is_new and self._answered_at <= began

    def held(self, index: int) -> None:
        with self.lock:
            self.queue.ended()
            self.queue.held(index, time.monotonic())
            self.bell.ring()

    def suspect(self, index: int) -> None:
        with self.lock:
            self.queue.ended()
            self.queue.suspect(index)
            self.bell.ring()

    def returned(self, index: int) -> None:
        with self.lock:
            self.queue.ended()
            self.bell.ring()

    def no_room(self, index: int, began: float) -> None:
        """Takes an item back of which a call found no room in a budget. `began`: the start of the try, in seconds.

        Where calls in flight hold the room, it comes back by itself, and fewer items run until then; so does a provider that
        is away, which holds the next call. Where a budget above the job's own is used up, only a person or the next period
        brings room: that stops the batch.
        """
        barred = self.run.barred()
        with self.lock:
            self.queue.ended()
            if barred is not None and barred.code not in OUTAGES:
                self.stop(barred)
            now = time.monotonic()
            self.width.no_room(began, now)
            self.queue.held(index, now)
            self.bell.ring()

    def lost(self, open_run: _native.OpenRun, index: int, error: LeaseLost) -> None:
        """Joins the job anew after this process was declared dead, as on a suspended machine."""
        with self.lock:
            self.queue.ended()
            self.queue.again(index)
            if self.open_run is open_run:
                word = open_run.word()
                if word == "stop":
                    self.stop(error)
                    return
                # While the store is away nothing is known to be lost.
                if word != "away":
                    self.open_run = self.run.join()
            self.bell.ring()

    def recorded(self, index: int, seq: int, standing: str) -> None:
        """Adds the result of an item that another process ended meanwhile."""
        with self.lock:
            self.plan.seqs[index] = seq
            self._count(standing, cached=True)
            self._arrive(self.outcomes.read_again(index))

    def ended(self, index: int, seq: int, standing: str, tries: int, nano: int, raw: bytes, error: BaseException | None) -> None:
        """Adds the result of an item that was recorded: on disk, and visible from now on."""
        key, no = self.plan.key(index), self.run._no
        read, facts = (lambda: self.engine.value(no, seq)), (lambda: facts_of(self.engine, no, key))
        result = Result(key, index, standing, tries, nano, False, self.run, read, facts, raw, error)
        with self.lock:
            self._count(standing, cached=False)
            if standing in ("failed", "dead"):
                self._failure(error, result, seq)
            else:
                self._alike.ended()
                self.width.went_well(time.monotonic())
            self._arrive(result)
            # Skipped and failed items may not have made a call. Under the lock, so that nothing begins before the answer is known.
            unmetered = self.meter.item_done(f"item {key!r}", self.open_run) if standing == "done" else None
            if unmetered is not None:
                self.stop(unmetered)

    def _arrive(self, result: Result) -> None:
        self.queue.ended()
        self.outcomes.add(result)
        self._show()
        self.bell.ring()

    def _show(self, last: bool = False) -> None:
        self.stats.seconds = time.monotonic() - self._began
        if self.shown is None:
            return
        try:
            self.shown.update(self.stats, last)
        except Exception:
            # A display that fails must not end the batch.
            self.shown = None

    def _count(self, standing: str, cached: bool) -> None:
        stats = self.stats
        setattr(stats, standing, getattr(stats, standing) + 1)
        stats.cached += cached and standing == "done"

    def _failure(self, error: BaseException | None, result: Result, seq: int) -> None:
        if self.options.on_error == "raise" and error is not None:
            self.stop(error)
        stop = self._alike.failed(error, result, seq)
        if stop is not None:
            self.stop(stop)

    def crashed(self, error: BaseException) -> None:
        """Stops the batch for an error that is not the item's own: the store's, or a halt."""
        with self.lock:
            self.queue.ended()
            if isinstance(error, RunHalted):
                error = self.run.refusal(error, None)
            elif isinstance(error, RunEnded):
                error = RunEnded(error.message, hint="give the batch another name: job=…")
            self.stop(error)
            self.bell.ring()

    def late(self, thread: threading.Thread) -> None:
        """Waits for a thread that runs beyond its timeout, and so keeps its slot, as long as the batch has further items to
        run and is not stopped."""
        while thread.is_alive() and not self.stopping.is_set() and not self._is_idle():
            thread.join(0.1)

    def _is_idle(self) -> bool:
        with self.lock:
            return not self.queue.has_more

    # --- the end

    def stop(self, error: BaseException | None) -> None:
        """Claims no more items, and lets running ones finish. The first `error` is kept as the reason."""
        with self.lock:
            if self.error is None:
                self.error = error
            self.queue.stop()
            self.stopping.set()
            self.bell.ring()

    def worker_left(self) -> None:
        with self.lock:
            self._workers -= 1
            last = self._workers == 0
        if last:
            self._finish()

    def _spare(self) -> None:
        """Lets the failures of a start that failed alike count against no item: so many are no fault of each of them, nor are all
        items of a job of which none was ever done or got an answer to a call."""
        row = [(result, seq) for result, seq in self._alike.row if not is_outside(result._raised)]
        has_begun = self.stats.done or self._answered_at or not self._alike.are_all
        if not isinstance(self.error, RepeatedFailure) and (len(row) < 2 or has_begun):
            return
        tickets = [self.engine.spare_item(self.run._no, result.key, seq) for result, seq in row]
        for (result, _), ticket in zip(row, tickets, strict=True):
            was, result.status = result.status, ticket.wait()
            if was == "dead" != result.status:
                self.stats.dead, self.stats.failed = self.stats.dead - 1, self.stats.failed + 1

    def _finish(self) -> None:
        """Ends the attempt, when the last worker has ended."""
        with self.lock:
            if self.over:
                return
            try:
                self._spare()
            except Error as e:
                self.error = self.error or e
        whole = self.error is None and self.stats.pending == 0
        how: _native.End = "complete" if whole else "stopped" if isinstance(self.error, (KeyboardInterrupt, StopRequested)) else "interrupt"
        try:
            self.open_run.end(how, self._why())
        except RunHalted:
            pass
        except Exception as e:
            if self.error is None:
                self.error = e
        self._counts_at = 0.0
        if whole and self.stats.failed + self.stats.dead + self.stats.vanished:
            say(typed(self.engine, f"job {self.run.id}: {self.words()}: `outlast inspect {self.run.id}` tells why"))
        with self.lock:
            self.read_cost()
            self._show(last=True)
            self.store._batches.discard(self)
            self.over = True
            self.bell.ring()

    def _why(self) -> str | None:
        """Why the batch is over before its items are, in a sentence; None if it is not."""
        if self.error is None and self.stats.pending:
            return f"its program left it with {progress.some(self.stats.pending, 'item')} to run"
        return reason(self.error)

    def away(self) -> str | None:
        """Why the provider answers no call of the job; None while it does, or where that cannot be read."""
        try:
            barred = self.engine.barred(self.run._no)
        except Error:
            return None
        return barred[2] if barred is not None and barred[1] in OUTAGES else None

    def finished(self, patience_s: float | None = None) -> None:
        """Waits until what runs is finished. Of a provider that answers no call nothing is waited for: what runs goes back."""
        over = None if patience_s is None else time.monotonic() + patience_s
        with self.lock:
            while not self.over and (over is None or time.monotonic() < over):
                if not self.bell.condition.wait_for(lambda: self.over, timeout=LOOK_S) and (why := self.away()) is not None:
                    say(f"job {self.run.id}: {why}, so that what runs goes back to pending")
                    self.abandon()

    def abandon(self) -> None:
        """Leaves now. Items that run go back to pending; their threads are waited for no more, and record nothing."""
        with self.lock:
            if self.over:
                return
            claimed, self.claimed = self.claimed, {}
            for open_run, seq in claimed.values():
                try:
                    _native.return_item(open_run, seq).wait()
                except Error:
                    # It is recorded, or another process has it.
                    pass
            self.store._left_behind.extend(self.threads)
            self._finish()

    def drain(self) -> None:
        """Claims no more items and waits until the running ones are finished: the store closes."""
        self.stop(None)
        if self.bell.loop is None and not self.over:
            if not self._is_dropped:
                say(f"job {self.run.id}: what runs is finished, and no more")
            self.finished(60.0)
        self.drop_out()

    def dropped(self) -> None:
        """Stops a batch whose handle was dropped. Running items are finished."""
        with self.lock:
            if not self.over and not self.stopping.is_set() and self.stats.pending:
                self._is_dropped = True
                say(progress.dropped(self.run.id, self.stats, self.queue.running))
            self.stop(None)
        self.drop_out()

    def drop_out(self) -> None:
        """Removes the partial file of results of a batch that does not end."""
        if self.out is not None:
            self.out.drop()

    # --- what the reader asks

    def result_at(self, place: int) -> tuple[Result | None, bool, int]:
        """The result at a place of those that are given, or the next one; None while there is none. Then whether the batch is
        over, and how often the bell was rung by then."""
        with self.lock:
            over, outcomes = self.over, self.outcomes
            result = outcomes.again(place, over) if place < len(outcomes.given) else outcomes.next(over)
            return result, over, self.bell.rung

    def stats_now(self) -> Stats:
        """The counts, with the cost as it is in the store now."""
        if self._opened and not self.over:
            self.read_cost()
        return self.stats

    def words(self) -> str:
        """The counts and the cost in words, without those that are zero."""
        stats = self.stats_now()
        parts = progress.counts({**vars(stats), "items": stats.total, "open": stats.pending})
        parts.append(progress.spent(stats.cost_usd, stats.estimated))
        parts += [f"waits: {stats.waits_for}"] if stats.waits_for else []
        return ", ".join([*parts, self._in_doubt] if self._in_doubt else parts)

    def html(self) -> str:
        """The counts, and the first failures, as HTML."""
        failed = [(result.key, result.status, result.why()) for result in sorted(self.outcomes.failed, key=lambda result: result.index)[:_SHOWN_FAILURES]]
        head = ("key", "status", "error") if failed else ()
        return html.table(f"Batch {self.run.id}: {self.words()}", head, failed)

    def read_cost(self) -> None:
        """Reads what the job has spent: the one sum, which its budget has too."""
        try:
            view = self.run.view()
            self.stats.cost_usd, self._in_doubt = view.budget.usd.spent, view.in_doubt
            self.stats.waits_for = view.why if view.status == "waiting" else None
            self.stats.elsewhere = max(0, self._rested_elsewhere(view))
            now = time.monotonic()
            if now >= self._counts_at:
                self.stats.estimated = self.engine.estimated_calls(self.run._no)
                # The journal is read for it: a twentieth of the time at most goes into that.
                self._counts_at = now + 20 * (time.monotonic() - now)
        except Error:
            # The store is closed, or away: what was read last stays.
            pass

    def _rested_elsewhere(self, view: RunView) -> int:
        """The number of recorded items that run no more by themselves and that this process has not counted."""
        job, stats = view.raw["job"], self.stats
        there: int = job["done"] + job["skipped"] + job["dead"]
        return there - stats.done - stats.skipped - stats.dead - self._elsewhere_before

    def all_results(self) -> Iterator[Result]:
        """All results that were given, from the store."""
        for place in range(len(self.outcomes.given)):
            with self.lock:
                result = self.outcomes.again(place, self.over)
            yield result

    def all_told(self) -> None:
        """Writes the file of results once every result was read. Raises the error that stopped the batch."""
        if self.out is not None:
            if self.error is None and self.stats.pending == 0:
                self.out.finish(self.all_results())
            else:
                self.out.drop()
        if self.error is not None:
            raise self.error
