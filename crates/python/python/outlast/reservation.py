"""Money for calls that cannot go through the proxy: reserved before, settled after."""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING, Any

from .budget import _nano
from .errors import Error
from .runs import current

if TYPE_CHECKING:
    from . import _native

# Seconds between tries to reserve while calls in flight hold the room, and the longest wait.
_AGAIN = 0.05
_PATIENCE = 45.0

# Event loop of each unsettled reservation, by the identity of the reservation.
_in_loops: dict[int, Any] = {}


class Reservation:
    """Money that `outlast.reserve` holds for one call. Usable with `with`; left without `settle`, it is charged in full: the call may
    have happened."""

    def __init__(self, open_run: Any, seq: int, nano_usd: int, tokens: int) -> None:
        self._open_run = open_run
        self._seq = seq
        self._nano_usd = nano_usd
        self._tokens = tokens
        self.is_settled = False
        loop = _running()
        if loop is not None:
            _in_loops[id(self)] = loop

    def settle(self, *, usd: Any = None, tokens: int | None = None) -> None:
        """Charges what the call actually cost; without numbers, what was reserved. On disk before `settle` returns. Only
        once.

        `usd`: dollars. Errors: `AlreadySettled`.
        """
        nano = self._nano_usd if usd is None else _nano(usd)
        self._open_run.settle(self._seq, nano, self._tokens if tokens is None else tokens)
        self._over()

    def void(self) -> None:
        """Charges nothing for a call that was never sent. On disk before `void` returns."""
        self._open_run.settle(self._seq, None, 0)
        self._over()

    def _over(self) -> None:
        self.is_settled = True
        _in_loops.pop(id(self), None)

    def __del__(self) -> None:
        _in_loops.pop(id(self), None)

    def __enter__(self) -> "Reservation":
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        # Charged in full after an exception, too: the call may have been billed.
        if not self.is_settled:
            self.settle()


def reserve(*, usd: Any, tokens: int = 0, label: str = "reserved") -> Reservation:
    """Reserves the most that a call can cost in the current run's budget, before the call is made.

    `usd`: dollars. `tokens` count where they are limited. The call counts as one of the run's. The reservation is on disk
    before `reserve` returns. Where calls in flight hold the room, `reserve` blocks for them, up to 45 s; in an event loop,
    `await asyncio.to_thread(outlast.reserve, usd=…)` lets the loop go on.

    Errors: `BudgetExceeded`, and the run is halted; code `admission_timeout`; `NoRun`.
    """
    run = current().run
    open_run = run._open_run_or_raise("a reservation")
    nano = _nano(usd)
    return Reservation(open_run, _reserved(open_run, label, nano, tokens), nano, tokens)


def _reserved(open_run: "_native.OpenRun", label: str, nano: int, tokens: int) -> int:
    loop = _running()
    # Room held by tasks of this event loop cannot come back while the loop is blocked here.
    is_stuck = loop is not None and loop in _in_loops.values()
    until = time.monotonic() + (0 if is_stuck else _PATIENCE)
    while True:
        try:
            seq = open_run.reserve(label, nano, tokens, time.monotonic() >= until)
        except Error as e:
            if is_stuck and e.code == "admission_timeout":
                e.hint = "tasks of this event loop hold the rest; wait for them with `await asyncio.to_thread(outlast.reserve, usd=…)`"
            raise
        if seq is not None:
            return seq
        time.sleep(_AGAIN)


def _running() -> Any:
    try:
        return asyncio.get_running_loop()
    except RuntimeError:
        return None


def settle(reservation: Reservation, *, usd: Any = None, tokens: int | None = None) -> None:
    """Charges what a reserved call actually cost: `reservation.settle(usd=…)`."""
    reservation.settle(usd=usd, tokens=tokens)
