"""The results of a batch: each item's, and the order in which the reader gets them."""

from __future__ import annotations

import collections
import json
import shlex
from typing import Any, Callable, Literal

from .. import codec
from ..errors import ItemFailed, Skip
from .jobrun import JobRun
from .plan import EMITTED, ENDED, FRESH, RECORDED, Plan

#: Results whose values wait in memory for a slow reader. Values beyond are read from the store again.
_WAITING_VALUES = 1024


class Result:
    """The result of one item of a batch.

    `key` and `index` name the item, `status` is done, failed, dead or skipped. `ok`: the item is done. `value` is decoded
    from what was recorded, in every life of the job. `cached`: an earlier life or another process did the item. `attempts`:
    tries. `cost_usd`: the cost of the item's calls, in dollars.
    """

    __slots__ = ("key", "index", "status", "attempts", "cost_nano_usd", "cached", "_job", "_raw", "_read", "_raised")

    def __init__(
        self,
        key: str,
        index: int,
        status: str,
        *,
        attempts: int,
        cost_nano_usd: int,
        cached: bool,
        job: str,
        read: Callable[[], bytes],
        raw: bytes | None = None,
        raised: BaseException | None = None,
    ) -> None:
        self.key = key
        self.index = index
        self.status = status
        self.attempts = attempts
        self.cost_nano_usd = cost_nano_usd
        self.cached = cached
        self._job = job
        self._raw = raw
        self._read = read
        self._raised = raised

    @property
    def ok(self) -> bool:
        return self.status == "done"

    @property
    def cost_usd(self) -> float:
        return self.cost_nano_usd / 1e9

    @property
    def value(self) -> Any:
        """The value that the function returned, as it was recorded. Errors: the item's own error, where the item is not done."""
        if not self.ok:
            error = self.error
            assert error is not None
            raise error
        return codec.decode(self.recorded())

    def recorded(self) -> bytes:
        """The recorded bytes: JSON of the value or of the error, or the reason why the item was skipped as text."""
        return self._raw if self._raw is not None else self._read()

    def why(self) -> str:
        """The item's error, or the reason why the item was skipped, as text: the same in the life that ran the item and in
        later ones."""
        raw = self.recorded()
        if self.status == "skipped":
            return raw.decode("utf-8", "replace")
        told = json.loads(raw).get("error", {}) if raw else {}
        kind = str(told.get("type", "its process died")).removeprefix("builtins.")
        return f"{kind}: {told.get('message', '')}".rstrip(": ")

    @property
    def error(self) -> BaseException | None:
        """The item's exception: the exception itself in the life that ran the item, `ItemFailed` in later ones. `Skip` where the
        item was skipped; None where it is done."""
        if self.ok or self._raised is not None:
            return self._raised
        if self.status == "skipped":
            return Skip(self.why() or "skipped in an earlier life")
        reset = f"reset it: outlast retry {self._job} --key {shlex.quote(self.key)}"
        return ItemFailed(
            f"item {self.key!r} is {self.status}: {self.why()}",
            hint="it runs again at the next start" if self.status == "failed" else reset,
        )

    def forget(self) -> None:
        """Drops the value from memory. At the next access it is read from the store."""
        self._raw = None

    def __repr__(self) -> str:
        return f"<outlast.Result {self.key!r} {self.status}{' cached' if self.cached else ''}>"


class Outcomes:
    """Results that are recorded and that the reader does not have yet. The caller holds the batch's lock."""

    def __init__(self, run: JobRun, plan: Plan, order: Literal["input", "completion"]) -> None:
        self._run = run
        self._plan = plan
        self._by_completion = order == "completion"
        self._ended: dict[int, Result] = {}
        self._arrived: collections.deque[int] = collections.deque()
        self._cursor = 0
        #: Failed and dead items so far.
        self.failed: list[Result] = []

    def add(self, result: Result) -> None:
        """Adds the result of an item that was recorded just now."""
        if len(self._ended) >= _WAITING_VALUES:
            result.forget()
        if result.status in ("failed", "dead"):
            self.failed.append(result)
        self._plan.state[result.index] = ENDED
        self._ended[result.index] = result
        if self._by_completion:
            self._arrived.append(result.index)

    def next(self, over: bool) -> Result | None:
        """The next result; None: there is none yet, or, when the batch is `over`, all were given."""
        index = self._next_index(over)
        if index is None:
            return None
        state = self._plan.state
        result = self._ended.pop(index) if state[index] == ENDED else self._of_plan(index)
        state[index] = EMITTED
        return result

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
        found = self._plan.recorded.find(self._plan.key(index), None, None)
        standing = found[1] if found is not None else "done"
        result = self.read_back(index, self._plan.seqs[index], standing, found)
        if standing in ("failed", "dead"):
            self.failed.append(result)
        return result

    def read_back(self, index: int, seq: int, standing: str, found: Any = None) -> Result:
        """A result that an earlier run of the batch, or another process, recorded. Its value is read from the store at the
        first access."""
        run, key = self._run, self._plan.key(index)
        tries, nano = (found[2], found[3]) if found is not None else (1, 0)
        if found is None:
            row = run._engine.item(run._no, key)
            if row is not None:
                tries, nano = row[4][0], row[6]

        def read() -> bytes:
            if standing == "skipped":
                row = run._engine.item(run._no, key)
                return (row[10] or "").encode() if row is not None else b""
            return self._plan.recorded.value(seq)

        return Result(key, index, standing, attempts=tries, cost_nano_usd=nano, cached=True, job=run.id, read=read)
