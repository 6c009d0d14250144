"""Money for calls that cannot go through the proxy: reserved before, settled after."""

from __future__ import annotations

from typing import Any

from .budget import _nano
from .scope import current


class Reservation:
    """What `outlast.reserve` holds. Left by an exception without `settle`, it stays charged: the call may have happened."""

    def __init__(self, seat: Any, seq: int, nano_usd: int, tokens: int) -> None:
        self._seat = seat
        self._seq = seq
        self._nano_usd = nano_usd
        self._tokens = tokens
        self.is_settled = False

    def settle(self, *, usd: Any = None, tokens: int | None = None) -> None:
        """Posts what it came to; without numbers, what was reserved. On disk before it returns. Once."""
        nano = self._nano_usd if usd is None else _nano(usd)
        self._seat.settle(self._seq, nano, self._tokens if tokens is None else tokens)
        self.is_settled = True

    def void(self) -> None:
        """The call never left: nothing is charged."""
        self._seat.settle(self._seq, None, 0)
        self.is_settled = True

    def __enter__(self) -> "Reservation":
        return self

    def __exit__(self, kind: object, *rest: object) -> None:
        # An exception may have come after the call was billed: nothing in doubt is free.
        if not self.is_settled:
            self.settle()


def reserve(*, usd: Any, tokens: int = 0, label: str = "reserved") -> Reservation:
    """Reserves the most a call can cost in the current run's budget, before it is made.

    usd: dollars; tokens count too where they are limited. It is one of the run's calls. On disk before it returns.
    Errors: `BudgetExceeded`, and the run is halted; `NoRun`.
    """
    run = current().run
    seat = run._seat_or_raise("a reservation")
    nano = _nano(usd)
    return Reservation(seat, seat.reserve(label, nano, tokens), nano, tokens)


def settle(reservation: Reservation, *, usd: Any = None, tokens: int | None = None) -> None:
    """Posts what a reservation came to: `reservation.settle(usd=…)`."""
    reservation.settle(usd=usd, tokens=tokens)
