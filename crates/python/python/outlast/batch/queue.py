"""The queue of a batch: the item that runs next, when, and how many at once. Pure: the caller holds the lock, waits, and passes the time."""

from __future__ import annotations

import collections
import dataclasses
from typing import Iterator

#: HTTP statuses of a provider that has more than it can take. 529 is Anthropic's "overloaded".
CROWDED = frozenset({429, 503, 529})

#: Seconds until an item that another process runs is asked for again.
ASK_AGAIN_S = 0.25


@dataclasses.dataclass(frozen=True)
class Take:
    """Item to run now. `alone`: nothing else may run meanwhile, because the item may kill the process."""

    index: int
    alone: bool = False


@dataclasses.dataclass(frozen=True)
class Wait:
    """Nothing to run now. `seconds` until the next item is due; None: wait until a running item ends."""

    seconds: float | None


class Queue:
    """Queue of fresh items in input order, then items that other processes hold, then suspects one at a time."""

    def __init__(self, fresh: Iterator[int], width: Width) -> None:
        self._fresh = fresh
        self._width = width
        self._held: collections.deque[tuple[float, int]] = collections.deque()
        self._suspects: collections.deque[int] = collections.deque()
        self._running = 0
        self._alone = False
        self._stopped = False
        self._ahead: int | None = None

    def take(self, now: float) -> Take | Wait | None:
        """The next item; None: there is nothing more to do, and nothing will come. `now` in seconds."""
        if self._stopped:
            return None
        if self._alone or self._running >= self._width.now:
            return Wait(None)
        index, self._ahead = self._ahead, None
        if index is None:
            index = next(self._fresh, None)
        if index is None and self._held and self._held[0][0] <= now:
            index = self._held.popleft()[1]
        if index is not None:
            self._running += 1
            return Take(index)
        if self._suspects:
            if self._running:
                return Wait(None)
            self._running, self._alone = 1, True
            return Take(self._suspects.popleft(), alone=True)
        if self._held:
            return Wait(self._held[0][0] - now)
        return Wait(None) if self._running else None

    def ended(self) -> None:
        """Notes that an item that was taken is no longer worked on, whatever its outcome."""
        self._running = max(0, self._running - 1)
        self._alone = False

    def held(self, index: int, now: float) -> None:
        """Queues an item that another process holds, to be claimed again after `ASK_AGAIN_S` seconds."""
        self._held.append((now + ASK_AGAIN_S, index))

    def suspect(self, index: int) -> None:
        self._suspects.append(index)

    def again(self, index: int) -> None:
        """Queues an item to be claimed again at once."""
        self._held.appendleft((0.0, index))

    def stop(self) -> None:
        self._stopped = True

    @property
    def has_more(self) -> bool:
        """Whether an item is left that a free slot could take."""
        if self._ahead is None:
            self._ahead = next(self._fresh, None)
        return not self._stopped and (self._ahead is not None or bool(self._held) or bool(self._suspects))

    @property
    def running(self) -> int:
        """The number of items that are worked on."""
        return self._running

    @property
    def waits_for_others(self) -> bool:
        return bool(self._held)


class Gate:
    """Starts at most once every `interval` seconds."""

    def __init__(self, interval: float | None) -> None:
        self._interval = interval
        self._next = 0.0

    def pass_at(self, now: float) -> float:
        """Takes the next start at the gate, and returns the seconds to wait for it."""
        if self._interval is None:
            return 0.0
        at = max(now, self._next)
        self._next = at + self._interval
        return at - now

    def give_back(self) -> None:
        """Gives back a start that was taken, because nothing was started."""
        if self._interval is not None:
            self._next -= self._interval


class Width:
    """Number of items that may run at once, from 1 to `most`.

    A window is a width's worth of tries. It is halved after a window of which a provider refused half or more, and raised by
    one after any other (additive increase, multiplicative decrease): a stray refusal narrows nothing. Tries that began
    before the last halving do not count.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self.now = most
        self._halved_at = float("-inf")
        self._went_well = self._refused = 0

    def crowded(self, began: float, now: float) -> None:
        """Notes that a provider refused, at `now`, a try that began at `began`, both in seconds."""
        if began >= self._halved_at:
            self._refused += 1
            self._end_window(now)

    def no_room(self, began: float, now: float) -> None:
        """Halves at once, for a call of a try that found no room in a budget."""
        if began >= self._halved_at:
            self._halve(now)

    def went_well(self, now: float) -> None:
        """Notes that a try was not refused."""
        self._went_well += 1
        self._end_window(now)

    def _end_window(self, now: float) -> None:
        if self._went_well + self._refused < self.now:
            return
        if self._refused >= self._went_well:
            self._halve(now)
        else:
            self.now = min(self._most, self.now + 1)
            self._went_well = self._refused = 0

    def _halve(self, now: float) -> None:
        self._halved_at = now
        self.now = max(1, self.now // 2)
        self._went_well = self._refused = 0
