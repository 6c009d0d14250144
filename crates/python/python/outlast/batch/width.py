"""Limits how many items run at once. Pure: the caller holds the lock and passes the time."""

from __future__ import annotations

#: HTTP statuses of a provider that has more than it can take. 529 is Anthropic's "overloaded".
CROWDED = frozenset({429, 503, 529})


class Width:
    """Number of items that may run at once, from 1 to `most`.

    Halved when a provider is crowded, and raised by one for each width's worth of items that went well (additive
    increase, multiplicative decrease). Refusals of calls that began before the last halving are ignored: a burst of
    them halves the width once.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._now = float(most)
        self._halved_at = float("-inf")

    @property
    def now(self) -> int:
        """Items that may run at once, from 1."""
        return max(1, int(self._now))

    def crowded(self, began: float, now: float) -> None:
        """Notes that a provider refused, at `now`, a call that began at `began`, both in seconds: fewer items run at once
        for a while."""
        if began >= self._halved_at:
            self._halved_at = now
            self._now = max(1.0, self.now / 2)

    def went_well(self) -> None:
        self._now = min(float(self._most), self._now + 1.0 / self._now)
