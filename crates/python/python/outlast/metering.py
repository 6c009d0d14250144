"""Whether the calls of a run come through Outlast: what other clients spend is in no budget, and no limit holds it."""

from __future__ import annotations

from ._native import OpenRun
from .errors import NothingMetered
from .opening import typed
from .passing import METERED, limit_of, note, watch
from .runs import Run
from .say import say

#: Finished items after which something must have been metered, where calls are expected.
METERED_AFTER = 10


class Meter:
    """Watches whether the calls of a job are metered, while its run has a limit of usd or tokens.

    A request that passes Outlast by is told before it is sent (`passing`). Where calls are expected, because the caller gave
    the limit or such a request was seen, the first item that is done while nothing was metered is told, and `METERED_AFTER`
    items of that kind are an error, over all starts of the job: `done` are those that earlier ones finished.
    """

    def __init__(self, run: Run, is_asked: bool, done: int) -> None:
        watch()
        self._run = run
        self._limit = limit_of(run)
        # Whether nothing is to be looked for any more.
        self._is_over = self._limit is None
        self._before = done
        self._done = 0
        self._is_asked = is_asked

    def item_done(self, name: str, open_run: OpenRun) -> NothingMetered | None:
        """Counts a finished item. Returns the error that stops the job once too many are finished and nothing was metered."""
        self._done += 1
        done, past = self._before + self._done, self._run._past
        if self._is_over or not (self._is_asked or past):
            return None
        is_enough = done >= METERED_AFTER
        if not (is_enough or self._done == 1):
            return None
        spent = self._run.view().budget
        if spent.calls.spent or spent.usd.spent:
            self._is_over = True
            return None
        if not is_enough:
            say(
                f"job {self._run.id}: {name} is done and nothing was metered: the limit of {self._limit} holds only what clients "
                f"of {METERED} spend; after {METERED_AFTER} such items it stops"
            )
            return None
        self._is_over = True
        note(open_run, f"{done} items were finished and nothing was metered" + (f": {past}" if past else ""))
        return NothingMetered(
            f"{done} items of job {self._run.id} are finished and nothing was metered: its limit of {self._limit} holds nothing",
            hint=typed(
                self._run._engine,
                f"make clients with {METERED}; or, where no limit is wanted, `outlast budget {self._run.id} --no-limit usd`",
            ),
        )
