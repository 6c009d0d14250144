"""The results of a batch, in the order in which its reader gets them."""

from __future__ import annotations

import collections
from typing import TYPE_CHECKING, Any, Literal

from .plan import EMITTED, ENDED, FRESH, RECORDED, Plan
from .results import Result

if TYPE_CHECKING:
    from .jobrun import JobRun

#: Results whose values wait in memory for a slow reader. Values beyond are read from the store again.
_WAITING_VALUES = 1024


class Outcomes:
    """Results that are recorded and that the reader does not have yet. The caller holds the batch's lock."""

    def __init__(self, run: "JobRun", plan: Plan, order: Literal["input", "completion"]) -> None:
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
