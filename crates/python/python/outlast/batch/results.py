"""The results of a batch: each item's, and the order in which the reader gets them."""

from __future__ import annotations

import array
import collections
import datetime
import functools
import json
import shlex
from typing import TYPE_CHECKING, Any, Callable, Literal

from .. import codec
from ..errors import Error, ItemFailed, Skip
from ..opening import typed
from ..versions import moment
from .jobrun import JobRun
from .plan import EMITTED, ENDED, FRESH, RECORDED, Plan

if TYPE_CHECKING:
    from .. import _native

#: Results whose values wait in memory for a slow reader. Values beyond are read from the store again.
_WAITING_VALUES = 1024


#: Facts of an item's record: opened and closed at (microseconds since the Unix epoch), and why it was skipped or is dead.
Facts = tuple[int, int | None, str | None]


def facts_of(engine: "_native.Engine", run: int, key: str) -> Facts:
    """Reads the facts of an item's record from the store."""
    row = engine.item(run, key)
    return (0, None, None) if row is None else row[8:11]


class Result:
    """The result of one item of a batch.

    `key` and `index` name the item, `status` is done, failed, dead or skipped. `ok`: the item is done. `value` is decoded
    from what was recorded, in every life of the job. `cached`: an earlier life or another process did the item. `attempts`:
    tries. `cost_usd`: the cost of the item's calls over all starts of the job, in dollars. `started` and `ended`: in UTC.
    """

    __slots__ = ("key", "index", "status", "attempts", "cost_nano_usd", "cached", "_job", "_raw", "_read", "_raised", "_facts")

    def __init__(
        self,
        key: str,
        index: int,
        status: str,
        attempts: int,
        cost_nano_usd: int,
        cached: bool,
        job: Any,
        read: Callable[[], bytes],
        facts: Callable[[], Facts],
        raw: bytes | None = None,
        raised: BaseException | None = None,
    ) -> None:
        self.key, self.index, self.status = key, index, status
        self.attempts, self.cost_nano_usd, self.cached = attempts, cost_nano_usd, cached
        self._job, self._read, self._facts = job, read, facts
        self._raw, self._raised = raw, raised

    @property
    def ok(self) -> bool:
        return self.status == "done"

    @property
    def cost_usd(self) -> float:
        return self.cost_nano_usd / 1e9

    @property
    def started(self) -> datetime.datetime:
        """The time at which the item was first claimed in its last start that ran it."""
        return moment(self._facts()[0])

    @property
    def ended(self) -> datetime.datetime | None:
        at_us = self._facts()[1]
        return None if at_us is None else moment(at_us)

    @property
    def value(self) -> Any:
        """The value that the function returned, as it was recorded. Errors: the item's own error, where the item is not done."""
        if not self.ok:
            error = self.error
            assert error is not None
            raise error
        return codec.decode(self.recorded())

    def recorded(self) -> bytes:
        """The recorded bytes: JSON of the value or of the error; empty where there is none."""
        if self.status == "skipped":
            return b""
        return self._raw if self._raw is not None else self._read()

    def why(self) -> str:
        """The item's error, or the reason why the item was skipped, as text: the same in the life that ran the item and in
        later ones."""
        told = self._told()
        if told is None:
            return self._facts()[2] or "its process died"
        kind = str(told.get("type", "its process died")).removeprefix("builtins.")
        return f"{kind}: {told.get('message', '')}".rstrip(": ")

    def _told(self) -> dict[str, str] | None:
        """The recorded exception: type, message, traceback; None where there is none."""
        raw = self.recorded()
        return json.loads(raw).get("error", {}) if raw else None

    @property
    def error(self) -> BaseException | None:
        """The item's exception: the exception itself in the life that ran the item, `ItemFailed` in later ones. `Skip` where the
        item was skipped; None where it is done."""
        if self.ok or self._raised is not None:
            return self._raised
        if self.status == "skipped":
            return Skip(self.why())
        reset = f"reset it: `outlast retry {self._job.id} --key {shlex.quote(self.key)}`"
        error = ItemFailed(
            f"item {self.key!r} is {self.status}: {self.why()}",
            hint="it runs again at the next start" if self.status == "failed" else typed(self._job._engine, reset),
        )
        error.traceback = (self._told() or {}).get("traceback")
        return error

    def forget(self) -> None:
        """Drops the value from memory. At the next access it is read from the store."""
        self._raw = None

    def __repr__(self) -> str:
        if self.ok:
            return f"<Result {self.key} done{', cached' if self.cached else ''}>"
        try:
            why = self.why()
        except Error as e:
            why = f"its record cannot be read: {e.message}"
        line = why.split("\n", 1)[0]
        return f"<Result {self.key} {self.status}: {line if len(line) <= 200 else line[:199] + '…'}>"


def read_back(run: Any, key: str, index: int, recorded: "_native.Items | None" = None, cached: bool = True) -> Result:
    """The result of an item that is recorded. `run`: the job. Its value is read at the first access. `recorded`: the items among which it
    is; None: it is read from the store by itself."""
    engine, no = run._engine, run._no
    found = None if recorded is None else recorded.find(key, None, None)
    if found is None or recorded is None:
        seq, _, standing, _, (tries, _, _), _, nano, *_ = engine.item(no, key)  # type: ignore[misc]
        read = functools.partial(engine.value, no, seq)
    else:
        seq, standing, tries, nano, *_ = found
        read = functools.partial(recorded.value, seq)
    return Result(key, index, standing, tries, nano, cached, run, read, lambda: facts_of(engine, no, key))


class Outcomes:
    """Results that are recorded, and those that the reader has already. The caller holds the batch's lock."""

    def __init__(self, run: JobRun, plan: Plan, order: Literal["input", "completion"]) -> None:
        self._run = run
        self._plan = plan
        self._by_completion = order == "completion"
        self._ended: dict[int, Result] = {}
        self._arrived: collections.deque[int] = collections.deque()
        self._cursor = 0
        #: Failed and dead items so far.
        self.failed: list[Result] = []
        #: Indexes of the items whose results were given, in that order.
        self.given = array.array("q")
        self._failed_at: dict[int, Result] = {}
        # What is recorded once the batch is over.
        self._at_the_end: "_native.Items | None" = None

    def add(self, result: Result) -> None:
        """Adds the result of an item that was recorded just now."""
        if len(self._ended) >= _WAITING_VALUES:
            result.forget()
        self._keep_failure(result)
        self._plan.state[result.index] = ENDED
        self._ended[result.index] = result
        if self._by_completion:
            self._arrived.append(result.index)

    def _keep_failure(self, result: Result) -> None:
        if result.status in ("failed", "dead"):
            self.failed.append(result)
            self._failed_at[result.index] = result

    def next(self, over: bool) -> Result | None:
        """The next result; None: there is none yet, or, when the batch is `over`, all were given."""
        index = self._next_index(over)
        if index is None:
            return None
        state = self._plan.state
        result = self._ended.pop(index) if state[index] == ENDED else self._of_plan(index)
        state[index] = EMITTED
        self.given.append(index)
        return result

    def again(self, place: int, over: bool) -> Result:
        """The result that was given at this place. Its value is read from the store; of a failed item it is the same object."""
        index = self.given[place]
        failed = self._failed_at.get(index)
        if failed is not None:
            return failed
        if not over:
            return self.read_again(index)
        if self._at_the_end is None:
            self._at_the_end = self._run._engine.recorded_items(self._run._no)
        return self.read_again(index, self._at_the_end)

    def _next_index(self, over: bool) -> int | None:
        state = self._plan.state
        while self._cursor < len(state):
            index = self._cursor
            at = state[index]
            ready = at == RECORDED or (at == ENDED and not self._by_completion)
            if at == FRESH and not self._by_completion and not over:
                return None
            self._cursor += 1
            if ready:
                return index
        return self._arrived.popleft() if self._arrived else None

    def _of_plan(self, index: int) -> Result:
        """The result of an item that was recorded before this run of the batch began."""
        result = self.read_again(index, self._plan.recorded)
        self._keep_failure(result)
        return result

    def read_again(self, index: int, recorded: "_native.Items | None" = None) -> Result:
        """A result that is recorded. `recorded`: the items among which it is; None: it is read from the store by itself."""
        return read_back(self._run, self._plan.key(index), index, recorded, self._plan.seqs[index] != 0)
